//! Something with a lock, and threads that wait until it has changed: asleep, or making the progress themselves that
//! changes it.
//!
//! Who changes it takes note, under the lock, of who waits, and wakes those afterwards: whoever begins to wait later sees
//! the change. A thread that makes progress (at most one a time, see `turns.rs`) is woken by an interrupt of that.

use std::time::Duration;

use crate::{
    lock::{locked, wait},
    sync::{Condvar, Mutex, MutexGuard, wait_for},
};

/// A place where threads wait for a change.
#[derive(Debug)]
pub(crate) struct Room<Q> {
    state: Mutex<State<Q>>,
    changed: Condvar,
}

/// What is locked.
#[derive(Debug)]
pub(crate) struct State<Q> {
    pub(crate) queue: Q,
    waiting: Waiting,
}

/// Who waits.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Waiting {
    /// Threads that sleep.
    sleepers: u32,
    /// One makes progress.
    is_helped: bool,
}

impl Waiting {
    /// Whoever it may be.
    pub(crate) const EVERYBODY: Self = Self { sleepers: u32::MAX, is_helped: true };

    /// How many threads that are.
    pub(crate) fn count(self) -> u32 {
        self.sleepers + u32::from(self.is_helped)
    }
}

impl<Q> State<Q> {
    pub(crate) fn waiting(&self) -> Waiting {
        self.waiting
    }
}

impl<Q> Room<Q> {
    pub(crate) fn new(queue: Q) -> Self {
        let state = State { queue, waiting: Waiting::default() };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, State<Q>> {
        locked(&self.state)
    }

    /// `None`: somebody holds the lock.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, State<Q>>> {
        self.state.try_lock().ok()
    }

    /// Sleeps until it is so.
    pub(crate) fn wait_until(&self, mut is_over: impl FnMut(&Q) -> bool) {
        let mut state = self.lock();
        state.waiting.sleepers += 1;
        while !is_over(&state.queue) {
            state = wait(&self.changed, state);
        }
        state.waiting.sleepers -= 1;
    }

    /// The same, but for no longer than what is left, which is asked each time; nothing is left: `None`.
    pub(crate) fn wait_while_time_is_left(
        &self,
        mut is_over: impl FnMut(&Q) -> bool,
        left: impl Fn() -> Option<Duration>,
    ) {
        let mut state = self.lock();
        state.waiting.sleepers += 1;
        while !is_over(&state.queue)
            && let Some(left) = left()
        {
            state = wait_for(&self.changed, (&self.state, state), left);
        }
        state.waiting.sleepers -= 1;
    }

    /// The same for the thread that makes progress, with `turn`, which an interrupt ends.
    pub(crate) fn wait_helping(&self, mut is_over: impl FnMut(&Q) -> bool, mut turn: impl FnMut()) {
        let mut state = self.lock();
        state.waiting.is_helped = true;
        while !is_over(&state.queue) {
            drop(state);
            turn();
            state = self.lock();
        }
        state.waiting.is_helped = false;
    }

    /// Wakes who has waited, without the lock.
    pub(crate) fn wake(&self, waiting: Waiting, interrupt: impl FnOnce()) {
        if waiting.sleepers > 0 {
            self.changed.notify_all();
        }
        if waiting.is_helped {
            interrupt();
        }
    }
}
