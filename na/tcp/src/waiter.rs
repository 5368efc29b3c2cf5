//! What a context sleeps on: mio's poll, and a waker for other threads.
//!
//! Sockets are edge-triggered: what arrives after the last look at the kernel ends the next sleep, and
//! data that was read meanwhile without being told of it does not.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use hg_na::{Error, Waiter};
use hg_na_parts::limits::os_error;
use mio::{Events, Poll, Registry, Token, Waker};

/// Events taken from the kernel at a time.
const EVENTS: usize = 256;
/// Names the waker; wires and listeners have other tokens.
const WAKE: Token = Token(usize::MAX);

/// What the kernel told about one socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    pub(crate) token: Token,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The other end has closed, or an error is pending: read to the end.
    pub(crate) ending: bool,
}

/// A context's wait set.
pub(crate) struct TcpWaiter {
    poll: Mutex<(Poll, Events)>,
    registry: Registry,
    waker: Waker,
    told: Mutex<Vec<Told>>,
    has_told: AtomicBool,
    /// A wake whose event was collected; ends the next wait.
    woken: AtomicBool,
    calls: AtomicU64,
}

impl TcpWaiter {
    /// An empty wait set.
    ///
    /// # Errors
    /// [`Error::Os`], [`Error::Limit`].
    pub(crate) fn new() -> Result<Self, Error> {
        let poll = Poll::new().map_err(|error| os_error("epoll_create1", error))?;
        let registry = poll.registry().try_clone().map_err(|error| os_error("dup", error))?;
        let waker = Waker::new(&registry, WAKE).map_err(|error| os_error("eventfd", error))?;
        Ok(Self {
            poll: Mutex::new((poll, Events::with_capacity(EVENTS))),
            registry,
            waker,
            told: Mutex::default(),
            has_told: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            calls: AtomicU64::new(0),
        })
    }

    /// Where sockets are added.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Whether events wait for the context.
    #[inline]
    pub(crate) fn has_told(&self) -> bool {
        // Acquire: pairs with the store in `collect`.
        self.has_told.load(Ordering::Acquire)
    }

    /// How often the kernel was asked, or waited in.
    pub(crate) fn calls(&self) -> u64 {
        // Relaxed: a count.
        self.calls.load(Ordering::Relaxed)
    }

    /// Asks the kernel without blocking. Nothing is asked while another thread waits.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn ask(&self) -> Result<(), Error> {
        let Ok(mut poll) = self.poll.try_lock() else { return Ok(()) };
        if self.collect(&mut poll, Some(Duration::ZERO))? {
            // Release: pairs with the swap in `wait`.
            self.woken.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Hands the collected events out.
    pub(crate) fn take(&self, into: &mut Vec<Told>) {
        let mut told = self.told();
        into.append(&mut told);
        self.has_told.store(false, Ordering::Release);
    }

    /// One call of the kernel; says whether the waker was among the events.
    fn collect(
        &self,
        (poll, events): &mut (Poll, Events),
        timeout: Option<Duration>,
    ) -> Result<bool, Error> {
        // Relaxed: a count.
        self.calls.fetch_add(1, Ordering::Relaxed);
        match poll.poll(events, timeout) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(false),
            Err(error) => return Err(Error::os("epoll_wait", error)),
        }
        let mut woken = false;
        let mut told = self.told();
        for event in &*events {
            if event.token() == WAKE {
                woken = true;
                continue;
            }
            told.push(Told {
                token: event.token(),
                readable: event.is_readable(),
                writable: event.is_writable(),
                ending: event.is_read_closed() || event.is_error(),
            });
        }
        if !told.is_empty() {
            self.has_told.store(true, Ordering::Release);
        }
        Ok(woken)
    }

    fn told(&self) -> MutexGuard<'_, Vec<Told>> {
        // A thread that panicked in between has left a list of whole events.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter for TcpWaiter {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.registry.as_fd())
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        // Acquire: pairs with the store in `ask`.
        let is_ended = self.woken.swap(false, Ordering::Acquire) || self.has_told();
        // What waits in the kernel is collected all the same: the caller may go by the descriptor.
        let timeout = if is_ended { Some(Duration::ZERO) } else { timeout };
        let mut poll = self.poll.lock().unwrap_or_else(PoisonError::into_inner);
        self.collect(&mut poll, timeout).map(|_| ())
    }

    fn wake(&self) {
        // It fails only when the eventfd's count is full, and then it is readable.
        let _ = self.waker.wake();
    }
}

impl std::fmt::Debug for TcpWaiter {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "TcpWaiter(told: {})", self.has_told())
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Instant};

    use super::*;

    const WATCHDOG: Option<Duration> = Some(Duration::from_secs(60));

    #[test]
    fn a_wake_before_the_wait_ends_it_even_when_its_event_was_collected() {
        let waiter = TcpWaiter::new().unwrap();
        let start = Instant::now();
        waiter.wake();
        waiter.wait(WATCHDOG).unwrap();
        waiter.wake();
        waiter.ask().unwrap();
        waiter.wait(WATCHDOG).unwrap();
        assert!(start.elapsed() < Duration::from_secs(60), "ended by wakes, not by the time");
    }

    #[test]
    fn every_wake_of_another_thread_ends_a_wait() {
        let waiter = Arc::new(TcpWaiter::new().unwrap());
        let (turn, turns) = std::sync::mpsc::channel::<()>();
        let waker = Arc::clone(&waiter);
        let thread = std::thread::spawn(move || turns.iter().for_each(|()| waker.wake()));
        let start = Instant::now();
        for round in 0..200 {
            turn.send(()).unwrap();
            if round % 2 == 0 {
                waiter.ask().unwrap();
            }
            waiter.wait(WATCHDOG).unwrap();
        }
        assert!(start.elapsed() < Duration::from_secs(60), "ended by wakes, not by the time");
        drop(turn);
        thread.join().unwrap();
    }

    #[test]
    fn short_timeouts_end_and_never_early() {
        let waiter = TcpWaiter::new().unwrap();
        let (start, timeout) = (Instant::now(), Duration::from_micros(300));
        waiter.wait(Some(timeout)).unwrap();
        assert!(start.elapsed() >= timeout);
    }
}
