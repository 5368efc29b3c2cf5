//! What of a user's is to be woken or dropped, where that may do anything.
//!
//! A waker may call, drop a call, close the engine; so may whatever keeps memory alive, when it is dropped. A change of the
//! protocol's state that wakes somebody, or lets go of what may be the last of something, leaves that here. Whoever has
//! unlocked the state runs it.

use std::{fmt, task::Waker};

/// What is to be done later, in order.
#[derive(Debug, Default)]
pub struct Deferred(Vec<Action>);

/// One of them.
pub enum Action {
    /// Somebody waits for this.
    Wake(Waker),
    /// It may be the last of its kind.
    Drop(Box<dyn Send>),
    /// The same of memory whose return takes long, and for which nobody waits.
    Free(Box<dyn Send>),
}

impl fmt::Debug for Action {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Wake(_) => "Wake",
            Self::Drop(_) => "Drop",
            Self::Free(_) => "Free",
        })
    }
}

impl Deferred {
    /// Whether there is nothing to do.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How much there is to do.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Does one more thing later.
    pub fn push(&mut self, action: Action) {
        self.0.push(action);
    }

    /// Drops something later.
    pub fn drop(&mut self, what: Box<dyn Send>) {
        self.0.push(Action::Drop(what));
    }

    /// Frees memory later.
    pub fn free(&mut self, what: Box<dyn Send>) {
        self.0.push(Action::Free(what));
    }

    /// Takes what came after the first `len`.
    #[must_use = "it is to be run"]
    pub fn split_off(&mut self, len: usize) -> Self {
        Self(self.0.split_off(len))
    }

    /// Takes all of it, one after the other; its memory stays.
    pub fn drain(&mut self) -> impl Iterator<Item = Action> + '_ {
        self.0.drain(..)
    }
}

impl Extend<Waker> for Deferred {
    fn extend<T: IntoIterator<Item = Waker>>(&mut self, wakers: T) {
        self.0.extend(wakers.into_iter().map(Action::Wake));
    }
}
