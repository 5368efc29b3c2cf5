//! The plugin: opens URLs, and says which ones there are.

use std::sync::Arc;

use hg_na::{Address, Domain, Error, Offer, OpenOptions, Plugin};
use rdma_core_sys as sys;

use crate::{
    address::SCHEME,
    card::{Found, found},
    domain::VerbsDomain,
};

/// The verbs plugin: the scheme `verbs`.
#[derive(Debug, Default, Clone, Copy)]
pub struct VerbsPlugin {
    /// `None`: libibverbs, once it is needed.
    library: Option<&'static sys::Library>,
}

impl VerbsPlugin {
    /// Over functions of a test's own.
    #[doc(hidden)]
    #[must_use]
    pub const fn over(library: &'static sys::Library) -> Self {
        Self { library: Some(library) }
    }

    fn library(&self) -> Result<&'static sys::Library, Error> {
        match self.library {
            Some(library) => Ok(library),
            None => sys::library().map_err(Error::missing),
        }
    }
}

impl Plugin for VerbsPlugin {
    fn schemes(&self) -> &[&str] {
        &[SCHEME]
    }

    fn open(&self, url: &Address, options: &OpenOptions) -> Result<Arc<dyn Domain>, Error> {
        Ok(Arc::new(VerbsDomain::open(self.library()?, url, options)?))
    }

    fn takes_key(&self) -> bool {
        true
    }

    fn offers(&self) -> Vec<Offer> {
        let ports = self.library().ok().and_then(|library| found(library).ok()).unwrap_or_default();
        let mut offers: Vec<Offer> = ports.iter().filter_map(|port| self.offer_of(port)).collect();
        if offers.is_empty()
            && let Ok(url) = Address::new("verbs://")
        {
            // Opening says what is missing.
            let opened = self.open(&url, &OpenOptions::listening());
            offers.push(Offer::new(SCHEME, url).tried(opened));
        }
        // Those that can be opened first: the first is what the scheme alone means.
        offers.sort_by_key(|offer| !offer.is_available());
        offers
    }
}

impl VerbsPlugin {
    /// A port of a card, tried.
    fn offer_of(&self, port: &Found) -> Option<Offer> {
        let name = format!("{}:{}", port.device, port.port);
        let url = Address::new(&format!("{SCHEME}://{name}")).ok()?;
        let mut offer = Offer::new(SCHEME, url).on(&name);
        let ips: Vec<String> = port
            .gids
            .iter()
            .filter_map(|(_, gid)| Found::ip_of(gid))
            .map(|ip| ip.to_string())
            .collect();
        if let Some(ip) = ips.first() {
            offer = offer.at(ip);
        }
        let gids: Vec<String> = port
            .gids
            .iter()
            .map(|(place, gid)| format!("{place}={}", std::net::Ipv6Addr::from(gid.0)))
            .collect();
        let link = if port.is_ethernet() { "Ethernet" } else { "InfiniBand" };
        let state = if port.is_active() { "active" } else { "not active" };
        offer = offer.fact("gids", gids.join(" ")).fact("link", link).fact("state", state);
        if let Some(rate) = port.gigabits() {
            offer = offer.fact("rate", format!("{rate} Gb/s"));
        }
        let opened = self.open(&offer.url, &OpenOptions::listening());
        Some(offer.tried(opened))
    }
}
