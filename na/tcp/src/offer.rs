//! What plain sockets offer here: the address that is announced, and each by itself.

use std::net::IpAddr;

use hg_na::{Address, Offer, OpenOptions};

use crate::{
    address::{Host, SCHEME, unspecified},
    domain::TcpDomain,
    interfaces::{Own, announced, own_addresses},
};

/// What is announced where none is asked for, then `tcp://ADDRESS` for each one, those that would rather be announced first.
pub(crate) fn offers() -> Vec<Offer> {
    let mut offers = Vec::new();
    offers.extend(announcing());
    let Ok(mut own) = own_addresses() else { return offers };
    own.sort_by(|a, b| (a.rank(), &a.interface, a.ip).cmp(&(b.rank(), &b.interface, b.ip)));
    let mut seen: Vec<IpAddr> = Vec::new();
    for own in own {
        if !seen.contains(&own.ip) {
            offers.extend(on(&own));
            seen.push(own.ip);
        }
    }
    offers
}

/// Without an address: listens at the one that it announces. `None`: never.
fn announcing() -> Option<Offer> {
    let url = Address::new(&format!("{SCHEME}://")).ok()?;
    let opened = TcpDomain::open(&url, &OpenOptions::listening());
    let mut offer = Offer::new(SCHEME, url);
    if let Ok(ip) = announced(None, None) {
        let all = unspecified(ip);
        let what =
            format!("{ip}, as announced; {SCHEME}://{} listens on every address", Host::Ip(all));
        offer = offer.at(&ip.to_string()).fact("listens-on", what);
    }
    Some(offer.tried(opened))
}

fn on(own: &Own) -> Option<Offer> {
    let url = Address::new(&format!("{SCHEME}://{}", Host::Ip(own.ip))).ok()?;
    let opened = TcpDomain::open(&url, &OpenOptions::listening());
    let offer = Offer::new(SCHEME, url).on(&own.interface).at(&own.ip.to_string());
    let subnet = format!("{}/{}", network(own.ip, own.bits), own.bits);
    Some(offer.fact("subnet", subnet).tried(opened))
}

/// The address with which a subnet begins.
fn network(ip: IpAddr, bits: u32) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => IpAddr::from(
            (ip.to_bits() & u32::MAX.checked_shl(32 - bits).unwrap_or(0)).to_be_bytes(),
        ),
        IpAddr::V6(ip) => IpAddr::from(
            (ip.to_bits() & u128::MAX.checked_shl(128 - bits).unwrap_or(0)).to_be_bytes(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subnet_begins_where_its_own_bits_end() {
        let of = |ip: &str, bits| network(ip.parse().unwrap(), bits).to_string();
        assert_eq!(of("10.1.2.3", 16), "10.1.0.0");
        assert_eq!(of("10.1.2.3", 32), "10.1.2.3");
        assert_eq!(of("10.1.2.3", 0), "0.0.0.0");
        assert_eq!(of("fd00::2", 64), "fd00::");
        assert_eq!(of("::1", 128), "::1");
        assert_eq!(of("fd00::2", 0), "::");
    }

    #[test]
    fn every_address_is_offered_with_the_subnet_in_which_it_lies() {
        for offer in offers().iter().filter(|offer| offer.domain.is_some()) {
            let subnet = hg_na_parts::Subnet::parse(&offer.facts["subnet"]).unwrap();
            let ip = offer.address.as_ref().unwrap().parse().unwrap();
            assert!(subnet.contains(ip), "{offer:?}");
        }
    }
}
