//! What of a user's is to be woken or dropped, where that may do anything.
//!
//! A waker may call, drop a call, close the engine; so may whatever keeps memory alive, when it is dropped. A change of the
//! protocol's state that wakes somebody, or lets go of what may be the last of something, leaves that here. Whoever has
//! unlocked the state runs it.

use std::{fmt, task::Waker};

/// What is to be done later, in order.
pub type Deferred = Vec<Action>;

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
