//! What a context sleeps on: an epoll set of the transport's descriptors, the listener, the lifelines and a waker.
//!
//! Level-triggered, but for the waker: the context asks the kernel itself for what concerns it, and what ends a wait is told to it again. Another plugin's
//! context may be a guest of the set ([`hg_na::Harvest`], which has the protocol of wake-ups): its events are told once, so whoever takes them keeps
//! them for it; and what it takes of this context's is kept for this one.
//!
//! A forked child shares the set: an event that it took would be lost to its parent. So the child's copy neither waits nor wakes.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use hg_na::{Error, Guest, Harvest, Told, Waiter};
use hg_na_memory::ForkGuard;
use hg_na_parts::limits::{self, os_error};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        eventfd::{EfdFlags, EventFd},
        time::TimeSpec,
    },
};

use crate::steps::Steps;

/// Events taken from the kernel at a time.
const EVENTS: usize = 64;
/// The waker's name; connections count from 0.
const WAKE: u64 = Harvest::WAKE;
/// The transport's descriptors.
const TRANSPORT: u64 = WAKE - 1;
/// Listeners.
pub const LISTENER: u64 = WAKE - 2;
/// What tells of the device that the transport is over, if it has such a descriptor.
pub const DEVICE: u64 = WAKE - 3;
/// Descriptors of other plugins count down from here.
const JOINED: u64 = WAKE - 16;
const JOINED_MAX: usize = 8;

/// A context's wait set.
pub struct FramesWaiter {
    epoll: Epoll,
    waker: EventFd,
    harvest: Harvest,
    guard: Arc<ForkGuard>,
    /// Where that is not all there is to wait for.
    steps: Option<Steps>,
    joined: std::sync::Mutex<Vec<Arc<AtomicBool>>>,
}

impl FramesWaiter {
    /// A set that holds what the transport is waited on with. `sleeps`: that is all there is to wait for; else a wait ends
    /// by itself, in growing steps.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn new(
        guard: Arc<ForkGuard>,
        transport: &[BorrowedFd<'_>],
        sleeps: bool,
    ) -> Result<Self, Error> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(os("epoll_create1"))?;
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let waker = EventFd::from_value_and_flags(0, flags).map_err(os("eventfd"))?;
        let steps = (!sleeps).then(Steps::default);
        let (harvest, joined) = (Harvest::new(), std::sync::Mutex::default());
        let this = Self { epoll, waker, harvest, guard, steps, joined };
        this.add(this.waker.as_fd(), WAKE, EpollFlags::EPOLLIN | EpollFlags::EPOLLET)?;
        transport.iter().try_for_each(|fd| this.add(*fd, TRANSPORT, EpollFlags::EPOLLIN))?;
        Ok(this)
    }

    /// Watches a descriptor; closing it ends that.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn add(&self, fd: BorrowedFd<'_>, name: u64, what: EpollFlags) -> Result<(), Error> {
        self.epoll.add(fd, EpollEvent::new(what, name)).map_err(os("epoll_ctl"))
    }

    /// Changes what a descriptor is watched for.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn change(&self, fd: BorrowedFd<'_>, name: u64, what: EpollFlags) -> Result<(), Error> {
        self.epoll.modify(fd, &mut EpollEvent::new(what, name)).map_err(os("epoll_ctl"))
    }

    /// Watches a descriptor no more.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        // It fails only where it was not watched.
        let _ = self.epoll.delete(fd);
    }

    /// Something has come, or is expected.
    #[inline]
    pub(crate) fn begins_again(&self) {
        if let Some(steps) = &self.steps {
            steps.begin_again();
        }
    }

    /// How long the kernel is to wait, of which a short step is over already.
    fn step(&self, timeout: Option<Duration>) -> Option<Duration> {
        let Some(steps) = &self.steps else { return timeout };
        if timeout == Some(Duration::ZERO) {
            return timeout;
        }
        let step = timeout.unwrap_or(Duration::MAX).min(steps.next());
        if step.is_zero() {
            thread::yield_now();
        } else if step < Duration::from_millis(1) {
            let mut set = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
            // Interrupted, or whatever else is wrong: the step was a shorter one.
            let _ended = ppoll(&mut set, Some(TimeSpec::from_duration(step)), None);
            return Some(Duration::ZERO);
        }
        Some(step)
    }

    /// Takes events out of the kernel: hands this context's to `own`, but for the transport's; keeps a guest's. Says whether a wake was among them.
    fn collect(
        &self,
        timeout: EpollTimeout,
        mut own: impl FnMut(u64, EpollFlags),
    ) -> Result<bool, Error> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.epoll.wait(&mut events, timeout) {
            Err(Errno::EINTR) => 0,
            other => other.map_err(os("epoll_wait"))?,
        };
        let shared = events[..count].iter().filter(|event| {
            let name = event.data();
            let is_shared = name == WAKE || name & Harvest::GUEST != 0;
            if !is_shared {
                self.sort(name, event.events(), &mut own);
            }
            is_shared
        });
        Ok(self.harvest.keep(shared.map(told)))
    }

    /// One of this context's own events.
    fn sort(&self, name: u64, flags: EpollFlags, own: &mut impl FnMut(u64, EpollFlags)) {
        match name {
            WAKE | TRANSPORT => {}
            name if is_joined(name) => self.rang(name),
            name => own(name, flags),
        }
    }

    /// Whether a guest has taken something of this context's out of the kernel.
    #[inline]
    pub(crate) fn has_told(&self) -> bool {
        self.harvest.has_any()
    }

    /// Which descriptors have something now. The transport's and the waker's are left out. Says whether a wake was among it.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn ask(&self, told: &mut Vec<(u64, EpollFlags)>) -> Result<bool, Error> {
        // What a guest has taken is told again, as long as it is so.
        self.harvest.take(&mut Vec::new());
        let is_woken = self.collect(EpollTimeout::ZERO, |name, flags| told.push((name, flags)))?;
        if is_woken {
            self.harvest.leave_wake();
        }
        Ok(is_woken)
    }

    fn rang(&self, name: u64) {
        let joined = self.joined.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let place = usize::try_from(JOINED - name).ok();
        if let Some(ready) = place.and_then(|place| joined.get(place)) {
            // Release: whoever sees it finds what the kernel has told of.
            ready.store(true, Ordering::Release);
        }
    }
}

impl Waiter for FramesWaiter {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.steps.is_none().then(|| self.epoll.0.as_fd())
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        if self.guard.is_child() {
            return Err(Error::Forked);
        }
        let timeout = if self.harvest.ends_wait() { Some(Duration::ZERO) } else { timeout };
        let timeout = match self.step(timeout) {
            None => EpollTimeout::NONE,
            // Whole milliseconds, upwards: a wait that ends too early would be asked for again and again.
            Some(time) => {
                let rounded = time.saturating_add(Duration::from_nanos(999_999));
                let most = i32::MAX.unsigned_abs().into();
                let millis = rounded.as_millis().min(most);
                EpollTimeout::try_from(i32::try_from(millis).unwrap_or(i32::MAX))
                    .unwrap_or(EpollTimeout::NONE)
            }
        };
        self.collect(timeout, |_, _| {}).map(drop)
    }

    fn wake(&self) {
        if !self.guard.is_child() {
            // It fails only when the count is full, after 2^64 wakes.
            let _ = self.waker.write(1);
        }
    }

    fn host(&self) -> Result<Guest, Error> {
        let set = self.epoll.0.as_fd().try_clone_to_owned();
        self.harvest.guest(set.map_err(|error| limits::os_error("dup", error))?)
    }

    fn join(&self, other: BorrowedFd<'_>, ready: Arc<AtomicBool>) -> Result<(), Error> {
        let mut joined = self.joined.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if joined.len() >= JOINED_MAX {
            let (what, limit) = ("descriptors of other plugins", JOINED_MAX as u64);
            return Err(Error::Limit { what, limit, remedy: "join fewer" });
        }
        self.add(other, JOINED - joined.len() as u64, EpollFlags::EPOLLIN)?;
        joined.push(ready);
        Ok(())
    }
}

/// Whether an event is of a descriptor of another plugin.
fn is_joined(name: u64) -> bool {
    name <= JOINED && JOINED - name < JOINED_MAX as u64
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

impl fmt::Debug for FramesWaiter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "FramesWaiter(sleeps: {})", self.steps.is_none())
    }
}
