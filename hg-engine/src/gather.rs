//! What the first poll of a handler's future leaves to others of its round: short transfers that cost less together.
//!
//! A round that has more requests to serve lets such a transfer wait (`port/transfers/notes.rs`), and polls its task again
//! after it has moved them all: directly, so that nobody need wake it. Which poll of which port that is, is known to its
//! thread only. A transfer that is polled anywhere else, or by another waker than its task's, is not waited for: it is moved
//! there and then.

use std::{cell::Cell, task::Waker};

struct Here {
    /// The port that polls.
    port: Cell<u64>,
    /// Which of its handlers it starts; 0: none whose transfers may wait.
    start: Cell<u64>,
    /// What tells the task's waker from others: of what it wakes, and of how.
    waker: Cell<(usize, usize)>,
    /// Transfers that this poll, and those that it is inside of, have left to wait.
    noted: Cell<u64>,
    /// A port and a start of it: what that has left to wait was moved, and it is polled again for that. 0: none.
    moved: Cell<(u64, u64)>,
}

thread_local! {
    static HERE: Here = const {
        Here {
            port: Cell::new(0),
            start: Cell::new(0),
            waker: Cell::new((0, 0)),
            noted: Cell::new(0),
            moved: Cell::new((0, 0)),
        }
    };
}

/// Polls a handler's future for the first time (`start`: which start it is), or in a poll in which transfers do not wait
/// (0); says whether any does.
///
/// A handler may make progress for another engine, whose polls are in between. What began to wait before those is moved at
/// once when it is polled after them; that its task is to be polled again is not forgotten.
#[inline(always)]
pub(crate) fn polling<T>(
    port: u64,
    start: u64,
    waker: &Waker,
    mut poll: impl FnMut() -> T,
) -> (T, bool) {
    if start == 0 {
        return (poll(), false);
    }
    let before = HERE.with(|here| {
        here.port.set(port);
        here.start.set(start);
        here.waker.set(addresses(waker));
        here.noted.get()
    });
    let polled = poll();
    let is_noting = HERE.with(|here| {
        here.start.set(0);
        here.noted.replace(before) != before
    });
    (polled, is_noting)
}

/// Polls a handler's future again; `start`: which start it was, if all that it has left to wait was moved; or 0.
#[inline(always)]
pub(crate) fn polling_again<T>(port: u64, start: u64, poll: impl FnOnce() -> T) -> T {
    HERE.with(|here| here.moved.set((port, start)));
    let polled = poll();
    HERE.with(|here| here.moved.set((0, 0)));
    polled
}

/// Whether a transfer that this handler of this port has left to wait was moved, as far as this poll knows.
#[inline(always)]
pub(crate) fn is_moved(port: u64, start: u64) -> bool {
    HERE.with(|here| here.moved.get() == (port, start))
}

/// The start of a handler of this port whose first poll this is, and may leave transfers to wait; or 0.
#[inline(always)]
pub(crate) fn start_of(port: u64) -> u64 {
    HERE.with(|here| if here.port.get() == port { here.start.get() } else { 0 })
}

/// One more waits.
#[inline(always)]
pub(crate) fn count() {
    HERE.with(|here| here.noted.set(here.noted.get() + 1));
}

/// Whether this is still the poll in which a transfer began to wait, by its task itself: that is polled again when it was
/// moved.
#[inline(always)]
pub(crate) fn is_polled_again(port: u64, start: u64, waker: &Waker) -> bool {
    HERE.with(|here| {
        here.start.get() == start && here.port.get() == port && here.waker.get() == addresses(waker)
    })
}

#[inline(always)]
fn addresses(waker: &Waker) -> (usize, usize) {
    (waker.data().addr(), std::ptr::from_ref(waker.vtable()).addr())
}
