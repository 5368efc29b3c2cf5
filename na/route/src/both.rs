//! A domain of each plugin.

use std::sync::Arc;

use hg_na::{Caps, Domain};
use uuid::Uuid;

use crate::caps;

/// What the contexts of one domain share.
#[derive(Debug)]
pub(crate) struct Both {
    pub(crate) node: Uuid,
    pub(crate) local: Arc<dyn Domain>,
    pub(crate) network: Arc<dyn Domain>,
    pub(crate) local_scheme: String,
    pub(crate) network_scheme: String,
    pub(crate) caps: Caps,
}

impl Both {
    /// A domain of two.
    pub(crate) fn new(
        node: Uuid,
        (local, local_scheme): (Arc<dyn Domain>, &str),
        (network, network_scheme): (Arc<dyn Domain>, &str),
    ) -> Self {
        let caps = caps::both(local.caps(), network.caps());
        let (local_scheme, network_scheme) = (local_scheme.to_owned(), network_scheme.to_owned());
        Self { node, local, network, local_scheme, network_scheme, caps }
    }
}
