//! The role in somebody's hands.

use std::{mem::ManuallyDrop, sync::Arc};

use super::{Port, State, Work};
use crate::lock::MutexGuard;

/// The role: who has it makes progress. Dropped, it goes back, or on to a follower.
pub(crate) struct Role<'p> {
    port: &'p Arc<Port>,
    /// `None` once it was given back; dropped nowhere else but with the state.
    work: ManuallyDrop<Option<Box<Work>>>,
}

impl<'p> Role<'p> {
    #[inline(always)]
    pub(crate) fn new(port: &'p Arc<Port>, work: Box<Work>) -> Self {
        Self { port, work: ManuallyDrop::new(Some(work)) }
    }

    #[inline]
    pub(crate) fn work(&mut self) -> &mut Work {
        self.work.as_deref_mut().expect("a round begins with the role")
    }

    /// Gives it back at the end of a round that left nothing to do (H1, H2).
    #[inline(always)]
    pub(crate) fn give_back(&mut self, mut state: MutexGuard<'_, State>) {
        // Nothing is dropped: while somebody has the role, its place is empty.
        std::mem::forget(std::mem::replace(&mut state.work, self.work.take())); // H1
        if state.followers.any() {
            self.port.pass_on(state);
        }
    }

    /// Whether it was given back in the middle of a round, to move bytes.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.work.is_none()
    }

    /// Gives it back; where the engine was closed meanwhile, without anything of users'.
    #[cold]
    pub(crate) fn release(&mut self) {
        let Some(state) = self.port.enter_state() else { return };
        let is_closed = !state.is_open();
        let closed = self.work.as_mut().filter(|_| is_closed).map(|work| work.clear());
        self.give_back(state);
        closed.into_iter().for_each(|leftovers| leftovers());
    }
}

impl Drop for Role<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.work.is_some() {
            self.release();
        }
    }
}
