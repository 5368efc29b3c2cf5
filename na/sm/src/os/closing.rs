//! Closes descriptors that others had a hand in, in threads of their own: a close may wait for as long as they like (a TCP socket that
//! lingers, a file of a file system's daemon), be it of the descriptor itself or of a socket in which it waits to be received.

use std::{
    mem,
    os::fd::OwnedFd,
    sync::{MutexGuard, PoisonError},
    thread,
};

use hg_na::Error;

use super::signals::{Closing, Signals};

/// With so many threads, and descriptors that wait for one, nobody is accepted and no connection is made, since each may add some. Those that
/// are open already may add more descriptors, which wait.
const CLOSING_MAX: usize = 64;
const STACK_BYTES: usize = 64 << 10;

/// Closes them without waiting. Where no thread is to be had they stay open until there is one.
pub(crate) fn close_elsewhere(fds: Vec<OwnedFd>) {
    let Ok(process) = Signals::of_process() else { return mem::forget(fds) };
    lock(process).queue.extend(fds);
    start_closer(process);
}

/// Whether one more connection may be made.
///
/// # Errors
/// [`Error::Limit`]: too much waits to be closed. It is warned of once, until nothing waits any more.
pub(crate) fn room() -> Result<(), Error> {
    let process = Signals::of_process()?;
    start_closer(process);
    let mut closing = lock(process);
    if closing.threads + closing.queue.len() < CLOSING_MAX {
        return Ok(());
    }
    let was_full = mem::replace(&mut closing.was_full, true);
    drop(closing);
    let limit = CLOSING_MAX as u64;
    let what = "descriptors of others that wait to be closed, with which no connection is made";
    let remedy = "end who has sent them (TCP sockets that linger, most likely)";
    let error = Error::Limit { what, limit, remedy };
    if !was_full {
        tracing::warn!("{error}");
    }
    Err(error)
}

/// Starts a thread for what waits for one.
fn start_closer(process: &'static Signals) {
    let mut closing = lock(process);
    if closing.queue.is_empty() || closing.threads == CLOSING_MAX {
        return;
    }
    closing.threads += 1;
    drop(closing);
    let closer = thread::Builder::new().name("hg-sm-close".to_owned()).stack_size(STACK_BYTES);
    if closer.spawn(|| while close_next(process) {}).is_err() {
        lock(process).threads -= 1;
    }
}

/// `false`: none is left, and this thread ends.
fn close_next(process: &Signals) -> bool {
    let mut closing = lock(process);
    let next = closing.queue.pop();
    if next.is_none() {
        closing.threads -= 1;
        closing.was_full &= closing.threads > 0;
    }
    drop(closing);
    next.map(drop).is_some()
}

fn lock(process: &Signals) -> MutexGuard<'_, Closing> {
    process.closing.lock().unwrap_or_else(PoisonError::into_inner)
}
