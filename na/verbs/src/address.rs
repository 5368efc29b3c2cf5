//! Addresses: `verbs://DEVICE[:PORT][@ADDRESS[:TCP-PORT]]`, all parts of which may be left out of a URL that is opened.
//!
//! A context's own address, `verbs://DEVICE:PORT@ADDRESS:TCP-PORT`, says on which card and port it is, for people, and where its lifelines are
//! taken, which is what others connect to; each context has a TCP port of its own. Of several ports (setting `device`) there is one such part for
//! each, with commas between them.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use hg_na::{Address, Error};

use crate::{card::Wanted, spread::PORTS_MAX};

/// The scheme.
pub(crate) const SCHEME: &str = "verbs";

/// What a URL to open asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) card: Wanted,
    /// Of context 0; 0: any.
    pub(crate) port: u16,
}

impl Asked {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`Error::BadAddress`].
    pub(crate) fn parse(url: &Address) -> Result<Self, Error> {
        let wrong = |why: &str| bad(url, why);
        if url.scheme() != SCHEME {
            return Err(wrong("it needs the form verbs://DEVICE[:PORT][@ADDRESS]"));
        }
        let (card, place) = match url.rest().split_once('@') {
            Some((card, place)) => (card, Some(place)),
            None => (url.rest(), None),
        };
        let card = wanted(card).map_err(wrong)?;
        let (ip, tcp_port) = match place {
            None => (None, 0),
            Some(place) => {
                let (ip, port) = split(place).ok_or_else(|| {
                    wrong("behind the @ stands an internet address of this machine, and maybe a TCP port")
                })?;
                (Some(ip).filter(|ip| !ip.is_unspecified()), port)
            }
        };
        Ok(Self { card: Wanted { ip, ..card }, port: tcp_port })
    }
}

/// Reads `DEVICE[:PORT]`, of which all may be left out.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn wanted(text: &str) -> Result<Wanted, &'static str> {
    let (device, port) = match text.split_once(':') {
        Some((device, port)) => (device, Some(port)),
        None => (text, None),
    };
    let port = port.map(|it| it.parse().map_err(|_| "a card's port is a number from 1 to 255"));
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if !device.bytes().all(is_name) {
        return Err("a device has a name as `rdma link` shows it: rxe0, mlx5_0");
    }
    let device = Some(device.to_owned()).filter(|it| !it.is_empty());
    Ok(Wanted { device, port: port.transpose()?, ip: None })
}

/// The address of a context: for each of its ports the card's name, its number there, and the place.
///
/// # Errors
/// [`Error::BadAddress`] where a card has an impossible name.
pub(crate) fn address_of(
    ports: impl Iterator<Item = ((String, u8), SocketAddr)>,
) -> Result<Address, Error> {
    let parts: Vec<_> =
        ports.map(|((device, port), place)| format!("{device}:{port}@{place}")).collect();
    Address::new(&format!("{SCHEME}://{}", parts.join(",")))
}

/// Where the lifelines of a context are taken, of each of its ports.
///
/// # Errors
/// [`Error::BadAddress`].
pub(crate) fn target(address: &Address) -> Result<Arc<[SocketAddr]>, Error> {
    let wrong = |why: &str| bad(address, why);
    if address.scheme() != SCHEME {
        return Err(wrong("this engine reaches verbs://"));
    }
    let parts: Vec<_> = address.rest().split(',').collect();
    if parts.len() > PORTS_MAX {
        return Err(wrong("it names more than 8 ports"));
    }
    parts.into_iter().map(|part| place(part).map_err(wrong)).collect()
}

fn place(part: &str) -> Result<SocketAddr, &'static str> {
    let (_, place) = part
        .split_once('@')
        .ok_or("it names nobody: an address has the form verbs://DEVICE:PORT@ADDRESS:PORT")?;
    let place: SocketAddr =
        place.parse().map_err(|_| "behind the @ stands no internet address with a port")?;
    if place.ip().is_unspecified() || place.port() == 0 {
        return Err("its host or port stands for every one");
    }
    Ok(place)
}

/// An address, and a port or 0.
fn split(place: &str) -> Option<(IpAddr, u16)> {
    let whole = place.parse::<SocketAddr>().ok().map(|it| (it.ip(), it.port()));
    let bare = || {
        let inside = place.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(place);
        inside.parse().ok().map(|ip| (ip, 0))
    };
    whole.or_else(bare)
}

fn bad(address: &Address, why: &str) -> Error {
    Error::BadAddress { address: address.to_string(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Result<Asked, Error> {
        Asked::parse(&Address::new(text)?)
    }

    #[test]
    fn every_part_of_a_url_may_be_left_out() {
        let wanted = |device: Option<&str>, port, ip: Option<&str>, tcp_port| Asked {
            card: Wanted {
                device: device.map(str::to_owned),
                port,
                ip: ip.map(|it| it.parse().unwrap()),
            },
            port: tcp_port,
        };
        for (text, expected) in [
            ("verbs://", wanted(None, None, None, 0)),
            ("verbs://rxe0", wanted(Some("rxe0"), None, None, 0)),
            ("verbs://mlx5_0:2", wanted(Some("mlx5_0"), Some(2), None, 0)),
            ("verbs://@10.0.0.1", wanted(None, None, Some("10.0.0.1"), 0)),
            ("verbs://rxe0@10.0.0.1:7000", wanted(Some("rxe0"), None, Some("10.0.0.1"), 7000)),
            ("verbs://rxe0:1@[fe80::1]:7", wanted(Some("rxe0"), Some(1), Some("fe80::1"), 7)),
            ("verbs://@0.0.0.0:7", wanted(None, None, None, 7)),
        ] {
            assert_eq!(asked(text).unwrap(), expected, "{text}");
        }
        for text in ["verbs://a b", "verbs://rxe0:x", "verbs://rxe0@", "verbs://@name", "tcp://"] {
            assert!(asked(text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_of_contexts_lead_to_them_and_others_are_refused() {
        let place = "10.9.0.1:4000".parse().unwrap();
        let other = "[fe80::1]:7".parse().unwrap();
        let of = |ports: &[(&str, SocketAddr)]| {
            address_of(ports.iter().map(|(name, place)| (((*name).to_owned(), 1), *place))).unwrap()
        };
        let address = of(&[("rxe0", place)]);
        assert_eq!(address.as_str(), "verbs://rxe0:1@10.9.0.1:4000");
        assert_eq!(*target(&address).unwrap(), [place]);
        let address = of(&[("rxe0", place), ("rxe1", other)]);
        assert_eq!(address.as_str(), "verbs://rxe0:1@10.9.0.1:4000,rxe1:1@[fe80::1]:7");
        assert_eq!(*target(&address).unwrap(), [place, other]);
        let many = vec![("r", place); PORTS_MAX + 1];
        assert!(target(&of(&many)).is_err() && target(&of(&many[1..])).is_ok());
        for text in [
            "verbs://",
            "verbs://rxe0",
            "verbs://@1.2.3.4",
            "verbs://@1.2.3.4:0",
            "verbs://@1.2.3.4:1,",
            "verbs://@0.0.0.0:1",
            "tcp://1.2.3.4:1",
        ] {
            let refused = target(&Address::new(text).unwrap());
            assert!(matches!(refused, Err(Error::BadAddress { .. })), "{text}");
        }
    }
}
