//! What libfabric offers on this machine, for people and programs that choose.

use std::net::IpAddr;

use hg_na::Error;
use libfabric_sys as sys;

use crate::{
    address::{PREFIX, SCHEMES},
    cards::Pci,
    fabric::{Wanted, library, offers as all_offers},
};

pub use libfabric_sys::{Missing, PATH_VARIABLE};

/// One way to communicate that libfabric offers here: a provider on a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Offer {
    /// What opens it: `ofi+tcp`. `None`: this plugin has no scheme for it.
    pub(crate) scheme: Option<String>,
    /// The provider, with the layers above it (`fi_info`'s `provider`): `tcp;ofi_rxm`.
    pub(crate) provider: String,
    /// Version of the provider.
    pub(crate) version: (u32, u32),
    /// The network that it reaches.
    pub(crate) fabric: String,
    /// The interface or card; the setting `domain` takes it.
    pub(crate) domain: String,
    /// Where its card is, if that is known.
    pub(crate) pci: Option<Pci>,
    /// How its endpoints are named: `FI_SOCKADDR_IN`, `FI_ADDR_STR`, ...
    pub(crate) address_format: String,
    /// The own address, where it is an internet address.
    pub(crate) ip: Option<IpAddr>,
    /// Whether it reads and writes peers' memory by itself (`FI_RMA`).
    pub(crate) one_sided: bool,
    /// Whether one buffer takes many messages (`FI_MULTI_RECV`).
    pub(crate) multi_receive: bool,
    /// What it demands of registered memory: `FI_MR_LOCAL`, `FI_MR_VIRT_ADDR`, ...
    pub(crate) registration: Vec<&'static str>,
    /// Longest message in bytes.
    pub(crate) max_message: usize,
    /// Longest message in bytes that it takes without a completion of its own (`inject_size`).
    pub(crate) max_inject: usize,
}

/// Version of the library, which is loaded now if it was not before.
///
/// # Errors
/// What is missing, and what to install.
pub fn library_version() -> Result<(u32, u32), Missing> {
    Ok(sys::library()?.version())
}

/// Everything with reliable unconnected endpoints and ordered messages, in libfabric's order: best first.
///
/// # Errors
/// [`Error::Os`] that says what to install when there is no libfabric ([`library_version`] names it), or that
/// libfabric failed.
pub(crate) fn offers() -> Result<Vec<Offer>, Error> {
    library()?;
    let mut listed: Vec<Offer> = Vec::new();
    for offer in all_offers(Wanted { everything: true, ..Wanted::default() })? {
        let limits = offer.limits();
        let first = offer.provider.split(';').next().unwrap_or_default();
        let scheme = format!("{PREFIX}{first}");
        let offer = Offer {
            scheme: SCHEMES.contains(&scheme.as_str()).then_some(scheme),
            provider: offer.provider.clone(),
            version: offer.version,
            fabric: offer.fabric.clone(),
            domain: offer.domain.clone(),
            pci: offer.pci,
            address_format: format_name(limits.address_format),
            ip: offer.ip,
            one_sided: limits.caps & sys::RMA != 0,
            multi_receive: limits.caps & sys::MULTI_RECV != 0,
            registration: modes(limits.mr_mode),
            max_message: limits.max_message,
            max_inject: limits.inject_size,
        };
        // One for each set of further abilities that are of no use here.
        let same = |it: &Offer| {
            (&it.provider, &it.domain, &it.ip) == (&offer.provider, &offer.domain, &offer.ip)
        };
        if !listed.iter().any(same) {
            listed.push(offer);
        }
    }
    Ok(listed)
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
pub(crate) fn modes(mr_mode: i32) -> Vec<&'static str> {
    MODES.iter().filter(|(bit, _)| mr_mode & bit != 0).map(|(_, name)| *name).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_formats_have_their_names() {
        assert_eq!(modes(sys::MR_LOCAL | sys::MR_ENDPOINT), ["FI_MR_LOCAL", "FI_MR_ENDPOINT"]);
        assert!(modes(0).is_empty());
        assert_eq!(format_name(2), "FI_SOCKADDR_IN");
        assert_eq!(format_name(9), "FI_ADDR_STR");
        assert_eq!(format_name(99), "format 99");
    }

    #[test]
    fn what_every_machine_has_is_listed_once() {
        let all = offers().unwrap();
        let of =
            |scheme: &str| all.iter().filter(|it| it.scheme.as_deref() == Some(scheme)).count();
        assert_eq!(of("ofi+shm"), 1, "{all:?}");
        assert!(of("ofi+tcp") >= 1, "{all:?}");
        let loopback = all.iter().find(|it| it.ip.is_some_and(|ip| ip.is_loopback())).unwrap();
        assert_eq!(loopback.address_format, "FI_SOCKADDR_IN");
        assert!(loopback.one_sided && library_version().unwrap() >= (1, 17));
    }
}
