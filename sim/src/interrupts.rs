//! When a logical thread is interrupted between two waits: at the engine's locks, and where it asks its platform or its transport for
//! something. In many stories not at all, so that these are quick.

use std::cell::{Cell, RefCell};

use crate::random::Random;

/// How often threads of a story are interrupted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interrupts {
    /// At one of so many places; 0: nowhere.
    pub every: u64,
    /// Whether while a lock is held, too: others find it so.
    pub under_locks: bool,
}

/// What an interrupted thread does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Interrupt {
    /// Lets others run first.
    Yield,
    /// Is away for so long in nanoseconds.
    Away(u64),
}

/// One of so many interrupts is long.
const LONG: u64 = 8;

/// Nanoseconds that a long one takes at most, for each place from one interrupt to the next: so all together take as long, however
/// many there are.
const LONG_MAX: u64 = 2000;

struct State {
    interrupts: Interrupts,
    random: Random,
    is_free: fn() -> bool,
}

thread_local! {
    /// Places until the next interrupt; 0: there is none.
    static LEFT: Cell<u64> = const { Cell::new(0) };
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
}

/// A story begins on this thread of the machine. Nobody is interrupted where something of the story's own is borrowed.
pub(crate) fn begin(interrupts: Interrupts, seed: u64, is_free: fn() -> bool) {
    let random = Random::new(seed ^ 0x1e77);
    STATE.with_borrow_mut(|state| *state = Some(State { interrupts, random, is_free }));
    LEFT.set(0);
    if interrupts.every > 0 {
        draw();
    }
}

/// Whether there are any in this story.
#[inline]
pub(crate) fn are_on() -> bool {
    LEFT.get() > 0
}

/// At one of how many places; `None`: nowhere.
pub(crate) fn every() -> Option<u64> {
    STATE.with_borrow(|state| state.as_ref().map(|it| it.interrupts.every).filter(|it| *it > 0))
}

/// A thread comes to a place where it may be interrupted; gives how it is.
#[inline]
pub(crate) fn pass(is_under_lock: bool) -> Option<Interrupt> {
    match LEFT.get() {
        0 => None,
        1 => interrupt(is_under_lock),
        left => {
            LEFT.set(left - 1);
            None
        }
    }
}

#[cold]
fn interrupt(is_under_lock: bool) -> Option<Interrupt> {
    let may = |state: &State| (!is_under_lock || state.interrupts.under_locks) && (state.is_free)();
    let is_due = STATE.with_borrow(|state| state.as_ref().is_some_and(may));
    // Others would take this thread's panic for their own.
    (is_due && !std::thread::panicking()).then(draw)
}

/// Draws when the next one comes; gives how the present one is.
fn draw() -> Interrupt {
    STATE.with_borrow_mut(|state| {
        let State { interrupts, random, .. } = state.as_mut().expect("a story has begun");
        LEFT.set(random.between(1, 2 * interrupts.every - 1));
        let is_long = random.below(LONG) == 0;
        if is_long {
            Interrupt::Away(random.between(1, LONG_MAX * interrupts.every))
        } else {
            Interrupt::Yield
        }
    })
}
