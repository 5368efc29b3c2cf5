//! What a context sleeps on: an epoll set of the transport's descriptors, the listener, the lifelines and a waker.
//!
//! Level-triggered throughout: waiting consumes nothing but wakes, so that the context and a waiting thread never
//! take events from each other. A wake is taken by whoever waits: in a forked child, which shares the set, that would be one of
//! its parent's. So the child's copy neither waits nor wakes.

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

use hg_na::{Error, Waiter};
use hg_na_memory::ForkGuard;
use hg_na_parts::limits::os_error;
use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        eventfd::{EfdFlags, EventFd},
    },
};

use crate::steps::Steps;

/// Events taken from the kernel at a time.
const EVENTS: usize = 64;
/// The waker's name; connections count from 0.
const WAKE: u64 = u64::MAX;
/// The transport's descriptors.
const TRANSPORT: u64 = u64::MAX - 1;
/// Listeners.
pub const LISTENER: u64 = u64::MAX - 2;
/// What tells of the device that the transport is over, if it has such a descriptor.
pub const DEVICE: u64 = u64::MAX - 3;
/// Descriptors of other plugins count down from here.
const JOINED: u64 = u64::MAX - 16;
const JOINED_MAX: usize = 8;

/// A context's wait set.
pub struct FramesWaiter {
    epoll: Epoll,
    waker: EventFd,
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
        let this = Self { epoll, waker, guard, steps, joined: std::sync::Mutex::default() };
        this.add(this.waker.as_fd(), WAKE, EpollFlags::EPOLLIN)?;
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
        let step = timeout.unwrap_or(Duration::MAX).min(steps.next());
        if step.is_zero() {
            thread::yield_now();
        } else if step < Duration::from_millis(1) {
            thread::sleep(step);
            return Some(Duration::ZERO);
        }
        Some(step)
    }

    /// Which descriptors have something now. The transport's and the waker's are left out.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn ask(&self, told: &mut Vec<(u64, EpollFlags)>) -> Result<(), Error> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.epoll.wait(&mut events, EpollTimeout::ZERO) {
            Err(Errno::EINTR) => 0,
            other => other.map_err(os("epoll_wait"))?,
        };
        for event in &events[..count] {
            match event.data() {
                WAKE | TRANSPORT => {}
                name if is_joined(name) => self.rang(name),
                name => told.push((name, event.events())),
            }
        }
        Ok(())
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
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.epoll.wait(&mut events, timeout) {
            Err(Errno::EINTR) => 0,
            other => other.map_err(os("epoll_wait"))?,
        };
        for event in &events[..count] {
            match event.data() {
                // Nothing to read is as good: another thread has taken the wake in its own wait.
                WAKE => drop(self.waker.read()),
                name if is_joined(name) => self.rang(name),
                _ => {}
            }
        }
        Ok(())
    }

    fn wake(&self) {
        if !self.guard.is_child() {
            // It fails only when the count is full, and then it is readable.
            let _ = self.waker.write(1);
        }
    }

    fn join(&self, other: BorrowedFd<'_>, ready: Arc<AtomicBool>) -> Result<(), Error> {
        if self.steps.is_some() {
            return Err(Error::Unsupported("sleeping with a provider that has nothing to wait on"));
        }
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

fn os(call: &'static str) -> impl Fn(Errno) -> Error {
    move |error| os_error(call, error)
}

impl fmt::Debug for FramesWaiter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "FramesWaiter(sleeps: {})", self.steps.is_none())
    }
}
