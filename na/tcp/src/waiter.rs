//! What a context sleeps on: mio's poll, and a waker for other threads.
//!
//! Sockets are edge-triggered: what arrives after the last look at the kernel ends the next sleep, and
//! data that was read meanwhile without being told of it does not.
//!
//! A forked child shares the set with its parent: an event that it took out would be lost to the parent, which sleeps on.
//! So the child's copy neither waits nor wakes.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hg_na::{Error, Guest, Harvest, Told, Waiter};
use hg_na_memory::ForkGuard;
use hg_na_parts::limits::os_error;
use mio::{Events, Poll, Registry, Token, Waker, event::Event};

/// Events taken from the kernel at a time.
const EVENTS: usize = 256;
/// Names the waker; wires and listeners have other tokens.
const WAKE: Token = Token(usize::MAX - (1 << 31));
const _: () = assert!(WAKE.0 as u64 == Harvest::WAKE, "a token has 64 bits");

/// A context's wait set.
pub(crate) struct TcpWaiter {
    poll: Mutex<(Poll, Events)>,
    registry: Registry,
    waker: Waker,
    guard: Arc<ForkGuard>,
    harvest: Harvest,
    calls: AtomicU64,
}

impl TcpWaiter {
    /// An empty wait set.
    ///
    /// # Errors
    /// [`Error::Os`], [`Error::Limit`].
    pub(crate) fn new(guard: Arc<ForkGuard>) -> Result<Self, Error> {
        let poll = Poll::new().map_err(|error| os_error("epoll_create1", error))?;
        let registry = poll.registry().try_clone().map_err(|error| os_error("dup", error))?;
        let waker = Waker::new(&registry, WAKE).map_err(|error| os_error("eventfd", error))?;
        Ok(Self {
            poll: Mutex::new((poll, Events::with_capacity(EVENTS))),
            registry,
            waker,
            guard,
            harvest: Harvest::new(),
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
        self.harvest.has_any()
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
            self.harvest.leave_wake();
        }
        Ok(())
    }

    /// Hands the collected events out.
    pub(crate) fn take(&self, into: &mut Vec<Told>) {
        self.harvest.take(into);
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
        Ok(self.harvest.keep(events.iter().map(told)))
    }
}

fn told(event: &Event) -> Told {
    Told {
        token: event.token().0 as u64,
        readable: event.is_readable(),
        writable: event.is_writable(),
        ending: event.is_read_closed() || event.is_error(),
    }
}

impl Waiter for TcpWaiter {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.registry.as_fd())
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        if self.guard.is_child() {
            return Err(Error::Forked);
        }
        // What waits in the kernel is collected all the same: the caller may go by the descriptor.
        let timeout = if self.harvest.ends_wait() { Some(Duration::ZERO) } else { timeout };
        let mut poll = self.poll.lock().unwrap_or_else(PoisonError::into_inner);
        self.collect(&mut poll, timeout).map(|_| ())
    }

    fn wake(&self) {
        if !self.guard.is_child() {
            // It fails only when the eventfd's count is full, and then it is readable.
            let _ = self.waker.wake();
        }
    }

    fn host(&self) -> Result<Guest, Error> {
        let set = self.registry.as_fd().try_clone_to_owned();
        self.harvest.guest(set.map_err(|error| os_error("dup", error))?)
    }
}

impl std::fmt::Debug for TcpWaiter {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "TcpWaiter(told: {})", self.has_told())
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, time::Instant};

    use nix::{
        libc,
        sys::wait::{WaitStatus, waitpid},
        unistd::{ForkResult, fork},
    };

    use super::*;

    const WATCHDOG: Option<Duration> = Some(Duration::from_secs(60));

    fn waiter() -> TcpWaiter {
        TcpWaiter::new(Arc::new(ForkGuard::new().unwrap())).unwrap()
    }

    #[test]
    #[expect(unsafe_code, reason = "fork(2), which a test of forking cannot do without")]
    fn a_forked_child_takes_no_event_from_its_parent() {
        let waiter = waiter();
        let (mut own, mut far) = mio::net::UnixStream::pair().unwrap();
        waiter.registry().register(&mut own, Token(7), mio::Interest::READABLE).unwrap();
        far.write_all(b"told once").unwrap();
        // SAFETY:
        // - the child asks the kernel, at most, and exits, without allocating or unwinding.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let refused = matches!(waiter.wait(WATCHDOG), Err(Error::Forked));
                // SAFETY:
                // - ends the child at once, without running anything of the parent's.
                unsafe { libc::_exit(i32::from(!refused)) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
            }
        }
        waiter.ask().unwrap();
        let mut told = Vec::new();
        waiter.take(&mut told);
        assert!(told.len() == 1 && told[0].token == 7);
    }

    #[test]
    fn a_wake_before_the_wait_ends_it_even_when_its_event_was_collected() {
        let waiter = waiter();
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
        let waiter = Arc::new(waiter());
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
    fn what_the_kernel_tells_of_a_guest_is_kept_for_it_and_its_wakes_end_waits() {
        let waiter = waiter();
        let Guest { set, harvest } = waiter.host().unwrap();
        assert!(waiter.host().is_err(), "there is room for one");
        let (mut own, mut far) = mio::net::UnixStream::pair().unwrap();
        let (mut other, mut beyond) = mio::net::UnixStream::pair().unwrap();
        let interest = mio::Interest::READABLE;
        let token = usize::try_from(harvest.token(7)).unwrap();
        waiter.registry().register(&mut own, Token(token), interest).unwrap();
        waiter.registry().register(&mut other, Token(7), interest).unwrap();
        let start = Instant::now();
        for asks in [true, false] {
            far.write_all(b"guest").unwrap();
            if asks { waiter.ask() } else { waiter.wait(WATCHDOG) }.unwrap();
            let (mut told, mut foreign) = (Vec::new(), Vec::new());
            assert!(!waiter.has_told() && harvest.has_any() && harvest.ends_wait());
            harvest.take(&mut told);
            assert!(told.len() == 1 && told[0].token == 7 && told[0].readable);
            beyond.write_all(b"host").unwrap();
            waiter.wait(WATCHDOG).unwrap();
            assert!(harvest.host_has_any() && !harvest.has_any());
            waiter.take(&mut foreign);
            assert!(foreign.len() == 1 && foreign[0].token == 7);
        }
        waiter.wake();
        waiter.ask().unwrap();
        assert!(waiter.has_told(), "its context is looked at");
        waiter.take(&mut Vec::new());
        assert!(harvest.ends_wait() && !harvest.ends_wait(), "a wake that was collected ends one");
        drop(set);
        assert!(start.elapsed() < Duration::from_secs(60), "ended by events, not by the time");
    }

    #[test]
    fn short_timeouts_end_and_never_early() {
        let waiter = waiter();
        let (start, timeout) = (Instant::now(), Duration::from_micros(300));
        waiter.wait(Some(timeout)).unwrap();
        assert!(start.elapsed() >= timeout);
    }
}
