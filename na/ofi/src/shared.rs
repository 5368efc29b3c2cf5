//! What the contexts of one domain share.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use hg_na_frames::{Common, Listener, Place};

use crate::{
    address::local,
    fabric::{Endpoint, Form, Offer, Way},
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
    /// What both sides of a connection have to speak.
    pub(crate) fn speech(&self) -> String {
        match self.form.way {
            Way::Untagged => self.provider.clone(),
            Way::Tagged => format!("{} with tagged messages", self.provider),
        }
    }
}
