//! What of a user's is run or dropped for nobody in particular: wakers, memory, handlers. Never under a lock, and a panic in
//! it ends there.
//!
//! A waker may do anything: call, drop a call, end the engine. So a change of the state that wakes somebody, or drops what may
//! be the last of something, leaves that here, and whoever has unlocked the state does it. What users drop themselves (a call,
//! say) is dropped in their own thread, after the lock.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
};

use crate::{
    handler::panic_text,
    request::{Inside, in_handler},
};

/// To be done once no lock is held.
#[derive(Default)]
pub(crate) struct Late(Vec<Act>);

enum Act {
    Wake(Waker),
    Drop(Box<dyn Send>),
}

impl Late {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// To be woken.
    pub(crate) fn wake(&mut self, waker: Waker) {
        self.0.push(Act::Wake(waker));
    }

    /// To be dropped.
    pub(crate) fn drop(&mut self, what: Box<dyn Send>) {
        self.0.push(Act::Drop(what));
    }

    /// What was added since there were so many.
    pub(crate) fn since(&mut self, len: usize) -> Self {
        Self(self.0.split_off(len))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Does it. A waker may poll at once whatever it wakes, and drop it with the last handle of this engine: that is to be
    /// told that it cannot wait, and closes the engine as a handler does. This thread may have the role.
    #[cold]
    pub(crate) fn run(&mut self) {
        in_handler(Inside::Async, || {
            for act in self.0.drain(..) {
                match act {
                    Act::Wake(waker) => contain("a waker", || waker.wake()),
                    Act::Drop(what) => contain("memory that was dropped", || drop(what)),
                }
            }
        });
    }
}

impl Extend<Waker> for Late {
    fn extend<T: IntoIterator<Item = Waker>>(&mut self, wakers: T) {
        self.0.extend(wakers.into_iter().map(Act::Wake));
    }
}

/// Runs something of a user's for which nobody waits. Its panic is logged, and concerns nobody else.
#[cold]
pub(crate) fn contain(what: &str, run: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
        tracing::error!(panic = panic_text(panic.as_ref()), "{what} has panicked");
        discard(panic);
    }
}

/// Drops what somebody has panicked with, which may panic once more.
#[cold]
pub(crate) fn discard(panic: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(again);
    }
}
