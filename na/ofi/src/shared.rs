//! What the contexts of one domain share.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hg_na::{Device, Error, Memory};
use hg_na_frames::{Common, Listener, Place};

use crate::{
    address::local,
    fabric::{Endpoint, Form, Offer, Way, try_device},
};

/// What a context is made of.
pub(crate) type Opened = (Endpoint, Listener);

/// What the contexts of one domain share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) common: Arc<Common>,
    /// Until a peer that lives, but to whom libfabric sends nothing, is given up.
    pub(crate) retry_bound: Duration,
    /// As in the URL: `tcp`, whatever libfabric calls the layers that make it.
    pub(crate) provider: String,
    pub(crate) offer: Offer,
    pub(crate) form: Form,
    /// Where context 0 is; a network's port is the one that it got.
    pub(crate) home: Home,
    /// Opened with the domain, for context 0: so that whatever is wrong shows then.
    pub(crate) first: Mutex<Option<Opened>>,
    /// Devices whose memory the provider has registered.
    pub(crate) devices: Mutex<Vec<Device>>,
}

/// Where the contexts of a domain are.
#[derive(Debug)]
pub(crate) enum Home {
    Local(String),
    Network(IpAddr, u16),
}

impl Home {
    /// A network's port is chosen by the system, but for context 0.
    pub(crate) fn place(&self, id: u8) -> Place {
        match self {
            Self::Local(name) => local(name, id),
            Self::Network(ip, port) => {
                Place::Network(SocketAddr::new(*ip, if id == 0 { *port } else { 0 }))
            }
        }
    }
}

impl Shared {
    /// Whether memory, if it is a device's, is of a kind that the provider registers: tried once a device.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn knows_device_of(&self, memory: &Memory) -> Result<(), Error> {
        let (Some(device), Some(run)) = (memory.device(), memory.segments().first()) else {
            return Ok(());
        };
        let mut known = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains(&device) {
            try_device(&self.offer, device, *run)?;
            known.push(device);
        }
        Ok(())
    }

    /// What both sides of a connection have to speak.
    pub(crate) fn speech(&self) -> String {
        match self.form.way {
            Way::Untagged => self.provider.clone(),
            Way::Tagged => format!("{} with tagged messages", self.provider),
        }
    }
}
