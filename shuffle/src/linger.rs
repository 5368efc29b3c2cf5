//! The clock of a shuffle: batches that are not full leave after a while.
//!
//! # Protocol
//! Whoever makes something linger arms the clock; what lingers lies under a lock of its own, of a hop or of the mail.
//!
//! | who makes something linger | clock |
//! |---|---|
//! | A1 locked there: it lingers | C1 `is_armed.swap(false)` |
//! | A2 `is_armed.load`: armed, nothing more to do | C2 locked there, one after the other: is it due, or when will it be |
//! | A3 `is_armed.swap(true)`: who finds `false` goes on | C3 something lingers on: `is_armed.swap(true)`, sleep until then |
//! | A4 lock, unlock `state`; notify | C4 `state` locked: sleep unless armed |
//!
//! - A1 to C2, by the lock there: either the clock sees it, or it was begun after the look, and then A2 comes after C1 and finds
//!   `true` only if the clock is to look again: another one armed it (A3), or the clock itself (C3), which comes back before
//!   anything is due that was begun after its look.
//! - A3 to C4, by the lock of `state`: either the clock sees that it is armed, or it sleeps before A4, and is notified.
//!
//! So the atomic needs no order of its own; that all of its writers exchange puts them in one order. `tests/loom.rs` searches
//! it: without the lock of A4, with C1 behind C2, or without C3 it finds a batch that never leaves.

use std::time::{Duration, Instant};

use crate::{
    lock::locked,
    sync::{AtomicBool, Condvar, Mutex, Ordering, wait_for, wait_idle},
};

/// Tells the clock's thread that something lingers.
#[derive(Debug, Default)]
pub(crate) struct Linger {
    is_armed: AtomicBool,
    /// Whether it is over.
    state: Mutex<bool>,
    changed: Condvar,
}

impl Linger {
    /// Something lingers.
    #[inline]
    pub(crate) fn arm(&self) {
        // A2, A3. Relaxed, here and below: locks order it.
        if !self.is_armed.load(Ordering::Relaxed) && !self.is_armed.swap(true, Ordering::Relaxed) {
            drop(locked(&self.state)); // A4
            self.changed.notify_one();
        }
    }

    pub(crate) fn end(&self) {
        *locked(&self.state) = true;
        self.changed.notify_one();
    }

    /// Runs the clock until the end. `look` looks after all that lingers, and says when to look again; `watch` looks after what
    /// arms no clock, once an interval or more often.
    pub(crate) fn run(
        &self,
        mut look: impl FnMut(Instant) -> Option<Instant>,
        (interval, mut watch): (Duration, impl FnMut(Instant)),
    ) {
        let mut state = locked(&self.state);
        while !*state {
            // C4
            if !self.is_armed.load(Ordering::Relaxed) {
                state = wait_idle(&self.changed, state, interval);
                drop(state);
                watch(Instant::now());
                state = locked(&self.state);
                continue;
            }
            drop(state);
            self.is_armed.swap(false, Ordering::Relaxed); // C1
            let now = Instant::now();
            let next = look(now); // C2
            watch(now);
            state = locked(&self.state);
            if let Some(next) = next {
                self.is_armed.swap(true, Ordering::Relaxed); // C3
                let left = next.saturating_duration_since(Instant::now()).min(interval);
                if !*state && !left.is_zero() {
                    state = wait_for(&self.changed, (&self.state, state), left);
                }
            }
        }
    }
}
