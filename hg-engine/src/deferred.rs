//! Runs what the protocol has deferred ([`Deferred`]): wakers, and the dropping of users' memory and handlers. Never under a
//! lock, and a panic in it ends there.
//!
//! What users drop themselves (a call, say) is dropped in their own thread, after the lock.

use std::sync::Arc;

use hg_core::deferred::{Action, Deferred};

use crate::{
    contain::contain,
    inside::{Inside, in_handler},
    pool::Pool,
};

/// Does it. A waker may poll at once whatever it wakes, and drop it with the last handle of this engine: that is to be
/// told that it cannot wait, and closes the engine as a handler does. This thread may have the role.
#[cold]
pub(crate) fn run(deferred: &mut Deferred, port: u64, pool: &Arc<Pool>) {
    in_handler(port, Inside::Async, || {
        for action in deferred.drain(..) {
            match action {
                Action::Wake(waker) => contain("a waker", || waker.wake()),
                Action::Drop(what) => contain("memory that was dropped", || drop(what)),
                Action::Free(memory) => pool.free(memory),
            }
        }
    });
}
