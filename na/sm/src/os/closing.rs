//! Closes descriptors that others had a hand in, in threads of their own: a close may wait for as long as they like (a TCP socket that
//! lingers, a file of a file system's daemon), be it of the descriptor itself or of a socket in which it waits to be received.

use std::{
    mem,
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use hg_na::Error;

use super::signals::{Closing, Signals};

/// With so many threads, and descriptors that wait for one, nobody is accepted and no connection is made, since each may add some. Those that
/// are open already may add more descriptors, which wait.
const CLOSING_MAX: usize = 64;
/// For so long it is nothing to speak of: where a processor is busy, sockets of many peers that leave at once wait for a moment.
const SAID_AFTER: Duration = Duration::from_secs(1);
const STACK_BYTES: usize = 64 << 10;

/// Closes them without waiting. Where no thread is to be had they stay open until there is one.
pub(crate) fn close_elsewhere(fds: Vec<OwnedFd>) {
    let Ok(process) = Signals::of_process() else { return mem::forget(fds) };
    lock(&process.closing).queue.extend(fds);
    start_closer(&process.closing);
}

/// Whether one more connection may be made.
///
/// # Errors
/// [`Error::Limit`]: too much waits to be closed. Once that has lasted it is warned of, and again only after less than half of it has waited.
pub(crate) fn room(now: Instant) -> Result<(), Error> {
    let all = &Signals::of_process()?.closing;
    start_closer(all);
    let mut closing = lock(all);
    if closing.waiting() < CLOSING_MAX {
        return Ok(());
    }
    let is_news = closing.is_news(now);
    drop(closing);
    let limit = CLOSING_MAX as u64;
    let what = "descriptors of others that wait to be closed, with which no connection is made";
    let remedy = "end who has sent them (TCP sockets that linger, most likely)";
    let error = Error::Limit { what, limit, remedy };
    if is_news {
        tracing::warn!("{error}");
    }
    Err(error)
}

impl Closing {
    /// How much there is. Once that is little, whoever was refused before counts no more.
    fn waiting(&mut self) -> usize {
        let waiting = self.threads + self.queue.len();
        self.full = self.full.filter(|_| waiting >= CLOSING_MAX / 2);
        waiting
    }

    /// Somebody is refused now: whether that is to be warned of.
    fn is_news(&mut self, now: Instant) -> bool {
        let (since, is_said) = self.full.get_or_insert((now, false));
        now.duration_since(*since) >= SAID_AFTER && !mem::replace(is_said, true)
    }
}

/// Starts a thread for what waits for one.
fn start_closer(all: &'static Mutex<Closing>) {
    let mut closing = lock(all);
    if closing.queue.is_empty() || closing.threads == CLOSING_MAX {
        return;
    }
    closing.threads += 1;
    drop(closing);
    let closer = thread::Builder::new().name("hg-sm-close".to_owned()).stack_size(STACK_BYTES);
    if closer.spawn(|| while close_next(all) {}).is_err() {
        lock(all).threads -= 1;
    }
}

/// `false`: none is left, and this thread ends.
fn close_next(all: &Mutex<Closing>) -> bool {
    let mut closing = lock(all);
    let next = closing.queue.pop();
    if next.is_none() {
        closing.threads -= 1;
    }
    closing.waiting();
    drop(closing);
    next.map(drop).is_some()
}

fn lock(all: &Mutex<Closing>) -> MutexGuard<'_, Closing> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Closing {
        Closing { threads: CLOSING_MAX, ..Closing::default() }
    }

    #[test]
    fn who_is_refused_for_a_while_says_so_once_and_again_when_less_than_half_has_waited() {
        let (start, mut closing) = (Instant::now(), full());
        let is_news = |closing: &mut Closing, ms| {
            assert_eq!(closing.waiting(), CLOSING_MAX);
            closing.is_news(start + Duration::from_millis(ms))
        };
        assert!(!is_news(&mut closing, 0) && !is_news(&mut closing, 999), "for a moment");
        assert!(is_news(&mut closing, 1000) && !is_news(&mut closing, 90_000), "once");
        for (left, again) in [(CLOSING_MAX / 2, false), (CLOSING_MAX / 2 - 1, true)] {
            closing.threads = left;
            assert_eq!(closing.waiting(), left);
            closing.threads = CLOSING_MAX;
            assert!(!is_news(&mut closing, 100_000), "{left} were left: for a moment");
            assert_eq!(is_news(&mut closing, 101_000), again, "{left} were left");
        }
    }

    /// Nobody asks for room meanwhile; and it is not the last of the threads that ends, as where another one was not to be had.
    #[test]
    fn threads_that_end_make_a_later_refusal_one_of_its_own() {
        let (start, all) = (Instant::now(), Mutex::new(full()));
        assert!(!lock(&all).is_news(start));
        while lock(&all).threads > 1 {
            assert!(!close_next(&all), "nothing waits");
        }
        lock(&all).threads = CLOSING_MAX;
        assert!(!lock(&all).is_news(start + Duration::from_secs(3600)), "for a moment");
    }
}
