//! Which of libfabric's offers a URL and its settings mean.

use std::{borrow::Borrow, net::IpAddr};

use hg_na::Error;
use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags};

use crate::{
    address::{Asked, needs},
    cards::{Here, Pci},
    fabric::{Form, Offer, Wanted, Way, library, offers},
    settings::{AUTH_KEY, DEVICE_MEMORY, DOMAIN, LIFELINE, SUBNET, Settings, TRAFFIC_CLASS},
};

/// Longest frame: rxm sends it eagerly.
const FRAME: usize = 16 << 10;
/// The same within one machine: shm takes it at once, without waiting for the receiver.
const FRAME_LOCAL: usize = 4096;

/// Providers with which one buffer for many messages is cheaper than a frame for each: 6,938 against 7,227
/// instructions a round trip of both sides with shm 1.17, 9,530 against 9,846 with tcp (16 in flight, callgrind).
/// With others it is for `multi-receive` to say.
const MULTI_PAYS: [&str; 2] = ["tcp", "shm"];
/// Providers whose descriptor is readable all the time: `net` of 1.17 ends 4,000 waits of 10 ms within 100 ms.
const NEVER_QUIET: [&str; 1] = ["net"];

/// Bytes of a frame.
fn frame_size(provider: &str, offer: &Offer) -> usize {
    let most = if provider == "shm" { FRAME_LOCAL } else { FRAME };
    most.min(offer.limits().max_message)
}

/// The offer to be used, and how.
///
/// # Errors
/// Without libfabric, its provider or the domain: what is there, and what to do.
pub(crate) fn choose(
    provider: &str,
    asked: &Asked,
    settings: &Settings,
) -> Result<(Offer, Form), Error> {
    let source = match asked {
        Asked::Network(ip, _) => *ip,
        Asked::Local(_) => None,
    };
    let layered = format!("{provider};");
    let is_of = |offer: &Offer| offer.provider == provider || offer.provider.starts_with(&layered);
    // libfabric makes a loopback address up where no interface is up.
    let is_there = |offer: &Offer| source.is_some() || offer.ip.is_none_or(is_own);
    let fits = |offer: &Offer| is_of(offer) && is_there(offer);
    let mut all: Vec<Offer> = Vec::new();
    let (auth_key, traffic_class) = (settings.auth_key.as_deref(), settings.traffic_class);
    let device_memory = settings.device_memory;
    let asked = Wanted { source, device_memory, auth_key, traffic_class, ..Wanted::default() };
    let mut wanted = Wanted { provider: Some(provider), ..asked };
    let ways = settings.way.map_or(vec![Way::Untagged, Way::Tagged], |way| vec![way]);
    let one_sided = match (settings.rma, device_memory) {
        (true, true) => &[true][..],
        (true, false) => &[true, false],
        (false, _) => &[false],
    };
    for (way, one_sided) in ways.iter().flat_map(|way| one_sided.iter().map(|it| (*way, *it))) {
        if all.is_empty() {
            wanted = Wanted { way, one_sided, ..wanted };
            all.extend(offers(wanted)?.into_iter().filter(fits));
        }
    }
    // A provider may offer an address without looking whether it is there.
    if all.is_empty() || source.is_some_and(|ip| !ip.is_loopback() && !is_own(ip)) {
        return Err(refused(wanted).unwrap_or_else(|| nothing(provider, source)));
    }
    let known: Vec<String> = all.iter().map(described).collect();
    let fits = |offer: &Offer| {
        settings.domain.as_ref().is_none_or(|domain| offer.domain == *domain)
            && settings.subnet.is_none_or(|subnet| offer.ip.is_some_and(|ip| subnet.contains(ip)))
    };
    let mut all: Vec<Offer> = all.into_iter().filter(fits).collect();
    prefer(&mut all);
    if all.is_empty() {
        let name = if settings.domain.is_some() { DOMAIN } else { SUBNET };
        let why = format!("nothing that {provider} offers here fits; it has {}", known.join(", "));
        return Err(Error::BadSetting { name: name.to_owned(), why });
    }
    let offer = all.swap_remove(0);
    let waits = settings.sleep && !NEVER_QUIET.contains(&provider);
    let form =
        Form { frame: frame_size(provider, &offer), way: wanted.way, is_multi: false, waits };
    // libfabric has them for untagged messages only.
    let is_multi = settings.multi_receive.unwrap_or(MULTI_PAYS.contains(&provider));
    if !is_multi || wanted.way == Way::Tagged {
        return Ok((offer, form));
    }
    let same = |it: &Offer| {
        (&it.provider, &it.fabric, &it.domain, it.ip)
            == (&offer.provider, &offer.fabric, &offer.domain, offer.ip)
    };
    let multi = offers(Wanted { multi_receive: true, ..wanted })?.into_iter().find(same);
    Ok(multi.map_or((offer, form), |multi| (multi, Form { is_multi: true, ..form })))
}

/// Sorts offers of one provider so that the one to be taken is the first: the best one, of equally good ones that of the nearest card.
pub(crate) fn prefer<T: Borrow<Offer>>(all: &mut [T]) {
    let rank = |offer: &Offer| {
        let ip = offer.ip;
        (
            offer.provider.contains(';'),
            ip.is_some_and(is_link_local),
            ip.is_some_and(|ip| ip.is_loopback()),
            ip.is_some_and(|ip| ip.is_ipv6()),
        )
    };
    let offer = <T as Borrow<Offer>>::borrow;
    all.sort_by_key(|it| rank(offer(it)));
    let Some(first) = all.first().map(offer) else { return };
    let equals = |it: &&Offer| rank(it) == rank(first) && it.fabric == first.fabric;
    let equals = all.iter().map(offer).take_while(equals);
    let chosen = nearest(equals.map(|it| (it.domain.as_str(), it.pci)));
    all[..=chosen].rotate_right(1);
}

/// The place of the offer to be taken, of those that are equally good, each with its domain and where that is: the first of the
/// chosen domain's.
fn nearest<'a>(equals: impl Iterator<Item = (&'a str, Option<Pci>)>) -> usize {
    let mut domains: Vec<(usize, &str, Option<Pci>)> = Vec::new();
    for (place, (domain, pci)) in equals.enumerate() {
        if !domains.iter().any(|(_, known, _)| *known == domain) {
            domains.push((place, domain, pci));
        }
    }
    let cards: Vec<_> = domains.iter().map(|(_, _, pci)| *pci).collect();
    if cards.len() < 2 {
        return 0;
    }
    domains[Here::new().choose(&cards)].0
}

/// Why there is no offer, when it is for what was asked besides the provider.
fn refused(wanted: Wanted<'_>) -> Option<Error> {
    let without = [
        (AUTH_KEY, wanted.auth_key.is_some(), Wanted { auth_key: None, ..wanted }),
        (TRAFFIC_CLASS, wanted.traffic_class.is_some(), Wanted { traffic_class: None, ..wanted }),
        (DEVICE_MEMORY, wanted.device_memory, Wanted { device_memory: false, ..wanted }),
    ];
    let name = without.into_iter().find_map(|(name, is_asked, less)| {
        (is_asked && offers(less).is_ok_and(|all| !all.is_empty())).then_some(name)
    })?;
    let provider = wanted.provider.unwrap_or_default();
    let why = match name {
        DEVICE_MEMORY => format!("{provider} reaches no memory of devices here"),
        _ => format!("{provider} takes no such value here"),
    };
    Some(Error::BadSetting { name: name.to_owned(), why })
}

fn described(offer: &Offer) -> String {
    match offer.ip {
        Some(ip) => format!("{} {ip}", offer.domain),
        None => offer.domain.clone(),
    }
}

/// Whether an interface of this machine has an address; `true` where the kernel does not tell.
pub(crate) fn is_own(ip: IpAddr) -> bool {
    let Ok(mut all) = own_addresses() else {
        return true;
    };
    all.any(|(_, own)| own == ip)
}

/// Addresses of interfaces that are up, and whether they are of the loopback.
fn own_addresses() -> Result<impl Iterator<Item = (bool, IpAddr)>, Error> {
    let all = getifaddrs().map_err(|error| Error::os("getifaddrs", error))?;
    Ok(all.filter(|entry| entry.flags.contains(InterfaceFlags::IFF_UP)).filter_map(|entry| {
        let address = entry.address?;
        let four = address.as_sockaddr_in().map(|four| IpAddr::V4(four.ip()));
        let six = address.as_sockaddr_in6().map(|six| IpAddr::V6(six.ip()));
        let ip = four.or(six)?;
        Some((ip.is_loopback(), ip))
    }))
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(six) if six.is_unicast_link_local())
}

/// Why there is no offer: no such provider, or no such address.
fn nothing(provider: &str, source: Option<IpAddr>) -> Error {
    let anywhere = offers(Wanted { provider: Some(provider), ..Wanted::default() });
    match (source, anywhere) {
        (Some(ip), Ok(all)) if !all.is_empty() => {
            let known: Vec<String> = all.iter().map(described).collect();
            let known = known.join(", ");
            Error::missing(format!(
                "no interface that {provider} can use has the address {ip}; it has {known}"
            ))
        }
        (_, Err(error)) => error,
        _ => {
            let (major, minor) = library().map_or((0, 0), |library| library.version());
            let needs = needs(provider);
            let why = format!(
                "libfabric {major}.{minor} has no provider `{provider}` that works on this machine: it needs {needs}"
            );
            Error::Missing {
                why: why.into(),
                see: Some("`hydrargyrum info` lists the providers that work"),
            }
        }
    }
}

/// The address on which lifelines are taken: the provider's own where it is an internet address.
///
/// # Errors
/// [`Error::BadSetting`] when this machine has none.
pub(crate) fn lifeline_ip(
    offer: &Offer,
    asked: Option<IpAddr>,
    settings: &Settings,
) -> Result<IpAddr, Error> {
    if let Some(ip) = settings.lifeline.or(asked).or(offer.ip) {
        return Ok(ip);
    }
    let found = own_addresses()?
        .filter(|(_, ip)| !is_link_local(*ip))
        .map(|(is_loopback, ip)| (is_loopback, ip.is_ipv6(), ip));
    found.min().map(|(_, _, ip)| ip).ok_or_else(|| Error::BadSetting {
        name: LIFELINE.to_owned(),
        why: "this machine has no internet address on which peers could be told that it lives"
            .to_owned(),
    })
}
