//! The plugin: opens domains, which open contexts.

use std::sync::Arc;

use hg_na::{
    Address, Caps, Context, Domain, Error, Guest, Memory, Offer, OpenOptions, Plugin, Region,
    Rights,
};

use crate::{
    context::SmContext,
    domain::Shared,
    offer::offers,
    region::state::SmRegion,
    rendezvous::name::{SCHEME, Target},
};

/// The shared-memory plugin: scheme `sm`.
#[derive(Debug, Default, Clone, Copy)]
pub struct SmPlugin;

impl Plugin for SmPlugin {
    fn schemes(&self) -> &[&str] {
        &[SCHEME]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        Ok(Arc::new(SmDomain(Shared::open(url, options)?)))
    }

    fn offers(&self) -> Vec<Offer> {
        offers(|url, options| self.open(url, options))
    }
}

#[derive(Debug)]
struct SmDomain(Arc<Shared>);

impl Domain for SmDomain {
    fn caps(&self) -> &Caps {
        &self.0.caps
    }

    fn register(&self, memory: Memory, rights: Rights) -> Result<Region, Error> {
        if self.0.guard.is_child() {
            return Err(Error::Forked);
        }
        if self.0.regions.table.fd().is_none() {
            return Err(Error::Unsupported("registering memory with the setting `regions` off"));
        }
        SmRegion::register(&self.0.regions, memory, rights).map(|region| Region::new(region))
    }

    fn context(&self, id: u8) -> Result<Box<dyn Context>, Error> {
        Ok(Box::new(SmContext::open(&self.0, id, None)?))
    }

    fn context_in(&self, id: u8, guest: Guest) -> Result<Box<dyn Context>, Error> {
        Ok(Box::new(SmContext::open(&self.0, id, Some(guest))?))
    }

    fn address_of(&self, context: &Address, id: u8) -> Option<Address> {
        Some(Target::parse(context).ok()?.name.address(id))
    }
}
