//! One sleep for both: the network's descriptor stands in the local plugin's wait set.

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use hg_na::{Error, Waiter};

/// What a context of both sleeps on.
#[derive(Debug)]
pub(crate) struct RouteWaiter {
    local: Arc<dyn Waiter>,
    network: Arc<dyn Waiter>,
    /// Set by the local waiter when the network's descriptor is readable; `None` where it cannot watch it.
    ready: Option<Arc<AtomicBool>>,
}

impl RouteWaiter {
    /// Joins both where `joins` says that it can be done.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn new(
        local: Arc<dyn Waiter>,
        network: Arc<dyn Waiter>,
        joins: bool,
    ) -> Result<Self, Error> {
        let mut ready = None;
        if joins && let Some(fd) = network.fd() {
            let flag = Arc::new(AtomicBool::new(false));
            local.join(fd, Arc::clone(&flag))?;
            ready = Some(flag);
        }
        Ok(Self { local, network, ready })
    }

    /// Whether one sleep is for both.
    pub(crate) fn is_joined(&self) -> bool {
        self.ready.is_some()
    }

    /// Whether the network's descriptor was readable when the kernel was last asked.
    #[inline]
    pub(crate) fn network_is_ready(&self) -> bool {
        // Acquire: pairs with the store of the local waiter.
        self.ready.as_ref().is_some_and(|ready| ready.load(Ordering::Acquire))
    }

    /// Has the local waiter watch the network's descriptor, or not.
    ///
    /// # Errors
    /// The local waiter's; nothing has changed then.
    pub(crate) fn watch(&self, on: bool) -> Result<(), Error> {
        self.network.fd().map_or(Ok(()), |fd| self.local.watch(fd, on))
    }

    /// Collects what made it readable.
    ///
    /// # Errors
    /// The network's.
    pub(crate) fn collect(&self) -> Result<(), Error> {
        if let Some(ready) = &self.ready {
            // Before the look at the kernel, so that what comes after it is told again.
            ready.store(false, Ordering::Release);
        }
        self.network.wait(Some(Duration::ZERO))
    }
}

impl Waiter for RouteWaiter {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.ready.as_ref().and_then(|_| self.local.fd())
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        if self.is_joined() {
            // What was told of the network is collected by the progress that follows.
            self.local.wait(timeout)
        } else {
            // It must be polled: returning early is always allowed.
            Ok(())
        }
    }

    fn wake(&self) {
        self.local.wake();
    }
}
