//! One opened URL.

use std::sync::Arc;

use hg_na::{Address, Caps, Context, Domain, Error, Memory, OpenOptions, Peer, Region, Rights};
use hg_na_parts::regions::ServedRegion;

use crate::{
    address::{Target, address_of},
    context::TcpContext,
    shared::Shared,
};

#[derive(Debug)]
pub(crate) struct TcpDomain(Arc<Shared>);

impl TcpDomain {
    /// Opens a URL.
    ///
    /// # Errors
    /// As [`hg_na::Plugin::open`].
    pub(crate) fn open(url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        Ok(Arc::new(Self(Shared::open(url, options)?)))
    }

    fn endpoint(&self, id: u8, mark: u32) -> Result<TcpContext, Error> {
        let shared = &self.0;
        if shared.guard.is_child() {
            return Err(Error::Forked);
        }
        let mut contexts = shared.contexts();
        if contexts.contains_key(&id) {
            return Err(Error::AddressInUse(shared.address(id)?));
        }
        let context = TcpContext::new(Arc::clone(shared), id, mark)?;
        contexts.insert(id, Arc::clone(&context.inbox));
        Ok(context)
    }
}

impl Domain for TcpDomain {
    fn caps(&self) -> &Caps {
        &self.0.caps
    }

    fn register(&self, memory: Memory, rights: Rights) -> Result<Region, Error> {
        if self.0.guard.is_child() {
            return Err(Error::Forked);
        }
        Ok(Region::new(ServedRegion::register(&self.0.regions, memory, rights)?))
    }

    fn context(&self, id: u8) -> Result<Box<dyn Context>, Error> {
        Ok(Box::new(self.endpoint(id, 0)?))
    }

    fn second_context(&self, id: u8) -> Result<Box<dyn Context>, Error> {
        Ok(Box::new(self.endpoint(id, Peer::SECOND)?))
    }

    fn address_of(&self, context: &Address, id: u8) -> Option<Address> {
        let target = Target::parse(context).ok()?;
        address_of(&target.host, target.port, id).ok()
    }
}
