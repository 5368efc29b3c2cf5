//! Places where a thread is interrupted.

use super::{now, random, wait, yield_now};
use crate::{
    coroutine,
    interrupts::{self, Interrupt},
};

/// Virtual nanoseconds until a thread looks again at a lock that is held.
const LOCKED: u64 = 4_000;

/// In one of so many places where a thread is about to wait it is interrupted first.
const INTERRUPTED: u64 = 8;

/// Lets others run first, now and then: a place where a real thread may be interrupted.
pub(crate) fn maybe_interrupt() {
    if coroutine::is_inside() && random(INTERRUPTED) == 0 {
        yield_now();
    }
}

/// A place where it is interrupted as the story wants it.
pub(crate) fn pass() {
    pass_by(false);
}

/// The same while it holds a lock.
pub(crate) fn pass_with_lock() {
    pass_by(true);
}

#[inline]
fn pass_by(is_under_lock: bool) {
    if !interrupts::are_on() || !coroutine::is_inside() {
        return;
    }
    match interrupts::pass(is_under_lock) {
        None => {}
        Some(Interrupt::Yield) => yield_now(),
        Some(Interrupt::Away(nanos)) => wait(Some(now() + nanos)),
    }
}

/// It has found a lock held, and looks again in a moment; false: it is no logical thread.
pub(crate) fn wait_for_lock() -> bool {
    let is_inside = coroutine::is_inside();
    if is_inside {
        wait(Some(now() + 1 + random(LOCKED)));
    }
    is_inside
}
