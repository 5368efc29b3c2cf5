//! Closes descriptors that others had a hand in, in threads of their own: a close may wait for as long as they like (a TCP socket that
//! lingers, a file of a file system's daemon), be it of the descriptor itself or of a socket in which it waits to be received.

use std::{
    mem,
    os::fd::OwnedFd,
    sync::{MutexGuard, PoisonError},
    thread,
};

use super::signals::{Closing, Signals};

/// With so many threads, and descriptors that wait for one, nobody is accepted and no connection is made, since each may add some.
const CLOSING_MAX: usize = 64;
const STACK_BYTES: usize = 64 << 10;

/// Closes them without waiting. Where no thread is to be had they stay open until there is one.
pub(crate) fn close_elsewhere(fds: Vec<OwnedFd>) {
    let Ok(process) = Signals::of_process() else { return mem::forget(fds) };
    lock(process).queue.extend(fds);
    start_closer(process);
}

/// Whether one more connection may be made.
pub(crate) fn has_room() -> bool {
    let Ok(process) = Signals::of_process() else { return false };
    start_closer(process);
    let mut closing = lock(process);
    let has_room = closing.threads + closing.queue.len() < CLOSING_MAX;
    let is_news = !has_room && !mem::replace(&mut closing.was_told, true);
    drop(closing);
    if is_news {
        tracing::warn!(
            "{CLOSING_MAX} descriptors of others wait to be closed (TCP sockets that linger, most likely): until it is fewer, no \
             connection is made in this process. This is said once"
        );
    }
    has_room
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
    closing.threads -= usize::from(next.is_none());
    drop(closing);
    next.map(drop).is_some()
}

fn lock(process: &Signals) -> MutexGuard<'_, Closing> {
    process.closing.lock().unwrap_or_else(PoisonError::into_inner)
}
