//! What this plugin offers here: each provider on each interface or card, and what the others lack.

use std::{net::IpAddr, sync::Arc};

use hg_na::{Address, Domain, Offer, OpenOptions};
use libfabric_sys as sys;

use crate::{
    address::{PREFIX, SCHEMES},
    choice::{is_own, prefer},
    domain::OfiDomain,
    fabric::{self, Offer as Listed, Wanted},
    settings::DOMAIN,
};

pub use libfabric_sys::{Missing, PATH_VARIABLE};

/// The plugin's name.
const NAME: &str = "ofi";

/// Every scheme at least once, in their order; of one scheme the best first, which is what a URL without a host means.
pub(crate) fn offers() -> Vec<Offer> {
    let all = listed();
    let is_there = |it: &&Listed| it.ip.is_none_or(is_own);
    let mut offers = Vec::new();
    for scheme in SCHEMES {
        let before = offers.len();
        let of_scheme = |it: &&Listed| scheme.strip_prefix(PREFIX) == it.provider.split(';').next();
        let mut fitting: Vec<&Listed> = all.iter().filter(of_scheme).filter(is_there).collect();
        prefer(&mut fitting);
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

/// Everything with reliable unconnected endpoints and ordered messages, in libfabric's order: one for each set of further abilities that
/// are of no use here. Without the library, and where it fails, opening says so.
fn listed() -> Vec<Listed> {
    let mut listed: Vec<Listed> = Vec::new();
    for offer in
        fabric::offers(Wanted { everything: true, ..Wanted::default() }).unwrap_or_default()
    {
        let same = |it: &Listed| {
            (&it.provider, &it.domain, &it.ip) == (&offer.provider, &offer.domain, &offer.ip)
        };
        if !listed.iter().any(same) {
            listed.push(offer);
        }
    }
    listed
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
        offer = if is_named || is_other {
            offer.with(DOMAIN, &listed.domain)
        } else {
            return None;
        };
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
    let limits = listed.limits();
    let can = |cap: u64| if limits.caps & cap != 0 { "yes" } else { "no" };
    let offer = match listed.pci {
        Some(pci) => offer.fact("pci", pci.to_string()),
        None => offer,
    };
    offer
        .fact("provider-version", format!("{}.{}", listed.version.0, listed.version.1))
        .fact("fabric", listed.fabric.clone())
        .fact("address-format", format_name(limits.address_format))
        .fact("one-sided", can(sys::RMA))
        .fact("multi-receive", can(sys::MULTI_RECV))
        .fact("registration", modes(limits.mr_mode))
        .fact("longest-message", bytes(limits.max_message))
        .fact("longest-inject", bytes(limits.inject_size))
}

fn bytes(count: usize) -> String {
    if count == usize::MAX { "of any length".to_owned() } else { format!("{count} bytes") }
}

const MODES: [(i32, &str); 7] = [
    (sys::MR_LOCAL, "FI_MR_LOCAL"),
    (sys::MR_VIRT_ADDR, "FI_MR_VIRT_ADDR"),
    (sys::MR_ALLOCATED, "FI_MR_ALLOCATED"),
    (sys::MR_PROV_KEY, "FI_MR_PROV_KEY"),
    (sys::MR_ENDPOINT, "FI_MR_ENDPOINT"),
    (sys::MR_HMEM, "FI_MR_HMEM"),
    (1, "FI_MR_BASIC"),
];

/// Names of registration modes.
fn modes(mr_mode: i32) -> String {
    let names = MODES.iter().filter(|(bit, _)| mr_mode & bit != 0).map(|(_, name)| *name);
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "nothing".to_owned() } else { names.join(" ") }
}

/// By number, from 0.
const FORMATS: [&str; 17] = [
    "FI_FORMAT_UNSPEC",
    "FI_SOCKADDR",
    "FI_SOCKADDR_IN",
    "FI_SOCKADDR_IN6",
    "FI_SOCKADDR_IB",
    "FI_ADDR_PSMX",
    "FI_ADDR_GNI",
    "FI_ADDR_BGQ",
    "FI_ADDR_MLX",
    "FI_ADDR_STR",
    "FI_ADDR_PSMX2",
    "FI_ADDR_IB_UD",
    "FI_ADDR_EFA",
    "FI_ADDR_PSMX3",
    "FI_ADDR_OPX",
    "FI_ADDR_CXI",
    "FI_ADDR_UCX",
];

fn format_name(number: u32) -> String {
    let known = usize::try_from(number).ok().and_then(|number| FORMATS.get(number));
    known.map_or_else(|| format!("format {number}"), |name| (*name).to_owned())
}

/// What opening it says, and needs.
fn nothing_of(scheme: &str) -> Option<Offer> {
    let provider = scheme.strip_prefix(PREFIX)?;
    let url = Address::new(&format!("{scheme}://")).ok()?;
    let opened = OfiDomain::open(&url, &OpenOptions::listening());
    let opened = opened.map(|domain| Arc::new(domain) as Arc<dyn Domain>);
    Some(Offer::new(NAME, url).by(provider).tried(opened))
}

/// Version of the library, which is loaded now if it was not before.
///
/// # Errors
/// What is missing, and what to install.
pub fn library_version() -> Result<(u32, u32), Missing> {
    Ok(sys::library()?.version())
}

/// Which library, and the file from which it was loaded.
fn library() -> Option<String> {
    let (major, minor) = library_version().ok()?;
    let file = library_path().map_or_else(String::new, |path| format!(", {path}"));
    Some(format!("libfabric {major}.{minor}{file}"))
}

fn library_path() -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let chosen = std::env::var(PATH_VARIABLE).ok();
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
    fn modes_and_formats_have_their_names() {
        assert_eq!(modes(sys::MR_LOCAL | sys::MR_ENDPOINT), "FI_MR_LOCAL FI_MR_ENDPOINT");
        assert_eq!(modes(0), "nothing");
        assert_eq!(format_name(2), "FI_SOCKADDR_IN");
        assert_eq!(format_name(9), "FI_ADDR_STR");
        assert_eq!(format_name(99), "format 99");
    }

    #[test]
    fn what_every_machine_has_is_listed_once() {
        let all = offers();
        let of = |scheme: &str| all.iter().filter(|it| it.url.scheme() == scheme).count();
        assert_eq!(of("ofi+shm"), 1, "{all:?}");
        let loopback = all.iter().find(|it| it.url.as_str() == "ofi+tcp://127.0.0.1").unwrap();
        assert_eq!(loopback.facts["address-format"], "FI_SOCKADDR_IN");
        assert_eq!(loopback.facts["one-sided"], "yes");
        assert!(library_version().unwrap() >= (1, 17));
    }

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
