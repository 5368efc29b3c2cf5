//! What a context sleeps on: one epoll set, harvested by the thread that sleeps and by the one that polls.
//!
//! The set is the waiter's own, or that of another plugin's context ([`hg_na::Guest`]). Events are taken out of the
//! kernel by whoever calls `wait` or `poll`, and kept until their context takes them ([`hg_na::Harvest`], which has the
//! protocol of wake-ups): edge-triggered events are told once, so none may be lost.
//!
//! A wake-up is a write to an eventfd that lies in the same set, edge-triggered and never read.
//!
//! A forked child shares the epoll set with its parent: an event that it took out would be lost to the parent, which
//! sleeps on. So the child's copy neither waits nor wakes.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32},
    },
    time::Duration,
};

use hg_na::{Error, Guest, Harvest, Told, Waiter};
use hg_na_memory::ForkGuard;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        time::TimeSpec,
    },
};

use hg_na_parts::limits::os_error;

use super::{event::Doorbell, signals::guard};

/// Events taken out of the kernel at a time.
const EVENTS_MAX: usize = 64;

/// The token of the waiter's own eventfd; no other descriptor may have it.
const WAKE_TOKEN: u64 = Harvest::WAKE;
/// That of the listener, below the one of another plugin's descriptor; no other may have either. (Connections
/// have no index of 2^29 - 1.)
pub(crate) const LISTENER_TOKEN: u64 = Harvest::JOINED - 1;

/// What to be told about a descriptor, beside hang-up and errors: each arrival once (doorbells).
pub(crate) const EDGE_IN: EpollFlags = EpollFlags::EPOLLIN.union(EpollFlags::EPOLLET);
/// What to be told as long as it is so (sockets, pidfds).
pub(crate) const LEVEL_IN: EpollFlags = EpollFlags::EPOLLIN.union(EpollFlags::EPOLLRDHUP);

/// One epoll set and what it has told so far.
#[derive(Debug)]
pub(crate) struct SmWaiter {
    epoll: Epoll,
    wake: Doorbell,
    guard: &'static ForkGuard,
    harvest: Harvest,
    /// Whether its context sleeps for want of a word for a pin ([`crate::wake`]): whoever releases one wakes it.
    pub(crate) pins_wanted: AtomicU32,
}

impl SmWaiter {
    /// A set of its own, or the host's, with its wake-up eventfd: two descriptors.
    pub(crate) fn new(guest: Option<Guest>) -> Result<Self, Error> {
        let guard = guard()?;
        let (epoll, harvest) = match guest {
            Some(Guest { set, harvest }) => (Epoll(set), harvest),
            None => {
                let made = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC);
                (made.map_err(|e| os_error("epoll_create1", e))?, Harvest::new())
            }
        };
        let (wake, pins_wanted) = (Doorbell::new()?, AtomicU32::new(0));
        let waiter = Self { epoll, wake, guard, harvest, pins_wanted };
        waiter.add(waiter.wake.fd(), WAKE_TOKEN, EDGE_IN)?;
        Ok(waiter)
    }

    /// Watches a descriptor. Events carry `token`, which is none of those above.
    pub(crate) fn add(
        &self,
        fd: BorrowedFd<'_>,
        token: u64,
        interest: EpollFlags,
    ) -> Result<(), Error> {
        let added = self.epoll.add(fd, EpollEvent::new(interest, self.harvest.token(token)));
        added.map_err(|e| os_error("epoll_ctl", e))
    }

    /// Watches it no longer. Events that were harvested before may still be in the list.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) -> Result<(), Error> {
        self.epoll.delete(fd).map_err(|e| os_error("epoll_ctl", e))
    }

    /// Harvests without waiting: one system call. Not while another thread waits: it would take the
    /// events that are to end that wait ([`hg_na`]'s rule for `progress` is the same).
    pub(crate) fn poll(&self) -> Result<(), Error> {
        if self.collect(Some(Duration::ZERO))? {
            self.harvest.leave_wake();
        }
        Ok(())
    }

    /// Takes events out of the kernel, and keeps them; true when a wake-up was among them.
    fn collect(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        let mut events = [EpollEvent::empty(); EVENTS_MAX];
        match self.wait_in_kernel(&mut events, timeout) {
            Ok(count) => Ok(self.harvest(&events[..count])),
            Err(Errno::EINTR) => Ok(false),
            Err(error) => Err(os_error("epoll_wait", error)),
        }
    }

    /// Whether [`SmWaiter::take_ready`] would find something.
    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        self.harvest.has_any()
    }

    /// Moves what was harvested to the end of `into`. One load when there is nothing.
    #[inline]
    pub(crate) fn take_ready(&self, into: &mut Vec<Told>) {
        self.harvest.take(into);
    }

    /// Keeps events for their context; true when a wake-up was among them.
    fn harvest(&self, events: &[EpollEvent]) -> bool {
        self.harvest.keep(events.iter().map(told))
    }

    /// `epoll_wait` counts in milliseconds: what a wait has beyond whole ones is waited for on the set's own descriptor, to
    /// nanoseconds, and only if nothing has come until then.
    fn wait_in_kernel(
        &self,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        let whole = timeout.map_or(EpollTimeout::NONE, whole_milliseconds);
        let count = self.epoll.wait(events, whole)?;
        let rest = timeout.map_or(0, |timeout| timeout.subsec_nanos() % 1_000_000);
        if count > 0 || rest == 0 {
            return Ok(count);
        }
        let mut set = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
        let rest = TimeSpec::from_duration(Duration::from_nanos(rest.into()));
        match ppoll(&mut set, Some(rest), None) {
            // A signal ends a wait.
            Err(Errno::EINTR) => Err(Errno::EINTR),
            // It is refused where this process may have no descriptor at all (RLIMIT_NOFILE).
            waited => self.epoll.wait(events, u8::from(waited.is_err())),
        }
    }
}

impl Waiter for SmWaiter {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.0.as_fd())
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        if self.guard.is_child() {
            return Err(Error::Forked);
        }
        // What waits in the kernel is collected all the same: the caller may go by the descriptor.
        let timeout = if self.harvest.ends_wait() { Some(Duration::ZERO) } else { timeout };
        self.collect(timeout).map(drop)
    }

    fn wake(&self) {
        if !self.guard.is_child() {
            self.wake.ring();
        }
    }

    fn join(&self, other: BorrowedFd<'_>, ready: Arc<AtomicBool>) -> Result<(), Error> {
        self.harvest.join(ready)?;
        // Level-triggered: it ends waits until its owner has collected what made it readable.
        self.add(other, Harvest::JOINED, LEVEL_IN)
    }

    fn watch(&self, other: BorrowedFd<'_>, on: bool) -> Result<(), Error> {
        if self.guard.is_child() {
            return Err(Error::Forked);
        }
        if on { self.add(other, Harvest::JOINED, LEVEL_IN) } else { self.remove(other) }
    }
}

fn told(event: &EpollEvent) -> Told {
    let flags = event.events();
    Told {
        token: event.data(),
        readable: flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLPRI),
        writable: flags.contains(EpollFlags::EPOLLOUT),
        ending: flags
            .intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLERR),
    }
}

/// Those that a wait certainly has.
fn whole_milliseconds(timeout: Duration) -> EpollTimeout {
    EpollTimeout::try_from(timeout.as_millis()).unwrap_or(EpollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::Ordering, thread, time::Instant};

    use nix::{
        sys::wait::{WaitStatus, waitpid},
        unistd::{ForkResult, fork},
    };

    use super::*;

    const WATCHDOG: Option<Duration> = Some(Duration::from_secs(60));

    fn waiter() -> SmWaiter {
        SmWaiter::new(None).unwrap()
    }

    fn watching(interest: EpollFlags) -> (SmWaiter, Doorbell) {
        let (waiter, bell) = (waiter(), Doorbell::new().unwrap());
        waiter.add(bell.fd(), 7, interest).unwrap();
        (waiter, bell)
    }

    fn taken(waiter: &SmWaiter) -> Vec<u64> {
        let mut events = Vec::new();
        waiter.take_ready(&mut events);
        events.iter().map(|event| event.token).collect()
    }

    #[test]
    fn an_edge_is_told_once_for_each_ring_without_reading() {
        let (waiter, bell) = watching(EDGE_IN);
        for _ in 0..3 {
            bell.ring();
            waiter.wait(WATCHDOG).unwrap();
            assert_eq!(taken(&waiter), [7]);
            waiter.poll().unwrap();
            assert_eq!(taken(&waiter), [0_u64; 0]);
        }
    }

    #[test]
    #[expect(unsafe_code, reason = "fork(2), which a test of forking cannot do without")]
    fn a_forked_child_takes_no_event_from_its_parent() {
        let (waiter, bell) = watching(EDGE_IN);
        bell.ring();
        // SAFETY:
        // - the child asks the kernel, at most, and exits, without allocating or unwinding.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                let refused = matches!(waiter.wait(WATCHDOG), Err(Error::Forked));
                // SAFETY:
                // - ends the child at once, without running anything of the parent's.
                unsafe { nix::libc::_exit(i32::from(!refused)) }
            }
            ForkResult::Parent { child } => {
                assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
            }
        }
        waiter.wait(WATCHDOG).unwrap();
        assert_eq!(taken(&waiter), [7]);
    }

    #[test]
    fn a_level_is_told_again_and_again() {
        let (waiter, bell) = watching(LEVEL_IN);
        bell.ring();
        for _ in 0..2 {
            waiter.poll().unwrap();
            assert_eq!(taken(&waiter), [7]);
        }
        waiter.remove(bell.fd()).unwrap();
        waiter.poll().unwrap();
        assert!(!waiter.has_ready());
    }

    #[test]
    fn a_joined_descriptor_ends_waits_and_sets_its_flag_until_it_is_collected() {
        let ((waiter, own), (other, bell)) = (watching(EDGE_IN), watching(EDGE_IN));
        let flag = Arc::new(AtomicBool::new(false));
        waiter.join(other.fd().unwrap(), Arc::clone(&flag)).unwrap();
        assert!(waiter.join(other.fd().unwrap(), Arc::default()).is_err(), "only one is joined");
        for polls in [false, true] {
            bell.ring();
            for _ in 0..2 {
                if polls { waiter.poll() } else { waiter.wait(WATCHDOG) }.unwrap();
                assert!(flag.swap(false, Ordering::Acquire));
                assert!(!waiter.has_ready(), "it is no event of the context's own");
            }
            other.wait(Some(Duration::ZERO)).unwrap();
            assert_eq!(taken(&other), [7]);
            waiter.poll().unwrap();
            assert!(!flag.load(Ordering::Acquire), "nothing is left to be told");
        }
        own.ring();
        bell.ring();
        waiter.wait(WATCHDOG).unwrap();
        assert!(flag.load(Ordering::Acquire) && taken(&waiter) == [7]);
    }

    #[test]
    fn a_joined_descriptor_that_is_not_watched_says_nothing_until_it_is_watched_again() {
        let ((waiter, _), (other, bell)) = (watching(EDGE_IN), watching(EDGE_IN));
        let (flag, fd) = (Arc::new(AtomicBool::new(false)), other.fd().unwrap());
        waiter.join(fd, Arc::clone(&flag)).unwrap();
        waiter.watch(fd, false).unwrap();
        bell.ring();
        waiter.wait(Some(Duration::ZERO)).unwrap();
        assert!(!flag.load(Ordering::Acquire));
        waiter.watch(fd, true).unwrap();
        waiter.wait(WATCHDOG).unwrap();
        assert!(flag.load(Ordering::Acquire), "what came meanwhile is told");
    }

    #[test]
    fn a_guest_sleeps_in_its_hosts_set_and_keeps_what_it_takes_for_the_host() {
        let (host, set) = (Harvest::new(), Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap());
        let theirs = Doorbell::new().unwrap();
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        set.add(theirs.fd(), EpollEvent::new(flags, host.token(7))).unwrap();
        let guest = host.guest(set.0.try_clone().unwrap()).unwrap();
        let (waiter, bell) = (SmWaiter::new(Some(guest)).unwrap(), Doorbell::new().unwrap());
        waiter.add(bell.fd(), 7, EDGE_IN).unwrap();
        let start = Instant::now();
        for polls in [true, false] {
            for rung in [&bell, &theirs] {
                rung.ring();
                if polls { waiter.poll() } else { waiter.wait(WATCHDOG) }.unwrap();
                // It ends this wait, and any that comes before it is taken.
                waiter.wait(None).unwrap();
                let is_own = std::ptr::eq(rung, &bell);
                assert_eq!((waiter.has_ready(), host.has_any()), (is_own, !is_own));
                let mut told = Vec::new();
                if is_own {
                    waiter.take_ready(&mut told)
                } else {
                    host.take(&mut told)
                }
                assert!(told.len() == 1 && told[0].token == 7 && told[0].readable);
            }
        }
        waiter.wake();
        waiter.poll().unwrap();
        assert!(host.ends_wait(), "a wake that was collected ends the next wait of either");
        assert!(start.elapsed() < Duration::from_secs(60), "ended by events, not by the time");
    }

    #[test]
    fn a_wake_before_the_wait_ends_it_even_when_a_poll_took_its_event() {
        let waiter = waiter();
        let start = Instant::now();
        waiter.wake();
        waiter.wait(WATCHDOG).unwrap();
        waiter.wake();
        waiter.poll().unwrap();
        waiter.wait(WATCHDOG).unwrap();
        assert!(start.elapsed() < Duration::from_secs(60), "ended by the wake, not by the time");
    }

    #[test]
    fn a_wait_that_a_mark_or_a_kept_event_ends_collects_what_the_descriptor_told_of() {
        let (waiter, bell) = watching(EDGE_IN);
        let other = Doorbell::new().unwrap();
        waiter.add(other.fd(), 8, EDGE_IN).unwrap();
        for is_marked in [true, false] {
            if is_marked {
                waiter.wake()
            } else {
                other.ring()
            }
            waiter.poll().unwrap();
            bell.ring();
            waiter.wait(Some(Duration::ZERO)).unwrap();
            let expected: &[u64] = if is_marked { &[7] } else { &[8, 7] };
            assert_eq!(taken(&waiter), expected);
        }
    }

    #[test]
    fn events_that_were_harvested_and_not_taken_end_a_wait() {
        let (waiter, bell) = watching(EDGE_IN);
        bell.ring();
        waiter.poll().unwrap();
        waiter.wait(None).unwrap();
        assert_eq!(taken(&waiter), [7]);
    }

    #[test]
    fn every_wake_of_another_thread_ends_a_wait() {
        let waiter = Arc::new(waiter());
        let (turn, turns) = std::sync::mpsc::channel::<()>();
        let waker = Arc::clone(&waiter);
        let thread = thread::spawn(move || turns.iter().for_each(|()| waker.wake()));
        let start = Instant::now();
        for round in 0..200 {
            turn.send(()).unwrap();
            if round % 2 == 0 {
                waiter.poll().unwrap(); // Before the wake, or after it: both must do.
            }
            waiter.wait(WATCHDOG).unwrap();
        }
        assert!(start.elapsed() < Duration::from_secs(60), "ended by wakes, not by the time");
        drop(turn);
        thread.join().unwrap();
    }

    #[test]
    fn short_timeouts_end_and_never_early() {
        let waiter = waiter();
        for timeout in [1, 300, 1000, 1300].map(Duration::from_micros) {
            let start = Instant::now();
            waiter.wait(Some(timeout)).unwrap();
            assert!(start.elapsed() >= timeout);
        }
        assert_eq!(whole_milliseconds(Duration::MAX), EpollTimeout::MAX);
    }
}
