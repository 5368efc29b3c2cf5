//! What the contexts of one domain share.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use hg_na::{Caps, Error};
use hg_na_memory::ForkGuard;
use hg_na_parts::regions::Regions;

use crate::{
    address::local,
    fabric::{Endpoint, Form, Offer, Way},
    leftovers::Mark,
    lifeline::{Listener, Place},
    settings::Settings,
};

/// What a context is made of.
pub(crate) type Opened = (Endpoint, Option<Mark>, Listener);

/// What the contexts of one domain share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) caps: Caps,
    pub(crate) settings: Settings,
    /// As in the URL: `tcp`, whatever libfabric calls the layers that make it.
    pub(crate) provider: String,
    pub(crate) listen: bool,
    pub(crate) regions: Arc<Regions>,
    pub(crate) guard: Arc<ForkGuard>,
    pub(crate) offer: Offer,
    pub(crate) form: Form,
    /// Where context 0 is; a network's port is the one that it got.
    pub(crate) home: Home,
    pub(crate) ids: Mutex<Ids>,
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

/// Which contexts are open.
#[derive(Debug)]
pub(crate) struct Ids {
    /// Opened with the domain, for context 0: so that whatever is wrong shows then.
    pub(crate) first: Option<Opened>,
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

    /// What both sides of a connection have to speak.
    pub(crate) fn speech(&self) -> String {
        match self.form.way {
            Way::Untagged => self.provider.clone(),
            Way::Tagged => format!("{} with tagged messages", self.provider),
        }
    }

    /// A context has closed: its id is free.
    pub(crate) fn closed(&self, id: u8) {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.open[usize::from(id)] = false;
    }
}
