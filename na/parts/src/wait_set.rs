//! What a context sleeps on: an epoll set, and a waker for other threads.
//!
//! Events are taken out of the kernel by whoever waits or asks. Another plugin's context may be a guest of the set
//! ([`hg_na::Harvest`], which has the protocol of wake-ups): its events are kept for it, and what it takes of this context's is kept
//! for this one. Of what is told to itself a context says whether it is kept: all of it, where descriptors are edge-triggered and so told
//! of once.
//!
//! A forked child shares the set with its parent: an event that it took out would be lost to the parent, which sleeps on.
//! So the child's copy neither waits nor wakes.

use std::{
    fmt, io,
    os::fd::{AsFd as _, BorrowedFd},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use hg_na::{Error, Guest, Harvest, Told, Waiter};
use hg_na_memory::ForkGuard;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        eventfd::{EfdFlags, EventFd},
        time::TimeSpec,
    },
};

use crate::limits::os_error;

/// Events taken out of the kernel at a time.
const EVENTS: usize = 128;
/// The last name that is free for what is no connection; those count from 0.
pub const FREE_NAME: u64 = Harvest::JOINED - 1;

/// A context's wait set.
pub struct WaitSet {
    epoll: Epoll,
    waker: EventFd,
    guard: Arc<ForkGuard>,
    harvest: Harvest,
}

impl WaitSet {
    /// A set of its own, or that of a host, to which the waker is added under the name [`Harvest::WAKE`].
    ///
    /// # Errors
    /// [`Error::Os`], [`Error::Limit`].
    pub fn new(guard: Arc<ForkGuard>, guest: Option<Guest>) -> Result<Self, Error> {
        let own = || Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(os("epoll_create1"));
        let (epoll, harvest) = match guest {
            Some(Guest { set, harvest }) => (Epoll(set), harvest),
            None => (own()?, Harvest::new()),
        };
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let waker = EventFd::from_value_and_flags(0, flags).map_err(os("eventfd"))?;
        let this = Self { epoll, waker, guard, harvest };
        let added =
            this.add(this.waker.as_fd(), Harvest::WAKE, EpollFlags::EPOLLIN | EpollFlags::EPOLLET);
        added.map_err(|error| os_error("epoll_ctl", error))?;
        Ok(this)
    }

    /// Watches a descriptor; closing it ends that.
    ///
    /// # Errors
    /// The system's.
    pub fn add(&self, fd: BorrowedFd<'_>, name: u64, what: EpollFlags) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(what, self.harvest.token(name)))?)
    }

    /// Changes what a descriptor is watched for.
    ///
    /// # Errors
    /// The system's.
    pub fn change(&self, fd: BorrowedFd<'_>, name: u64, what: EpollFlags) -> io::Result<()> {
        Ok(self.epoll.modify(fd, &mut EpollEvent::new(what, self.harvest.token(name)))?)
    }

    /// Watches a descriptor no more.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        // It fails only where it was not watched.
        let _ = self.epoll.delete(fd);
    }

    /// Whether events were kept for the context.
    #[inline]
    #[must_use]
    pub fn has_told(&self) -> bool {
        self.harvest.has_any()
    }

    /// Moves the events that were kept for the context to the end of `into`.
    pub fn take(&self, into: &mut Vec<Told>) {
        self.harvest.take(into);
    }

    /// Asks the kernel without blocking, while nobody waits. `keeps`: which events of the context's own are kept for it. Says whether a
    /// wake was among them.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn ask(&self, keeps: impl FnMut(&Told) -> bool) -> Result<bool, Error> {
        let is_woken = self.collect(Some(Duration::ZERO), keeps)?;
        if is_woken {
            self.harvest.leave_wake();
        }
        Ok(is_woken)
    }

    /// How long a wait that begins now may last, of those that are asked for with `timeout`: what was told already ends it at once. What waits
    /// in the kernel is collected all the same, since the caller may go by the descriptor.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn begin_wait(&self, timeout: Option<Duration>) -> Result<Option<Duration>, Error> {
        if self.guard.is_child() {
            return Err(Error::Forked);
        }
        Ok(if self.harvest.ends_wait() { Some(Duration::ZERO) } else { timeout })
    }

    /// One wait in the kernel, that [`WaitSet::begin_wait`] has allowed; `keeps` and what it says are those of [`WaitSet::ask`].
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn collect(
        &self,
        timeout: Option<Duration>,
        mut keeps: impl FnMut(&Told) -> bool,
    ) -> Result<bool, Error> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.wait_in_kernel(&mut events, timeout) {
            Err(Errno::EINTR) => 0,
            other => other.map_err(os("epoll_wait"))?,
        };
        let is_kept = |told: &Told| {
            let own = told.token ^ self.harvest.token(0);
            let is_harvests = own & Harvest::GUEST != 0 || own >= Harvest::JOINED;
            is_harvests || keeps(told)
        };
        Ok(self.harvest.keep(events[..count].iter().map(told).filter(is_kept)))
    }

    /// `epoll_wait` counts in milliseconds: what a wait has beyond whole ones is waited for on the set's own descriptor, to
    /// nanoseconds, and only if nothing has come until then.
    fn wait_in_kernel(
        &self,
        events: &mut [EpollEvent],
        timeout: Option<Duration>,
    ) -> Result<usize, Errno> {
        let Some(timeout) = timeout else { return self.epoll.wait(events, EpollTimeout::NONE) };
        let whole = EpollTimeout::try_from(timeout.as_millis()).unwrap_or(EpollTimeout::MAX);
        let rest = Duration::from_nanos((timeout.subsec_nanos() % 1_000_000).into());
        if rest.is_zero() || whole != EpollTimeout::ZERO {
            let count = self.epoll.wait(events, whole)?;
            if count > 0 || rest.is_zero() {
                return Ok(count);
            }
        }
        let mut set = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut set, Some(TimeSpec::from_duration(rest)), None) {
            // A signal ends a wait.
            Err(Errno::EINTR) => Err(Errno::EINTR),
            // It is refused where this process may have no descriptor at all (RLIMIT_NOFILE).
            waited => self.epoll.wait(events, u8::from(waited.is_err())),
        }
    }
}

impl Waiter for WaitSet {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.0.as_fd())
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let timeout = self.begin_wait(timeout)?;
        self.collect(timeout, |_| true).map(drop)
    }

    fn wake(&self) {
        if !self.guard.is_child() {
            // It fails only when the count is full, after 2^64 wakes.
            let _ = self.waker.write(1);
        }
    }

    fn host(&self) -> Result<Guest, Error> {
        let set = self.epoll.0.as_fd().try_clone_to_owned();
        self.harvest.guest(set.map_err(|error| os_error("dup", error))?)
    }

    fn join(&self, other: BorrowedFd<'_>, ready: Arc<AtomicBool>) -> Result<(), Error> {
        self.harvest.join(ready)?;
        // Level-triggered: it ends waits until its owner has collected what made it readable.
        let added = self.add(other, Harvest::JOINED, EpollFlags::EPOLLIN);
        added.map_err(|error| os_error("epoll_ctl", error))
    }

    fn watch(&self, other: BorrowedFd<'_>, on: bool) -> Result<(), Error> {
        if self.guard.is_child() {
            return Err(Error::Forked);
        }
        if !on {
            self.remove(other);
            return Ok(());
        }
        let added = self.add(other, Harvest::JOINED, EpollFlags::EPOLLIN);
        added.map_err(|error| os_error("epoll_ctl", error))
    }
}

impl fmt::Debug for WaitSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "WaitSet(told: {})", self.has_told())
    }
}

fn told(event: &EpollEvent) -> Told {
    let flags = event.events();
    let ends = EpollFlags::EPOLLHUP | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLERR;
    Told {
        token: event.data(),
        readable: flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLPRI),
        writable: flags.contains(EpollFlags::EPOLLOUT),
        ending: flags.intersects(ends),
    }
}

fn os(call: &'static str) -> impl Fn(Errno) -> Error {
    move |error| os_error(call, error)
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, os::unix::net::UnixStream, sync::atomic::Ordering, time::Instant};

    use nix::{
        libc,
        sys::wait::{WaitStatus, waitpid},
        unistd::{ForkResult, fork},
    };

    use super::*;

    const WATCHDOG: Option<Duration> = Some(Duration::from_secs(60));

    const EDGE_IN: EpollFlags = EpollFlags::EPOLLIN.union(EpollFlags::EPOLLET);

    fn waiter() -> WaitSet {
        guest_of(None)
    }

    fn guest_of(host: Option<Guest>) -> WaitSet {
        WaitSet::new(Arc::new(ForkGuard::new().unwrap()), host).unwrap()
    }

    fn taken(waiter: &WaitSet) -> Vec<u64> {
        let mut told = Vec::new();
        waiter.take(&mut told);
        told.iter().map(|it| it.token).collect()
    }

    /// Keeps all, as a wait does.
    fn ask(waiter: &WaitSet) {
        waiter.ask(|_| true).unwrap();
    }

    #[test]
    #[expect(unsafe_code, reason = "fork(2), which a test of forking cannot do without")]
    fn a_forked_child_takes_no_event_from_its_parent() {
        let waiter = waiter();
        let (own, mut far) = UnixStream::pair().unwrap();
        waiter.add(own.as_fd(), 7, EDGE_IN).unwrap();
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
        ask(&waiter);
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
        ask(&waiter);
        waiter.wait(WATCHDOG).unwrap();
        assert!(start.elapsed() < Duration::from_secs(60), "ended by wakes, not by the time");
    }

    #[test]
    fn what_its_context_does_not_keep_ends_a_wait_and_is_told_again_as_long_as_it_is_so() {
        let waiter = waiter();
        let (own, mut far) = UnixStream::pair().unwrap();
        waiter.add(own.as_fd(), 7, EpollFlags::EPOLLIN).unwrap();
        far.write_all(b"told again").unwrap();
        for _ in 0..2 {
            let mut told = Vec::new();
            let is_woken = waiter.collect(WATCHDOG, |it| {
                told.push(it.token);
                false
            });
            assert!(!is_woken.unwrap() && told == [7] && !waiter.has_told());
        }
        waiter.remove(own.as_fd());
        assert!(!waiter.ask(|_| true).unwrap() && !waiter.has_told());
    }

    #[test]
    fn a_joined_descriptor_ends_waits_and_sets_its_flag_until_it_is_collected() {
        let (waiter, other) = (waiter(), waiter());
        let ready = Arc::new(AtomicBool::new(false));
        waiter.join(other.fd().unwrap(), Arc::clone(&ready)).unwrap();
        assert!(waiter.join(other.fd().unwrap(), Arc::default()).is_err(), "only one is joined");
        other.wake();
        for asks in [true, false] {
            if asks {
                ask(&waiter);
            } else {
                waiter.wait(WATCHDOG).unwrap();
            }
            assert!(ready.swap(false, Ordering::Acquire));
            assert!(!waiter.has_told(), "it is no event of the context's own");
        }
        other.wait(Some(Duration::ZERO)).unwrap();
        ask(&waiter);
        assert!(!ready.load(Ordering::Acquire), "nothing is left to be told");
    }

    #[test]
    fn a_joined_descriptor_that_is_not_watched_says_nothing_until_it_is_watched_again() {
        let (waiter, other) = (waiter(), waiter());
        let (ready, fd) = (Arc::new(AtomicBool::new(false)), other.fd().unwrap());
        waiter.join(fd, Arc::clone(&ready)).unwrap();
        waiter.watch(fd, false).unwrap();
        other.wake();
        waiter.wait(Some(Duration::ZERO)).unwrap();
        assert!(!ready.load(Ordering::Acquire));
        waiter.watch(fd, true).unwrap();
        waiter.wait(WATCHDOG).unwrap();
        assert!(ready.load(Ordering::Acquire), "what came meanwhile is told");
    }

    #[test]
    fn a_wait_that_a_mark_or_a_kept_event_ends_collects_what_the_descriptor_told_of() {
        let waiter = waiter();
        let bells = [7, 8].map(|name| {
            let bell = EventFd::new().unwrap();
            waiter.add(bell.as_fd(), name, EDGE_IN).unwrap();
            bell
        });
        for is_marked in [true, false] {
            if is_marked {
                waiter.wake();
            } else {
                bells[1].write(1).unwrap();
            }
            ask(&waiter);
            bells[0].write(1).unwrap();
            waiter.wait(Some(Duration::ZERO)).unwrap();
            let expected: &[u64] = if is_marked { &[7] } else { &[8, 7] };
            assert_eq!(taken(&waiter), expected, "each ring once, though nobody reads");
        }
    }

    #[test]
    fn a_guest_sleeps_in_its_hosts_set_and_keeps_what_it_takes_for_the_host() {
        let host = waiter();
        let guest = guest_of(Some(host.host().unwrap()));
        let [theirs, own] = [0, 1].map(|_| EventFd::new().unwrap());
        host.add(theirs.as_fd(), 7, EDGE_IN).unwrap();
        guest.add(own.as_fd(), 7, EDGE_IN).unwrap();
        let start = Instant::now();
        for asks in [true, false] {
            for is_own in [true, false] {
                let rung = if is_own { &own } else { &theirs };
                rung.write(1).unwrap();
                if asks {
                    ask(&guest);
                } else {
                    guest.wait(WATCHDOG).unwrap();
                }
                // It ends this wait, and any that comes before it is taken.
                guest.wait(None).unwrap();
                assert_eq!((guest.has_told(), host.has_told()), (is_own, !is_own));
                assert_eq!(taken(if is_own { &guest } else { &host }), [7]);
            }
        }
        guest.wake();
        ask(&guest);
        assert_eq!(
            host.begin_wait(WATCHDOG).unwrap(),
            Some(Duration::ZERO),
            "either's next wait ends"
        );
        assert!(start.elapsed() < Duration::from_secs(60), "ended by events, not by the time");
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
                ask(&waiter);
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
        let (own, mut far) = UnixStream::pair().unwrap();
        let (other, mut beyond) = UnixStream::pair().unwrap();
        waiter.epoll.add(&own, EpollEvent::new(EDGE_IN, harvest.token(7))).unwrap();
        waiter.add(other.as_fd(), 7, EDGE_IN).unwrap();
        let start = Instant::now();
        for asks in [true, false] {
            far.write_all(b"guest").unwrap();
            if asks {
                ask(&waiter);
            } else {
                waiter.wait(WATCHDOG).unwrap();
            }
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
        ask(&waiter);
        assert!(waiter.has_told(), "its context is looked at");
        waiter.take(&mut Vec::new());
        assert!(harvest.ends_wait() && !harvest.ends_wait(), "a wake that was collected ends one");
        drop(set);
        assert!(start.elapsed() < Duration::from_secs(60), "ended by events, not by the time");
    }

    #[test]
    fn short_timeouts_end_and_never_early() {
        let waiter = waiter();
        for timeout in [1, 300, 1000, 1300].map(Duration::from_micros) {
            let start = Instant::now();
            waiter.wait(Some(timeout)).unwrap();
            assert!(start.elapsed() >= timeout);
        }
    }
}
