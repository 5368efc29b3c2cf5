//! Runtimes of users that handlers run on.

use std::pin::Pin;

/// A runtime that handlers run on instead of the engine's own threads: [`Builder::runtime`](crate::Builder::runtime).
///
/// With the feature `tokio` there is one for `tokio::runtime::Handle`. For others it takes two lines:
/// ```
/// # use std::pin::Pin;
/// struct Smol;
///
/// impl hg_engine::Spawn for Smol {
///     fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
///         smol::spawn(future).detach();
///     }
///
///     fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>) {
///         smol::unblock(job).detach();
///     }
/// }
/// ```
/// What the runtime drops before it has ended is answered with
/// [`CallError::Rejected`](hg_core::error::CallError::Rejected).
pub trait Spawn: Send + Sync {
    /// Runs a future to its end: an `async` handler. Called by the thread that makes progress: it must not block.
    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>);

    /// Runs a job that may block, in a thread where that holds up nobody: a blocking handler. Called by the thread that makes
    /// progress: it must not block itself.
    fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>);
}

#[cfg(feature = "tokio")]
impl Spawn for tokio::runtime::Handle {
    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        // Not waited for.
        drop(Self::spawn(self, future));
    }

    fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>) {
        drop(Self::spawn_blocking(self, job));
    }
}
