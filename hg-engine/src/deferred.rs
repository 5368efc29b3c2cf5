//! Runs what the protocol has deferred ([`Deferred`]): wakers, and the dropping of users' memory and handlers. Never under a
//! lock, and a panic in it ends there.
//!
//! What users drop themselves (a call, say) is dropped in their own thread, after the lock.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use hg_core::deferred::{Action, Deferred};

use crate::{
    handler::panic_text,
    inside::{Inside, in_handler},
    pool::Pool,
};

/// Does it. A waker may poll at once whatever it wakes, and drop it with the last handle of this engine: that is to be
/// told that it cannot wait, and closes the engine as a handler does. This thread may have the role.
#[cold]
pub(crate) fn run(deferred: &mut Deferred, port: u64, pool: &Arc<Pool>) {
    in_handler(port, Inside::Async, || {
        for action in deferred.drain() {
            match action {
                Action::Wake(waker) => contain("a waker", || waker.wake()),
                Action::Drop(what) => contain("memory that was dropped", || drop(what)),
                Action::Free(memory) => pool.free(memory),
            }
        }
    });
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
