//! What the contexts of one domain share.

use std::{
    mem,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use hg_na::{Address, Error};
use hg_na_frames::{Common, Listener};

use crate::{
    address::address_of,
    card::{Device, Hub},
};

/// What the contexts of one domain share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) common: Arc<Common>,
    pub(crate) signal_every: u32,
    /// Shorter transfers travel in frames.
    pub(crate) rma_from: u64,
    pub(crate) device: Arc<Device>,
    /// Where contexts share queue pairs: what those have that are open.
    pub(crate) hub: Option<Mutex<Weak<Hub>>>,
    /// Where context 0 takes its lifelines; each other one has a port of its own.
    pub(crate) home: SocketAddr,
    /// Opened with the domain, for context 0: so that whatever is wrong shows then.
    pub(crate) first: Mutex<Option<(Arc<Hub>, Listener)>>,
}

impl Shared {
    /// Where lifelines come from, too.
    pub(crate) fn ip(&self) -> IpAddr {
        self.home.ip()
    }

    /// For one more context.
    ///
    /// # Errors
    /// As [`Hub::open`].
    pub(crate) fn hub(&self) -> Result<Arc<Hub>, Error> {
        let open = || Hub::open(&self.device, (self.signal_every, self.hub.is_some()));
        let Some(shared) = &self.hub else { return open() };
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hub) = shared.upgrade() {
            return Ok(hub);
        }
        let hub = open()?;
        *shared = Arc::downgrade(&hub);
        Ok(hub)
    }

    pub(crate) fn address(&self, place: SocketAddr) -> Result<Address, Error> {
        let found = &self.device.found;
        address_of((&found.device, found.port), place)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.common.guard.is_child() {
            // What the parent has of the card is not ours to free: its descriptors are shared.
            mem::forget(self.first.get_mut().unwrap_or_else(PoisonError::into_inner).take());
            mem::forget(Arc::clone(&self.device));
        }
    }
}
