//! Which of this machine's addresses is announced.

use std::net::IpAddr;

use hg_na::Error;
use hg_na_parts::Subnet;
use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags, sys::socket::SockaddrStorage};

use crate::settings::{INTERFACE, SUBNET};

/// One address of this machine.
#[derive(Debug, Clone)]
pub(crate) struct Own {
    pub(crate) interface: String,
    pub(crate) ip: IpAddr,
    /// Of its subnet.
    pub(crate) bits: u32,
    is_loopback: bool,
}

/// The address to announce.
///
/// Without a choice: the first address of an interface that is up, IPv4 before IPv6, others before
/// loopback; link-local IPv6 never, since its scope does not travel.
///
/// # Errors
/// [`Error::BadSetting`] when nothing fits, with what there is; [`Error::Missing`] when there is no address at
/// all; [`Error::Os`].
pub(crate) fn announced(interface: Option<&str>, subnet: Option<Subnet>) -> Result<IpAddr, Error> {
    let all = own_addresses()?;
    choose(&all, interface, subnet).ok_or_else(|| {
        if all.is_empty() {
            return Error::missing(
                "this machine has no address: no interface is up; `ip link set lo up` gives it one of its own",
            );
        }
        let known: Vec<String> =
            all.iter().map(|own| format!("{} {}", own.interface, own.ip)).collect();
        let name = if subnet.is_some() { SUBNET } else { INTERFACE };
        let why = format!("no address of this machine fits; it has {}", known.join(", "));
        Error::BadSetting { name: name.to_owned(), why }
    })
}

fn choose(all: &[Own], interface: Option<&str>, subnet: Option<Subnet>) -> Option<IpAddr> {
    let fits = |own: &&Own| {
        interface.is_none_or(|name| own.interface == name)
            && subnet.is_none_or(|subnet| subnet.contains(own.ip))
    };
    all.iter().filter(fits).min_by_key(|own| own.rank()).map(|own| own.ip)
}

impl Own {
    /// Which is announced rather than another.
    pub(crate) fn rank(&self) -> (bool, bool) {
        (self.is_loopback, self.ip.is_ipv6())
    }
}

/// Every address of an interface that is up, in the kernel's order; but link-local IPv6.
///
/// # Errors
/// [`Error::Os`].
pub(crate) fn own_addresses() -> Result<Vec<Own>, Error> {
    let mut all = Vec::new();
    for entry in getifaddrs().map_err(|error| Error::os("getifaddrs", error))? {
        let Some(address) = entry.address.filter(|_| entry.flags.contains(InterfaceFlags::IFF_UP))
        else {
            continue;
        };
        let Some(ip) = ip_of(&address) else { continue };
        if matches!(ip, IpAddr::V6(six) if six.is_unicast_link_local()) {
            continue;
        }
        let is_loopback = entry.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        let mask = entry.netmask.as_ref().and_then(ip_of);
        let bits = mask.map_or_else(|| if ip.is_ipv4() { 32 } else { 128 }, ones);
        all.push(Own { interface: entry.interface_name, ip, bits, is_loopback });
    }
    Ok(all)
}

fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let four = address.as_sockaddr_in().map(|four| IpAddr::V4(four.ip()));
    four.or_else(|| address.as_sockaddr_in6().map(|six| IpAddr::V6(six.ip())))
}

/// Bits of a network mask.
fn ones(mask: IpAddr) -> u32 {
    match mask {
        IpAddr::V4(mask) => mask.to_bits().count_ones(),
        IpAddr::V6(mask) => mask.to_bits().count_ones(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_go_before_loopback_and_choices_before_everything() {
        let own = |interface: &str, ip: &str| Own {
            interface: interface.to_owned(),
            ip: ip.parse().unwrap(),
            bits: 8,
            is_loopback: interface == "lo",
        };
        let all = [own("lo", "127.0.0.1"), own("ib0", "10.9.0.1"), own("eth0", "10.1.0.1")];
        let chosen = |interface, subnet: Option<&str>| {
            choose(&all, interface, subnet.map(|text| Subnet::parse(text).unwrap()))
        };
        assert_eq!(chosen(None, None), Some(all[1].ip));
        assert_eq!(chosen(Some("eth0"), None), Some(all[2].ip));
        assert_eq!(chosen(None, Some("127.0.0.0/8")), Some(all[0].ip));
        assert_eq!(chosen(Some("lo"), Some("10.0.0.0/8")), None);
    }
}
