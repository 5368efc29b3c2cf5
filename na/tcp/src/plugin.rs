//! The plugin: opens URLs, and says which ones there are.

use std::sync::Arc;

use hg_na::{Address, Domain, Error, Offer, OpenOptions, Plugin};

use crate::{address::SCHEME, domain::TcpDomain, offer::offers};

/// The TCP plugin: scheme `tcp`.
#[derive(Debug, Default, Clone, Copy)]
pub struct TcpPlugin;

impl Plugin for TcpPlugin {
    fn schemes(&self) -> &[&str] {
        &[SCHEME]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        TcpDomain::open(url, options)
    }

    fn takes_key(&self) -> bool {
        true
    }

    fn offers(&self) -> Vec<Offer> {
        offers()
    }
}
