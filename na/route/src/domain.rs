//! One opened URL: a domain of each plugin.

use std::sync::Arc;

use hg_na::{Address, Caps, Context, Domain, Error, Memory, Region, Rights, Sleep, Waiter};
use uuid::Uuid;

use crate::{
    caps,
    context::{Common, RouteContext},
    region::RouteRegion,
    uid::Uid,
    waiter::RouteWaiter,
};

/// A domain of two.
#[derive(Debug)]
pub(crate) struct RouteDomain {
    pub(crate) node: Uuid,
    pub(crate) local: Arc<dyn Domain>,
    pub(crate) network: Arc<dyn Domain>,
    pub(crate) local_scheme: String,
    pub(crate) network_scheme: String,
    pub(crate) caps: Caps,
}

impl RouteDomain {
    pub(crate) fn new(
        node: Uuid,
        (local, local_scheme): (Arc<dyn Domain>, &str),
        (network, network_scheme): (Arc<dyn Domain>, &str),
    ) -> Self {
        let caps = caps::both(local.caps(), network.caps());
        let (local_scheme, network_scheme) = (local_scheme.to_owned(), network_scheme.to_owned());
        Self { node, local, network, local_scheme, network_scheme, caps }
    }

    /// Opens the local context: as the network's guest where both know how, with a set of its own that watches the
    /// network's otherwise, watched by the network's where that one sleeps in steps, and by itself where it cannot sleep for both.
    fn beside(&self, id: u8, network: Arc<dyn Waiter>) -> Result<Opened, Error> {
        let sleep = self.caps.sleep;
        if sleep == Sleep::Descriptor
            && let Some(guest) = supported(network.host())?
        {
            let harvest = guest.harvest.clone();
            if let Some(local) = supported(self.local.context_in(id, guest))? {
                let waiter = RouteWaiter::shared(local.waiter(), harvest);
                return Ok((local, waiter));
            }
        }
        let local = self.local.context(id)?;
        let waiter = match sleep {
            Sleep::Descriptor => RouteWaiter::joined(local.waiter(), network)?,
            Sleep::Steps(_) => RouteWaiter::stepped(local.waiter(), network)?,
            _ => RouteWaiter::polled(local.waiter()),
        };
        Ok((local, waiter))
    }
}

/// A local context, and what both sleep on.
type Opened = (Box<dyn Context>, RouteWaiter);

/// `None` for what a plugin cannot do.
fn supported<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::Unsupported(_)) => Ok(None),
        Err(error) => Err(error),
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
        let marked = supported(self.network.second_context(id))?;
        let is_marked = marked.is_some();
        let network = match marked {
            Some(network) => network,
            None => self.network.context(id)?,
        };
        let (local, waiter) = self.beside(id, network.waiter())?;
        let uid = Uid {
            node: self.node,
            local: local.address().clone(),
            network: network.address().clone(),
        };
        let common = Common {
            schemes: [self.local_scheme.clone(), self.network_scheme.clone()],
            views: [self.local.caps().views, self.network.caps().views],
            caps: self.caps.clone(),
        };
        let context = RouteContext::new(common, &uid, local, (network, is_marked), waiter)?;
        Ok(Box::new(context))
    }

    fn address_of(&self, context: &Address, id: u8) -> Option<Address> {
        if context.scheme() == self.local_scheme {
            return self.local.address_of(context, id);
        }
        if context.scheme() == self.network_scheme {
            return self.network.address_of(context, id);
        }
        let Uid { node, local, network } = Uid::parse(context).ok()?;
        let local = self.local.address_of(&local, id)?;
        let network = self.network.address_of(&network, id)?;
        Uid { node, local, network }.address().ok()
    }
}
