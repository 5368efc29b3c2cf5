//! One opened URL: a domain of each plugin.

use std::sync::Arc;

use hg_na::{Address, Caps, Context, Domain, Error, Memory, Region, Rights, Sleep, Waiter};

use crate::{
    both::Both, context::RouteContext, region::RouteRegion, uid::Uid, waiter::RouteWaiter,
};

/// A domain of two.
#[derive(Debug)]
pub(crate) struct RouteDomain(pub(crate) Both);

impl RouteDomain {
    /// Opens the local context: as the network's guest where both know how, with a set of its own that watches the
    /// network's otherwise, watched by the network's where that one sleeps in steps, and by itself where it cannot sleep for both.
    fn beside(&self, id: u8, network: Arc<dyn Waiter>) -> Result<Opened, Error> {
        let sleep = self.0.caps.sleep;
        if sleep == Sleep::Descriptor
            && let Some(guest) = supported(network.host())?
        {
            let harvest = guest.harvest.clone();
            if let Some(local) = supported(self.0.local.context_in(id, guest))? {
                let waiter = RouteWaiter::shared(local.waiter(), harvest);
                return Ok((local, waiter));
            }
        }
        let local = self.0.local.context(id)?;
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
        &self.0.caps
    }

    fn register(&self, memory: Memory, rights: Rights) -> Result<Region, Error> {
        if !self.0.caps.one_sided {
            return Err(Error::Unsupported("one-sided operations by both ways"));
        }
        if memory.segments().len() > self.0.caps.max_segments {
            let (what, remedy) = ("segments of one registration", "register it in parts");
            return Err(Error::Limit { what, limit: self.0.caps.max_segments as u64, remedy });
        }
        let local = (self.0.local.as_ref(), self.0.local_scheme.as_str());
        let network = (self.0.network.as_ref(), self.0.network_scheme.as_str());
        let region = RouteRegion::register(local, network, memory, rights)?;
        Ok(Region::new(region))
    }

    fn context(&self, id: u8) -> Result<Box<dyn Context>, Error> {
        let marked = supported(self.0.network.second_context(id))?;
        let is_marked = marked.is_some();
        let network = match marked {
            Some(network) => network,
            None => self.0.network.context(id)?,
        };
        let (local, waiter) = self.beside(id, network.waiter())?;
        let uid = Uid {
            node: self.0.node,
            local: local.address().clone(),
            network: network.address().clone(),
        };
        let context = RouteContext::new(&self.0, &uid, local, (network, is_marked), waiter)?;
        Ok(Box::new(context))
    }

    fn address_of(&self, context: &Address, id: u8) -> Option<Address> {
        if context.scheme() == self.0.local_scheme {
            return self.0.local.address_of(context, id);
        }
        if context.scheme() == self.0.network_scheme {
            return self.0.network.address_of(context, id);
        }
        let Uid { node, local, network } = Uid::parse(context).ok()?;
        let local = self.0.local.address_of(&local, id)?;
        let network = self.0.network.address_of(&network, id)?;
        Uid { node, local, network }.address().ok()
    }
}
