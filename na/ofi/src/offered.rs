//! What this plugin offers here: each provider on each interface or card, and what the others lack.

use std::{net::IpAddr, sync::Arc};

use hg_na::{Address, Domain, Offer, OpenOptions};

use crate::{
    address::{PREFIX, SCHEMES},
    choice::{is_own, nearest},
    domain::OfiDomain,
    listing::{Offer as Listed, library_version, offers as listed},
    settings::DOMAIN,
};

/// The plugin's name.
const NAME: &str = "ofi";

/// Every scheme at least once, in their order; of one scheme the best first.
pub(crate) fn offers() -> Vec<Offer> {
    // Without the library, and where it fails, opening says so.
    let all = listed().unwrap_or_default();
    let is_there = |it: &&Listed| it.ip.is_none_or(is_own);
    let mut offers = Vec::new();
    for scheme in SCHEMES {
        let before = offers.len();
        let of_scheme = |it: &&Listed| it.scheme.as_deref() == Some(scheme);
        let mut fitting: Vec<&Listed> = all.iter().filter(of_scheme).filter(is_there).collect();
        fitting.sort_by_key(|it| rank(it));
        let equals = |it: &&&Listed| rank(it) == rank(fitting[0]) && it.fabric == fitting[0].fabric;
        let equals = fitting.iter().take_while(equals);
        let chosen = nearest(equals.map(|it| (it.domain.as_str(), it.pci)));
        if let Some(up_to_it) = fitting.get_mut(..=chosen) {
            up_to_it.rotate_right(1);
        }
        for listed in fitting {
            if let Some(offer) = offer_of(scheme, listed, &offers) {
                offers.push(offer);
            }
        }
        if offers.len() == before {
            offers.extend(nothing_of(scheme));
        }
    }
    match library() {
        Some(library) => {
            offers.into_iter().map(|offer| offer.fact("library", library.clone())).collect()
        }
        None => offers,
    }
}

/// As [`crate::choice::choose`] prefers them, so that what is shown first is what a URL without a host means.
fn rank(listed: &Listed) -> (bool, bool, bool) {
    let is_layered = listed.provider.contains(';');
    let ip = listed.ip;
    (is_layered, ip.is_some_and(|ip| ip.is_loopback()), ip.is_some_and(|ip| ip.is_ipv6()))
}

/// `None`: offered before, or only for peers on the same wire.
fn offer_of(scheme: &str, listed: &Listed, before: &[Offer]) -> Option<Offer> {
    let host = match listed.ip {
        Some(IpAddr::V6(ip)) if ip.is_unicast_link_local() => return None,
        Some(IpAddr::V6(ip)) => format!("[{ip}]"),
        Some(IpAddr::V4(ip)) => ip.to_string(),
        None => String::new(),
    };
    let url = Address::new(&format!("{scheme}://{host}")).ok()?;
    let is_named = listed.ip.is_none() && scheme != "ofi+shm";
    let mut offer = Offer::new(NAME, url).on(&listed.domain);
    if is_named {
        offer = offer.with(DOMAIN, &listed.domain);
    }
    if let Some(twin) = before.iter().find(|it| it.url == offer.url) {
        // Two cards with one address are told apart by their names.
        let is_other = listed.ip.is_some() && twin.domain != offer.domain;
        offer =
            if is_named || is_other { offer.with(DOMAIN, &listed.domain) } else { return None };
        if before.iter().any(|it| it.url == offer.url && it.settings == offer.settings) {
            return None;
        }
    }
    if let Some(ip) = listed.ip {
        offer = offer.at(&ip.to_string());
    }
    let opened = OfiDomain::open(&offer.url, &offer.options());
    Some(match opened {
        Ok(domain) => facts(offer.by(domain.provider()), listed).tried(Ok(Arc::new(domain))),
        Err(error) => facts(offer.by(&listed.provider), listed).tried(Err(error)),
    })
}

fn facts(offer: Offer, listed: &Listed) -> Offer {
    let yes_no = |it: bool| if it { "yes" } else { "no" };
    let registration = match listed.registration.as_slice() {
        [] => "nothing".to_owned(),
        modes => modes.join(" "),
    };
    let offer = match listed.pci {
        Some(pci) => offer.fact("pci", pci.to_string()),
        None => offer,
    };
    offer
        .fact("provider-version", format!("{}.{}", listed.version.0, listed.version.1))
        .fact("fabric", listed.fabric.clone())
        .fact("address-format", listed.address_format.clone())
        .fact("one-sided", yes_no(listed.one_sided))
        .fact("multi-receive", yes_no(listed.multi_receive))
        .fact("registration", registration)
        .fact("longest-message", bytes(listed.max_message))
        .fact("longest-inject", bytes(listed.max_inject))
}

fn bytes(count: usize) -> String {
    if count == usize::MAX { "of any length".to_owned() } else { format!("{count} bytes") }
}

/// What opening it says, and needs.
fn nothing_of(scheme: &str) -> Option<Offer> {
    let provider = scheme.strip_prefix(PREFIX)?;
    let url = Address::new(&format!("{scheme}://")).ok()?;
    let opened = OfiDomain::open(&url, &OpenOptions::listening());
    let opened = opened.map(|domain| Arc::new(domain) as Arc<dyn Domain>);
    Some(Offer::new(NAME, url).by(provider).tried(opened))
}

/// Which library, and the file from which it was loaded.
fn library() -> Option<String> {
    let (major, minor) = library_version().ok()?;
    let file = library_path().map_or_else(String::new, |path| format!(", {path}"));
    Some(format!("libfabric {major}.{minor}{file}"))
}

fn library_path() -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let chosen = std::env::var(libfabric_sys::PATH_VARIABLE).ok();
    let chosen = chosen.and_then(|path| std::fs::canonicalize(path).ok());
    let mut files = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    let is_it = |path: &&str| match &chosen {
        Some(chosen) => chosen.as_os_str() == *path,
        None => path.rsplit('/').next().is_some_and(|name| name.starts_with("libfabric.so")),
    };
    files.find(is_it).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_is_offered_or_said_to_be_missing() {
        let offers = offers();
        for scheme in SCHEMES {
            assert!(offers.iter().any(|it| it.url.scheme() == scheme), "{scheme}: {offers:?}");
        }
    }

    #[test]
    fn the_providers_of_every_machine_are_available() {
        let offers = offers();
        let find = |url: &str| offers.iter().find(|it| it.url.as_str() == url).unwrap();
        for offer in [find("ofi+shm://"), find("ofi+tcp://127.0.0.1")] {
            assert!(offer.is_available() && offer.caps.is_some(), "{offer:?}");
            assert!(
                offer.facts["library"].starts_with("libfabric 1.")
                    || offer.facts["library"].starts_with("libfabric 2.")
            );
        }
    }
}
