//! Addresses: `ofi+PROVIDER://`, then where the context's lifeline is.
//!
//! | provider | address of a context | URL to open |
//! |---|---|---|
//! | `shm` | `ofi+shm://NAME/CONTEXT` | `ofi+shm://` or `ofi+shm://NAME` |
//! | others | `ofi+tcp://IP:PORT`, each context its own port | `ofi+tcp://`, `ofi+tcp://HOST` or `ofi+tcp://HOST:PORT` (of context 0) |
//!
//! The addresses of libfabric's endpoints, which differ by provider, travel in the greeting and nowhere else.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};

use hg_na::{Address, Error};

use hg_na_frames::Place;
use hg_na_parts::place::split;

/// What stands before the provider.
pub(crate) const PREFIX: &str = "ofi+";
/// Schemes that the plugin takes; libfabric may offer fewer.
pub(crate) const SCHEMES: [&str; 12] = [
    "ofi+tcp",
    "ofi+shm",
    "ofi+verbs",
    "ofi+cxi",
    "ofi+efa",
    "ofi+psm3",
    "ofi+psm2",
    "ofi+opx",
    "ofi+ucx",
    "ofi+net",
    "ofi+udp",
    "ofi+sockets",
];
/// What a provider needs, beside a libfabric that was built with it.
const NEEDS: [(&str, &str); SCHEMES.len()] = [
    ("tcp", "an interface that is up (`ip link set lo up` gives one for this machine alone)"),
    (
        "shm",
        "a kernel that lets processes of one user share memory, and room in /dev/shm for an endpoint of each core \
         (`df /dev/shm` tells what is free)",
    ),
    (
        "verbs",
        "an RDMA card with its driver (`rdma link` lists them; without one: `rdma link add`, soft-RoCE) and \
         libibverbs; on Debian: apt-get install rdma-core ibverbs-providers librdmacm1",
    ),
    (
        "cxi",
        "an HPE Slingshot card with its driver, and a libfabric that is built with it: HPE's, or 2.0 or later \
         by ./configure --enable-cxi",
    ),
    (
        "efa",
        "an Elastic Fabric Adapter (Amazon EC2), and the driver and libraries of the package aws-efa-installer",
    ),
    (
        "psm3",
        "an Ethernet card with an RDMA driver (`rdma link` lists them), and a libfabric that is built with it: \
         ./configure --enable-psm3",
    ),
    (
        "psm2",
        "an Omni-Path card with its driver (hfi1), and libpsm2; on Debian: apt-get install libpsm2-2",
    ),
    (
        "opx",
        "an Omni-Path card with its driver (hfi1), and a libfabric that is built with it: ./configure --enable-opx",
    ),
    (
        "ucx",
        "UCX (on Debian: apt-get install libucx0), and a libfabric 1.18 or later that is built with it: \
         ./configure --enable-ucx",
    ),
    ("net", "an interface that is up, and libfabric 1.17; in later ones it is `ofi+tcp://`"),
    ("udp", "an interface that is up, as the faster `ofi+tcp://` does"),
    ("sockets", "an interface that is up, as the faster `ofi+tcp://` does"),
];

/// The provider that stays on the machine.
pub(crate) const LOCAL: &str = "shm";
/// Longest name of a local context in bytes: an abstract socket's is a little longer.
const NAME_MAX: usize = 64;

/// The provider of an address of this plugin.
///
/// # Errors
/// [`Error::BadAddress`].
pub(crate) fn provider(address: &Address) -> Result<&str, Error> {
    let known = SCHEMES.contains(&address.scheme());
    address.scheme().strip_prefix(PREFIX).filter(|_| known).ok_or_else(|| {
        bad(address, "it needs the form ofi+PROVIDER://..., for example ofi+tcp:// or ofi+shm://")
    })
}

/// What a provider needs, beside a libfabric that was built with it.
pub(crate) fn needs(provider: &str) -> &'static str {
    let needs = NEEDS.iter().find(|(name, _)| *name == provider).map(|(_, needs)| *needs);
    needs.unwrap_or("what its manual page names")
}

/// What a URL to open asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A name on this machine; `None`: any.
    Local(Option<Box<str>>),
    /// An address and a port of this machine; `None` and 0: any.
    Network(Option<IpAddr>, u16),
}

impl Asked {
    /// Reads a URL. A host name is resolved here.
    ///
    /// # Errors
    /// [`Error::BadAddress`].
    pub(crate) fn parse(url: &Address) -> Result<Self, Error> {
        let wrong = |why: &str| bad(url, why);
        if provider(url)? == LOCAL {
            return match url.rest() {
                "" => Ok(Self::Local(None)),
                name if is_name(name) => Ok(Self::Local(Some(name.into()))),
                _ => {
                    Err(wrong("a name has up to 64 characters of a-z, A-Z, 0-9, '.', '_' and '-'"))
                }
            };
        }
        let (host, port) = split(url.rest()).map_err(wrong)?;
        let port = port.unwrap_or(0);
        if host.is_empty() {
            return Ok(Self::Network(None, port));
        }
        let ip = match host.parse::<IpAddr>() {
            Ok(ip) => ip,
            Err(_) => resolve(host).ok_or_else(|| wrong("its host cannot be resolved"))?,
        };
        Ok(Self::Network(Some(ip).filter(|ip| !ip.is_unspecified()), port))
    }
}

fn resolve(host: &str) -> Option<IpAddr> {
    let mut all = (host, 0).to_socket_addrs().ok()?.map(|address| address.ip());
    let first = all.next()?;
    Some(if first.is_ipv4() { first } else { all.find(IpAddr::is_ipv4).unwrap_or(first) })
}

/// The address of a context that listens at a place.
///
/// # Errors
/// [`Error::BadAddress`] for a name that is too long, which was checked.
pub(crate) fn address_of(provider: &str, place: &Place) -> Result<Address, Error> {
    match place {
        Place::Network(address) => Address::new(&format!("{PREFIX}{provider}://{address}")),
        Place::Local(name) => Address::new(&format!("{PREFIX}{provider}://{name}")),
    }
}

/// The place of a local context.
pub(crate) fn local(name: &str, context: u8) -> Place {
    Place::Local(format!("{name}/{context}").into())
}

/// Reads the address of a context of the same provider.
///
/// # Errors
/// [`Error::BadAddress`].
pub(crate) fn target(address: &Address, own: &str) -> Result<Place, Error> {
    let wrong = |why: &str| bad(address, why);
    if address.scheme().strip_prefix(PREFIX) != Some(own) {
        let scheme = address.scheme();
        return Err(wrong(&format!(
            "this engine reaches {PREFIX}{own}://; open one with {scheme}://"
        )));
    }
    if own == LOCAL {
        let (name, id) = address.rest().split_once('/').unwrap_or((address.rest(), "0"));
        let id = id.parse().map_err(|_| wrong("a context is a number from 0 to 255"))?;
        return if is_name(name) { Ok(local(name, id)) } else { Err(wrong("it names nobody")) };
    }
    let (host, port) = split(address.rest()).map_err(wrong)?;
    let ip: IpAddr =
        host.parse().map_err(|_| wrong("its host is no IP address: resolve it first"))?;
    match port {
        None | Some(0) => Err(wrong("it names no port")),
        Some(_) if ip.is_unspecified() => Err(wrong("its host stands for every address")),
        Some(port) => Ok(Place::Network(SocketAddr::new(ip, port))),
    }
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !name.is_empty() && name.len() <= NAME_MAX && name.bytes().all(allowed)
}

fn bad(address: &Address, why: &str) -> Error {
    Error::BadAddress { address: address.to_string(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target_of(text: &str, own: &str) -> Result<Place, Error> {
        target(&Address::new(text)?, own)
    }

    #[test]
    fn every_provider_with_a_scheme_says_what_it_needs() {
        let schemes = NEEDS.map(|(name, _)| format!("{PREFIX}{name}"));
        assert_eq!(schemes, SCHEMES);
    }

    #[test]
    fn what_needs_hardware_says_which_and_what_to_install() {
        for (name, hardware, install) in [
            ("verbs", "RDMA card", "apt-get install rdma-core ibverbs-providers librdmacm1"),
            ("cxi", "Slingshot card", "./configure --enable-cxi"),
            ("efa", "Elastic Fabric Adapter", "aws-efa-installer"),
            ("psm3", "RDMA driver", "./configure --enable-psm3"),
            ("psm2", "Omni-Path card", "apt-get install libpsm2-2"),
            ("opx", "Omni-Path card", "./configure --enable-opx"),
            ("ucx", "UCX", "./configure --enable-ucx"),
        ] {
            let needs = needs(name);
            assert!(needs.contains(hardware) && needs.contains(install), "{name}: {needs}");
        }
    }

    #[test]
    fn targets_survive_their_address() {
        for (own, text) in [
            ("tcp", "ofi+tcp://10.0.0.1:4000"),
            ("tcp", "ofi+tcp://[fe80::1]:1"),
            ("cxi", "ofi+cxi://10.0.0.1:4000"),
            ("shm", "ofi+shm://name-1/255"),
        ] {
            let place = target_of(text, own).unwrap();
            assert_eq!(address_of(own, &place).unwrap().as_str(), text);
        }
        assert_eq!(target_of("ofi+shm://a", "shm").unwrap(), local("a", 0));
    }

    #[test]
    fn what_nobody_can_connect_to_is_refused() {
        for text in [
            "ofi+tcp://",
            "ofi+tcp://1.2.3.4",
            "ofi+tcp://1.2.3.4:0",
            "ofi+tcp://name:1",
            "ofi+tcp://0.0.0.0:1",
            "ofi+tcp://::1:4",
            "ofi+tcp://[::1",
            "ofi+tcp://[a]:1",
            "tcp://1.2.3.4:1",
            "ofi+cxi://1.2.3.4:1",
            "ofi+nothing://1.2.3.4:1",
        ] {
            assert!(matches!(target_of(text, "tcp"), Err(Error::BadAddress { .. })), "{text}");
        }
        for text in
            ["ofi+shm://", "ofi+shm:///0", "ofi+shm://a/256", "ofi+shm://a/0/0", "ofi+shm://a$/0"]
        {
            assert!(matches!(target_of(text, "shm"), Err(Error::BadAddress { .. })), "{text}");
        }
    }

    #[test]
    fn urls_to_open_may_leave_everything_out() {
        let asked = |text: &str| Asked::parse(&Address::new(text).unwrap()).unwrap();
        assert_eq!(asked("ofi+shm://"), Asked::Local(None));
        assert_eq!(asked("ofi+shm://a"), Asked::Local(Some("a".into())));
        for text in ["ofi+tcp://", "ofi+tcp://0.0.0.0", "ofi+tcp://:0"] {
            assert_eq!(asked(text), Asked::Network(None, 0), "{text}");
        }
        let one = Asked::Network(Some("127.0.0.1".parse().unwrap()), 9);
        assert_eq!(asked("ofi+tcp://127.0.0.1:9"), one);
        assert!(Asked::parse(&Address::new("ofi+shm://a/b").unwrap()).is_err());
    }
}
