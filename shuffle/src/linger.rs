//! The clock of a shuffle: batches that are not full leave after a while.
//!
//! Whoever makes something linger, under a lock of its own, arms the clock behind that. The clock is armed no more when it begins to
//! look: either it sees what lingers, or it is armed again by that, and looks once more. While something lingers on it stays armed, and
//! sleeps until that is due, which is sooner than anything that was begun after its look: nobody need wake it.
//!
//! `tests/loom.rs` searches it: with the note taken behind the look, or without that of what lingers on, it finds a batch that never leaves.

use std::time::{Duration, Instant};

use crate::{
    lock::locked,
    sync::{Condvar, Mutex, wait_for, wait_idle},
};

/// Tells the clock's thread that something lingers.
#[derive(Debug, Default)]
pub(crate) struct Linger {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_armed: bool,
    is_over: bool,
}

impl Linger {
    /// Something lingers.
    pub(crate) fn arm(&self) {
        if !std::mem::replace(&mut locked(&self.state).is_armed, true) {
            self.changed.notify_one();
        }
    }

    pub(crate) fn end(&self) {
        locked(&self.state).is_over = true;
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
        while !state.is_over {
            if !state.is_armed {
                state = wait_idle(&self.changed, state, interval);
                drop(state);
                watch(Instant::now());
                state = locked(&self.state);
                continue;
            }
            state.is_armed = false;
            drop(state);
            let now = Instant::now();
            let next = look(now);
            watch(now);
            state = locked(&self.state);
            if let Some(next) = next {
                state.is_armed = true;
                let left = next.saturating_duration_since(Instant::now()).min(interval);
                if !state.is_over && !left.is_zero() {
                    state = wait_for(&self.changed, (&self.state, state), left);
                }
            }
        }
    }
}
