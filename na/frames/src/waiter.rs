//! What a context sleeps on: a wait set of the transport's descriptors, the listener and the lifelines.
//!
//! Level-triggered, but for the waker: the context asks the kernel itself for what concerns it, and what ends a wait is told to it again.
//! So nothing is kept for it ([`WaitSet`], in which another plugin's context may be a guest).

use std::{
    os::fd::BorrowedFd,
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::Duration,
};

use hg_na::{Error, Guest, Waiter};
use hg_na_memory::ForkGuard;
use hg_na_parts::{FREE_NAME, WaitSet, limits::os_error};
use nix::sys::epoll::EpollFlags;

use crate::steps::Steps;

/// The transport's descriptors.
const TRANSPORT: u64 = FREE_NAME;
/// Listeners.
pub const LISTENER: u64 = FREE_NAME - 1;
/// What tells of the device that the transport is over, if it has such a descriptor.
pub const DEVICE: u64 = FREE_NAME - 2;

/// A context's wait set.
#[derive(Debug)]
pub struct FramesWaiter {
    /// The descriptors.
    pub set: WaitSet,
    /// Where that is not all there is to wait for.
    steps: Option<Steps>,
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
        let steps = (!sleeps).then(Steps::default);
        let this = Self { set: WaitSet::new(guard, None)?, steps };
        transport.iter().try_for_each(|fd| this.add(*fd, TRANSPORT, EpollFlags::EPOLLIN))?;
        Ok(this)
    }

    /// Watches a descriptor; closing it ends that.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn add(&self, fd: BorrowedFd<'_>, name: u64, what: EpollFlags) -> Result<(), Error> {
        self.set.add(fd, name, what).map_err(|error| os_error("epoll_ctl", error))
    }

    /// Something has come, or is expected.
    #[inline]
    pub(crate) fn begins_again(&self) {
        if let Some(steps) = &self.steps {
            steps.begin_again();
        }
    }

    /// How long the kernel is to wait.
    fn step(&self, timeout: Option<Duration>) -> Option<Duration> {
        let Some(steps) = &self.steps else { return timeout };
        if timeout == Some(Duration::ZERO) {
            return timeout;
        }
        let step = timeout.unwrap_or(Duration::MAX).min(steps.next());
        if step.is_zero() {
            thread::yield_now();
        }
        Some(step)
    }

    /// Which descriptors have something now. The transport's and the waker's are left out. Says whether a wake was among it.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn ask(&self, told: &mut Vec<u64>) -> Result<bool, Error> {
        // What a guest has taken is told again, as long as it is so.
        self.set.take(&mut Vec::new());
        self.set.ask(|event| {
            if event.token != TRANSPORT {
                told.push(event.token);
            }
            false
        })
    }
}

impl Waiter for FramesWaiter {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.set.fd().filter(|_| self.steps.is_none())
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        let timeout = self.step(self.set.begin_wait(timeout)?);
        self.set.collect(timeout, |_| false).map(drop)
    }

    fn wake(&self) {
        self.set.wake();
    }

    fn host(&self) -> Result<Guest, Error> {
        self.set.host()
    }

    fn join(&self, other: BorrowedFd<'_>, ready: Arc<AtomicBool>) -> Result<(), Error> {
        self.set.join(other, ready)
    }
}
