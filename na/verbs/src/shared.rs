//! What the contexts of one domain share.

use std::{
    mem,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use hg_na::{Address, Caps, Error};
use hg_na_memory::ForkGuard;
use hg_na_parts::regions::Regions;

use crate::{
    address::address_of,
    card::{Device, Endpoint},
    lifeline::Listener,
    settings::Settings,
};

/// What the contexts of one domain share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) caps: Caps,
    pub(crate) settings: Settings,
    pub(crate) listen: bool,
    pub(crate) regions: Arc<Regions>,
    pub(crate) guard: Arc<ForkGuard>,
    pub(crate) device: Arc<Device>,
    /// Where context 0 takes its lifelines; each other one has a port of its own.
    pub(crate) home: SocketAddr,
    pub(crate) ids: Mutex<Ids>,
}

/// Which contexts are open.
#[derive(Debug)]
pub(crate) struct Ids {
    /// Opened with the domain, for context 0: so that whatever is wrong shows then.
    pub(crate) first: Option<(Endpoint, Listener)>,
    pub(crate) open: [bool; 256],
}

impl Shared {
    /// Refuses a forked child.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub(crate) fn same_process(&self) -> Result<(), Error> {
        if self.guard.is_child() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Where lifelines come from, too.
    pub(crate) fn ip(&self) -> IpAddr {
        self.home.ip()
    }

    /// A context has closed: its id is free.
    pub(crate) fn closed(&self, id: u8) {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.open[usize::from(id)] = false;
    }

    pub(crate) fn address(&self, place: SocketAddr) -> Result<Address, Error> {
        let found = &self.device.found;
        address_of((&found.device, found.port), place)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.guard.is_child() {
            // What the parent has of the card is not ours to free: its descriptors are shared.
            let ids = self.ids.get_mut().unwrap_or_else(PoisonError::into_inner);
            mem::forget(ids.first.take());
            mem::forget(Arc::clone(&self.device));
        }
    }
}
