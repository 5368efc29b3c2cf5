//! One opened URL: a domain of each plugin.

use std::sync::Arc;

use hg_na::{Caps, Context, Domain, Error, Memory, Region, Rights};
use uuid::Uuid;

use crate::{caps, context::RouteContext, region::RouteRegion, uid::Uid, waiter::RouteWaiter};

/// What the contexts of one domain share.
#[derive(Debug)]
pub(crate) struct RouteDomain {
    pub(crate) node: Uuid,
    pub(crate) local: Arc<dyn Domain>,
    pub(crate) network: Arc<dyn Domain>,
    pub(crate) local_scheme: String,
    pub(crate) network_scheme: String,
    caps: Caps,
}

impl RouteDomain {
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

impl Domain for RouteDomain {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn register(&self, memory: Memory, rights: Rights) -> Result<Region, Error> {
        if !self.caps.one_sided {
            return Err(Error::Unsupported("one-sided operations by both ways"));
        }
        if memory.segments().len() > self.caps.max_segments {
            let (what, remedy) = ("segments of one registration", "register it in parts");
            return Err(Error::Limit { what, limit: self.caps.max_segments as u64, remedy });
        }
        let local = (self.local.as_ref(), self.local_scheme.as_str());
        let network = (self.network.as_ref(), self.network_scheme.as_str());
        let region = RouteRegion::register(local, network, memory, rights)?;
        Ok(Region::new(region))
    }

    fn context(&self, id: u8) -> Result<Box<dyn Context>, Error> {
        let local = self.local.context(id)?;
        let network = self.network.context(id)?;
        let uid = Uid {
            node: self.node,
            local: local.address().clone(),
            network: network.address().clone(),
        };
        let joins = self.caps.sleep == hg_na::Sleep::Descriptor;
        let waiter = RouteWaiter::new(local.waiter(), network.waiter(), joins)?;
        let context = RouteContext::new(self, &uid, local, network, waiter)?;
        Ok(Box::new(context))
    }
}
