//! Addresses: `tcp://HOST:PORT`, with `/ID` behind it for a context other than 0.
//!
//! All contexts of a domain share one port, which is what passes firewalls; the greeting names the
//! context. A host is an IPv4 address, an IPv6 address in brackets, or a name. A context that does not
//! listen has port 0 in its address: it is told apart by nobody, and looking it up is an error.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use hg_na::{Address, Error};
use hg_na_parts::place::split;

/// The scheme.
pub(crate) const SCHEME: &str = "tcp";

/// Longest host name in bytes (RFC 1035).
const NAME_MAX: usize = 253;

/// A host as written.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Host {
    /// A numeric address.
    Ip(IpAddr),
    /// A name, in lower case, to be resolved elsewhere.
    Name(Box<str>),
}

impl fmt::Display for Host {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(IpAddr::V4(ip)) => write!(out, "{ip}"),
            Self::Ip(IpAddr::V6(ip)) => write!(out, "[{ip}]"),
            Self::Name(name) => out.write_str(name),
        }
    }
}

/// One context of a remote domain, as its address names it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Target {
    pub(crate) host: Host,
    pub(crate) port: u16,
    pub(crate) context: u8,
}

impl Target {
    /// Reads an address that is to be connected to. The same machine is the same target, whichever family its number is written in.
    ///
    /// # Errors
    /// [`Error::BadAddress`].
    pub(crate) fn parse(address: &Address) -> Result<Self, Error> {
        let bad = |why: &str| bad_address(address, why);
        if address.scheme() != SCHEME {
            return Err(bad("it needs the form tcp://HOST:PORT or tcp://HOST:PORT/CONTEXT"));
        }
        let (place, context) = match address.rest().split_once('/') {
            Some((place, id)) => {
                (place, id.parse().map_err(|_| bad("a context is a number from 0 to 255"))?)
            }
            None => (address.rest(), 0),
        };
        let (host, port) = host_and_port(place).map_err(bad)?;
        let host = host.ok_or_else(|| bad("it names no host"))?;
        match port {
            None => Err(bad("it names no port")),
            Some(0) => Err(bad("nobody listens behind port 0: this context takes no connections")),
            Some(_) if is_unspecified(&host) => Err(bad("its host stands for every address")),
            Some(port) => Ok(Self { host: canonical(host), port, context }),
        }
    }

    /// The address of one context.
    #[cfg(test)]
    pub(crate) fn address(&self) -> Result<Address, Error> {
        address_of(&self.host, self.port, self.context)
    }

    /// The socket's address, when the host is numeric.
    pub(crate) fn numeric(&self) -> Option<SocketAddr> {
        match &self.host {
            Host::Ip(ip) => Some(SocketAddr::new(*ip, self.port)),
            Host::Name(_) => None,
        }
    }
}

fn canonical(host: Host) -> Host {
    match host {
        Host::Ip(ip) => Host::Ip(ip.to_canonical()),
        Host::Name(_) => host,
    }
}

fn is_unspecified(host: &Host) -> bool {
    matches!(host, Host::Ip(ip) if ip.is_unspecified())
}

/// The text of an address.
pub(crate) fn address_of(host: &Host, port: u16, context: u8) -> Result<Address, Error> {
    match context {
        0 => Address::new(&format!("{SCHEME}://{host}:{port}")),
        id => Address::new(&format!("{SCHEME}://{host}:{port}/{id}")),
    }
}

/// What a URL to open asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// `None`: any, the announced one is chosen by settings.
    pub(crate) host: Option<Host>,
    /// 0: any.
    pub(crate) port: u16,
}

impl Place {
    /// Reads a URL that is to be opened.
    ///
    /// # Errors
    /// [`Error::BadAddress`].
    pub(crate) fn parse(url: &Address) -> Result<Self, Error> {
        let bad = |why: &str| bad_address(url, why);
        if url.scheme() != SCHEME {
            return Err(bad("it needs the form tcp://, tcp://HOST or tcp://HOST:PORT"));
        }
        if url.rest().contains(['?', '@', '#']) {
            return Err(bad("settings, and keys above all, do not go into a URL: see `key-file`"));
        }
        let (host, port) = host_and_port(url.rest()).map_err(bad)?;
        Ok(Self { host, port: port.unwrap_or(0) })
    }
}

/// The address that is bound for "any", of either family.
pub(crate) fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// Host and port; either may be missing.
fn host_and_port(place: &str) -> Result<(Option<Host>, Option<u16>), &'static str> {
    let (host, port) = split(place)?;
    Ok((parse_host(host)?, port))
}

fn parse_host(text: &str) -> Result<Option<Host>, &'static str> {
    if text.is_empty() {
        return Ok(None);
    }
    if let Ok(ip) = text.parse() {
        return Ok(Some(Host::Ip(ip)));
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if text.len() > NAME_MAX || !text.bytes().all(allowed) {
        return Err("this is no host name");
    }
    Ok(Some(Host::Name(text.to_ascii_lowercase().into())))
}

pub(crate) fn bad_address(address: &Address, why: &str) -> Error {
    Error::BadAddress { address: address.to_string(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Result<Target, Error> {
        Target::parse(&Address::new(text)?)
    }

    fn place(text: &str) -> Result<Place, Error> {
        Place::parse(&Address::new(text)?)
    }

    #[test]
    fn targets_survive_their_address() {
        for text in ["tcp://10.0.0.1:4000", "tcp://[fe80::1]:1/7", "tcp://node-7.cluster:65535/255"]
        {
            assert_eq!(target(text).unwrap().address().unwrap().as_str(), text);
        }
        assert_eq!(target("tcp://a:1/0").unwrap(), target("tcp://A:1").unwrap());
        assert_eq!(
            target("tcp://[::ffff:10.0.0.1]:1").unwrap(),
            target("tcp://10.0.0.1:1").unwrap()
        );
    }

    #[test]
    fn what_nobody_can_connect_to_is_refused() {
        for text in [
            "tcp://",
            "tcp://a",
            "tcp://:1",
            "tcp://a:0",
            "tcp://a:65536",
            "tcp://a:1/256",
            "tcp://::1:4",
            "tcp://[::1",
            "tcp://[a]:1",
            "tcp://[::1]4",
            "tcp://a/1",
            "tcp://0.0.0.0:1",
            "tcp://[::]:1",
            "sm://a:1",
            "tcp://a$b:1",
        ] {
            assert!(matches!(target(text), Err(Error::BadAddress { .. })), "{text}");
        }
    }

    #[test]
    fn urls_to_open_may_leave_everything_out() {
        let any = Place { host: None, port: 0 };
        for text in ["tcp://", "tcp://:0"] {
            assert_eq!(place(text).unwrap(), any, "{text}");
        }
        for text in ["tcp://0.0.0.0", "tcp://0.0.0.0:0"] {
            let host = Some(Host::Ip(Ipv4Addr::UNSPECIFIED.into()));
            assert_eq!(place(text).unwrap(), Place { host, port: 0 }, "{text}");
        }
        assert_eq!(place("tcp://[::]:9").unwrap().port, 9);
        assert!(place("tcp://a?key=1").is_err());
        assert!(place("tcp://a/1").is_err());
    }
}
