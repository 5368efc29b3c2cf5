//! Addresses: `verbs://DEVICE[:PORT][@ADDRESS[:TCP-PORT]]`, all parts of which may be left out of a URL that is opened.
//!
//! A context's own address, `verbs://DEVICE:PORT@ADDRESS:TCP-PORT`, says on which card and port it is, for people, and where its lifelines are
//! taken, which is what others connect to; each context has a TCP port of its own.

use std::net::{IpAddr, SocketAddr};

use hg_na::{Address, Error};

use crate::card::Wanted;

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
        let (device, port) = match card.split_once(':') {
            Some((device, port)) => (device, Some(port)),
            None => (card, None),
        };
        let port =
            port.map(|it| it.parse().map_err(|_| wrong("a card's port is a number from 1 to 255")));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if !device.bytes().all(is_name) {
            return Err(wrong("a device has a name as `rdma link` shows it: rxe0, mlx5_0"));
        }
        let (ip, tcp_port) = match place {
            None => (None, 0),
            Some(place) => {
                let (ip, port) = split(place).ok_or_else(|| {
                    wrong("behind the @ stands an internet address of this machine, and maybe a TCP port")
                })?;
                (Some(ip).filter(|ip| !ip.is_unspecified()), port)
            }
        };
        let device = Some(device.to_owned()).filter(|it| !it.is_empty());
        let port = port.transpose()?;
        Ok(Self { card: Wanted { device, port, ip }, port: tcp_port })
    }
}

/// The address of a context.
///
/// # Errors
/// [`Error::BadAddress`] where a card has an impossible name.
pub(crate) fn address_of((device, port): (&str, u8), place: SocketAddr) -> Result<Address, Error> {
    Address::new(&format!("{SCHEME}://{device}:{port}@{place}"))
}

/// Where the lifelines of a context are taken.
///
/// # Errors
/// [`Error::BadAddress`].
pub(crate) fn target(address: &Address) -> Result<SocketAddr, Error> {
    let wrong = |why: &str| bad(address, why);
    if address.scheme() != SCHEME {
        return Err(wrong("this engine reaches verbs://"));
    }
    let Some((_, place)) = address.rest().split_once('@') else {
        return Err(wrong(
            "it names nobody: an address has the form verbs://DEVICE:PORT@ADDRESS:PORT",
        ));
    };
    let place: SocketAddr =
        place.parse().map_err(|_| wrong("behind the @ stands no internet address with a port"))?;
    if place.ip().is_unspecified() || place.port() == 0 {
        return Err(wrong("its host or port stands for every one"));
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
        let address = address_of(("rxe0", 1), place).unwrap();
        assert_eq!(address.as_str(), "verbs://rxe0:1@10.9.0.1:4000");
        assert_eq!(target(&address).unwrap(), place);
        for text in [
            "verbs://",
            "verbs://rxe0",
            "verbs://@1.2.3.4",
            "verbs://@1.2.3.4:0",
            "verbs://@0.0.0.0:1",
            "tcp://1.2.3.4:1",
        ] {
            let refused = target(&Address::new(text).unwrap());
            assert!(matches!(refused, Err(Error::BadAddress { .. })), "{text}");
        }
    }
}
