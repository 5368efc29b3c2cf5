//! What this plugin offers here: each provider on each interface or card, and what the others lack.

use std::net::IpAddr;

use hg_na::{Address, Offer};
use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags};

use crate::{
    address::{PREFIX, SCHEMES},
    domain::OfiDomain,
    listing::{Offer as Listed, library_version, offers as listed},
    settings::DOMAIN,
};

/// The plugin's name.
const NAME: &str = "ofi";

/// What a provider needs, beside a libfabric that was built with it.
const NEEDS: [(&str, &str); 11] = [
    ("tcp", "an interface that is up (`ip link set lo up` gives one for this machine alone)"),
    ("shm", "a kernel that lets processes of one user share memory"),
    (
        "verbs",
        "an RDMA card with its driver (`rdma link` lists them; without one: `rdma link add`, soft-RoCE) and \
         libibverbs; on Debian: apt-get install rdma-core ibverbs-providers librdmacm1",
    ),
    ("cxi", "an HPE Slingshot card with its driver, and HPE's libfabric, which is built with it"),
    (
        "efa",
        "an Elastic Fabric Adapter (Amazon EC2), and the driver and libraries of its installer",
    ),
    (
        "psm3",
        "an Ethernet card with an RDMA driver (`rdma link` lists them), and a libfabric that is built with it",
    ),
    (
        "psm2",
        "an Omni-Path card with its driver (hfi1), and libpsm2; on Debian: apt-get install libpsm2-2",
    ),
    ("opx", "an Omni-Path card with its driver (hfi1), and a libfabric that is built with it"),
    (
        "net",
        "an interface that is up, and a libfabric from 1.17 to 1.21; use `ofi+tcp://` with any other",
    ),
    ("udp", "an interface that is up, as the faster `ofi+tcp://` does"),
    ("sockets", "an interface that is up, as the faster `ofi+tcp://` does"),
];

/// Every scheme at least once, in their order; of one scheme the best first.
pub(crate) fn offers() -> Vec<Offer> {
    let version = library_version();
    let (all, whole) = match (&version, listed()) {
        (Ok((major, minor)), Ok(all)) => (all, Ok(format!("libfabric {major}.{minor}"))),
        (Err(missing), _) => (Vec::new(), Err(missing.to_string())),
        (_, Err(error)) => (Vec::new(), Err(error.to_string())),
    };
    let own = own_ips();
    // libfabric makes a loopback address up where no interface is up.
    let is_there = |it: &&Listed| it.ip.is_none_or(|ip| own.contains(&ip));
    let mut offers = Vec::new();
    for scheme in SCHEMES {
        let before = offers.len();
        let of_scheme = |it: &&Listed| it.scheme.as_deref() == Some(scheme);
        let mut fitting: Vec<&Listed> = all.iter().filter(of_scheme).filter(is_there).collect();
        fitting.sort_by_key(|it| rank(it));
        for listed in fitting {
            if let Some(offer) = offer_of(scheme, listed, &offers) {
                offers.push(offer);
            }
        }
        if offers.len() == before {
            offers.extend(missing(scheme, whole.as_deref().map_err(String::as_str)));
        }
    }
    let library = whole.ok().map(|version| match library_path() {
        Some(path) => format!("{version}, {path}"),
        None => version,
    });
    match library {
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
        Ok(domain) => {
            facts(offer.by(domain.provider()), listed).tried(Ok(std::sync::Arc::new(domain)))
        }
        Err(error) => facts(offer.by(&listed.provider), listed).tried(Err(error)),
    })
}

fn facts(offer: Offer, listed: &Listed) -> Offer {
    let yes_no = |it: bool| if it { "yes" } else { "no" };
    let registration = match listed.registration.as_slice() {
        [] => "nothing".to_owned(),
        modes => modes.join(" "),
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

/// No provider of this name, or no libfabric at all.
fn missing(scheme: &str, library: Result<&str, &str>) -> Option<Offer> {
    let provider = scheme.strip_prefix(PREFIX)?;
    let why = match library {
        Ok(library) => {
            let needs = NEEDS.iter().find(|(name, _)| *name == provider).map(|(_, needs)| *needs);
            let needs = needs.unwrap_or("what its manual page says");
            format!(
                "{library} has no provider `{provider}` that works on this machine: it needs {needs}"
            )
        }
        Err(why) => why.replace('\n', " "),
    };
    Some(Offer::new(NAME, Address::new(&format!("{scheme}://")).ok()?).by(provider).missing(why))
}

/// Addresses of interfaces that are up.
fn own_ips() -> Vec<IpAddr> {
    let up =
        getifaddrs().into_iter().flatten().filter(|it| it.flags.contains(InterfaceFlags::IFF_UP));
    up.filter_map(|it| {
        let address = it.address?;
        let four = address.as_sockaddr_in().map(|four| IpAddr::V4(four.ip()));
        four.or_else(|| address.as_sockaddr_in6().map(|six| IpAddr::V6(six.ip())))
    })
    .collect()
}

/// The file from which the library was loaded.
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
        assert!(
            NEEDS.iter().zip(SCHEMES).all(|((name, _), scheme)| scheme[PREFIX.len()..] == **name)
        );
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
