//! One sleep for both: in one wait set, which the network's context owns and the local one lodges in, or in the local
//! plugin's own, which watches the network's. A network that sleeps in steps watches the local plugin's instead: nobody tells of
//! what comes by such a one, so it is looked at in each round, and after each step.

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use hg_na::{Error, Harvest, Waiter};

/// What a context of both sleeps on.
#[derive(Debug)]
pub(crate) struct RouteWaiter {
    local: Arc<dyn Waiter>,
    bond: Bond,
}

/// How a sleep on the local waiter is one on the network's, too.
#[derive(Debug)]
enum Bond {
    /// It is not: both must be polled.
    None,
    /// Both have their descriptors in one set.
    Shared(Harvest),
    /// The network's set stands in the local one; the flag is set by the local waiter when it is readable.
    Joined(Arc<dyn Waiter>, Arc<AtomicBool>),
    /// The local set stands in the network's, whose sleeps end by themselves.
    Stepped(Arc<dyn Waiter>),
}

impl RouteWaiter {
    /// Of a local waiter that sleeps in the network's set, where this is kept of what comes.
    pub(crate) fn shared(local: Arc<dyn Waiter>, harvest: Harvest) -> Self {
        Self { local, bond: Bond::Shared(harvest) }
    }

    /// Has the local waiter watch the network's.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(crate) fn joined(local: Arc<dyn Waiter>, network: Arc<dyn Waiter>) -> Result<Self, Error> {
        let bond = match network.fd() {
            None => Bond::None,
            Some(fd) => {
                let ready = Arc::new(AtomicBool::new(false));
                local.join(fd, Arc::clone(&ready))?;
                Bond::Joined(network, ready)
            }
        };
        Ok(Self { local, bond })
    }

    /// Has the waiter of a network that sleeps in steps watch the local one.
    ///
    /// # Errors
    /// The network's.
    pub(crate) fn stepped(local: Arc<dyn Waiter>, network: Arc<dyn Waiter>) -> Result<Self, Error> {
        if let Some(fd) = local.fd() {
            // After each sleep the local one collects, whatever has ended it.
            network.join(fd, Arc::default())?;
        }
        Ok(Self { local, bond: Bond::Stepped(network) })
    }

    /// Nobody can sleep.
    pub(crate) fn polled(local: Arc<dyn Waiter>) -> Self {
        Self { local, bond: Bond::None }
    }

    /// Whether a sleep is one for both.
    pub(crate) fn sleeps(&self) -> bool {
        !matches!(self.bond, Bond::None)
    }

    /// Whether the local waiter, asking the kernel, is told what comes for the network.
    pub(crate) fn is_joined(&self) -> bool {
        matches!(self.bond, Bond::Shared(_) | Bond::Joined(..))
    }

    /// Whether it is in a set that both have.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.bond, Bond::Shared(_))
    }

    /// Whether the kernel had something for the network when it was last asked.
    #[inline]
    pub(crate) fn network_is_ready(&self) -> bool {
        match &self.bond {
            Bond::None | Bond::Stepped(_) => false,
            Bond::Shared(harvest) => harvest.host_has_any(),
            // Acquire: pairs with the store of the local waiter.
            Bond::Joined(_, ready) => ready.load(Ordering::Acquire),
        }
    }

    /// Whether the network, asking the kernel, was told something for the local plugin.
    #[inline]
    pub(crate) fn local_is_ready(&self) -> bool {
        match &self.bond {
            Bond::Shared(harvest) => harvest.has_any(),
            Bond::None | Bond::Joined(..) | Bond::Stepped(_) => false,
        }
    }

    /// Has the local waiter watch the network's descriptor, or not. In a set of both it costs nothing to be watched.
    ///
    /// # Errors
    /// The local waiter's; nothing has changed then.
    pub(crate) fn watch(&self, on: bool) -> Result<(), Error> {
        match &self.bond {
            Bond::None | Bond::Shared(_) | Bond::Stepped(_) => Ok(()),
            Bond::Joined(network, _) => network.fd().map_or(Ok(()), |fd| self.local.watch(fd, on)),
        }
    }

    /// Collects what made the network's descriptor readable, where that is to be done.
    ///
    /// # Errors
    /// The network's.
    pub(crate) fn collect(&self) -> Result<(), Error> {
        match &self.bond {
            Bond::None | Bond::Shared(_) | Bond::Stepped(_) => Ok(()),
            Bond::Joined(network, ready) => {
                // Before the look at the kernel, so that what comes after it is told again.
                ready.store(false, Ordering::Release);
                network.wait(Some(Duration::ZERO))
            }
        }
    }
}

impl Waiter for RouteWaiter {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        if self.is_joined() { self.local.fd() } else { None }
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<(), Error> {
        match &self.bond {
            // It must be polled: returning early is always allowed.
            Bond::None => Ok(()),
            // What was told of the network is its context's to take in the progress that follows.
            Bond::Shared(_) | Bond::Joined(..) => self.local.wait(timeout),
            Bond::Stepped(network) => {
                network.wait(timeout)?;
                self.local.wait(Some(Duration::ZERO))
            }
        }
    }

    fn wake(&self) {
        match &self.bond {
            Bond::Stepped(network) => network.wake(),
            Bond::None | Bond::Shared(_) | Bond::Joined(..) => self.local.wake(),
        }
    }
}
