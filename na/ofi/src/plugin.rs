//! The plugin: opens URLs, and says which ones there are.

use std::sync::Arc;

use hg_na::{Address, Domain, Error, OpenOptions, Plugin};

use crate::{address::SCHEMES, domain::OfiDomain, offered::offers};

/// The libfabric plugin: schemes `ofi+tcp`, `ofi+shm`, `ofi+verbs` and so on.
#[derive(Debug, Default, Clone, Copy)]
pub struct OfiPlugin;

impl Plugin for OfiPlugin {
    fn schemes(&self) -> &[&str] {
        &SCHEMES
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        Ok(Arc::new(OfiDomain::open(url, options)?))
    }

    fn takes_key(&self) -> bool {
        true
    }

    fn offers(&self) -> Vec<hg_na::Offer> {
        offers()
    }
}
