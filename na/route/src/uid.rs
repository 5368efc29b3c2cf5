//! The address of both: `uid://NODE#LOCAL#NETWORK`.
//!
//! NODE is a UUID in its one spelling (36 characters, lower case); the parts are addresses of the two plugins,
//! which hold no `#`. Bounded as every address: [`hg_na::ADDRESS_MAX`].

use std::{
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
};

use hg_na::{Address, Error, UID};
use uuid::Uuid;

/// Longest name of the local plugin in bytes; the same as `sm`'s.
const NAME_MAX: usize = 64;

/// An address, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Uid {
    /// Where the peer is.
    pub(crate) node: Uuid,
    /// Its address there.
    pub(crate) local: Address,
    /// Its address for all others.
    pub(crate) network: Address,
}

impl Uid {
    /// Reads an address.
    ///
    /// # Errors
    /// [`Error::BadAddress`] with what is wrong.
    pub(crate) fn parse(address: &Address) -> Result<Self, Error> {
        let wrong = |why: &str| bad(address, why);
        if address.scheme() != UID {
            return Err(wrong("its scheme is not uid"));
        }
        let mut pieces = address.rest().split('#');
        let (Some(node), Some(local), Some(network), None) =
            (pieces.next(), pieces.next(), pieces.next(), pieces.next())
        else {
            return Err(wrong("it needs the form uid://NODE#sm://...#tcp://..."));
        };
        let parsed = Uuid::try_parse(node).ok().filter(|parsed| parsed.to_string() == node);
        let parsed = parsed.ok_or_else(|| wrong("the node before the first '#' is no UUID"))?;
        let part = |text: &str| {
            let part = Address::new(text).ok().filter(|part| part.scheme() != UID);
            part.filter(|part| !part.rest().is_empty())
                .ok_or_else(|| wrong("behind each '#' stands an address of one plugin"))
        };
        Ok(Self { node: parsed, local: part(local)?, network: part(network)? })
    }

    /// Whether its network address is certainly none of this machine's, where that is numeric. A node id is that of a boot: machines
    /// that were resumed from one snapshot share it, and reach each other because their addresses differ.
    pub(crate) fn is_elsewhere(&self) -> bool {
        let place = self.network.rest().split('/').next().unwrap_or_default();
        let Ok(place) = place.parse::<SocketAddr>() else { return false };
        let bound = UdpSocket::bind((place.ip(), 0));
        bound.is_err_and(|error| error.kind() == ErrorKind::AddrNotAvailable)
    }

    /// The text.
    ///
    /// # Errors
    /// [`Error::BadAddress`] when it is too long, or a part cannot stand in one.
    pub(crate) fn address(&self) -> Result<Address, Error> {
        let text = format!("{UID}://{}#{}#{}", self.node, self.local, self.network);
        let address = Address::new(&text)?;
        match Self::parse(&address) {
            Ok(same) if same == *self => Ok(address),
            _ => Err(bad(&address, "a part of it holds a '#' or is empty")),
        }
    }
}

/// The local name that goes with a network URL of a fixed port, so that whoever listens there again has the
/// same address again. `None` for ports that the system chooses.
pub(crate) fn name_of(rest: &str) -> Option<String> {
    let (_, port) = rest.rsplit_once(':')?;
    let is_fixed =
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.bytes().any(|byte| byte != b'0');
    let keep = |byte: char| byte.is_ascii_alphanumeric() || "._-".contains(byte);
    let name: String = rest.chars().map(|byte| if keep(byte) { byte } else { '_' }).collect();
    let name = format!("at-{name}");
    (is_fixed && name.len() <= NAME_MAX).then_some(name)
}

pub(crate) fn bad(address: &Address, why: &str) -> Error {
    let address = address.as_str().chars().take(128).collect();
    Error::BadAddress { address, why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};

    use super::*;

    fn parse(text: &str) -> Result<Uid, Error> {
        Uid::parse(&Address::new(text).unwrap())
    }

    const NODE: &str = "6f0c8a52-3a9e-4f0b-9d57-25c41be670d8";

    #[test]
    fn what_is_no_address_of_both_is_refused() {
        for rest in [
            String::new(),
            NODE.to_owned(),
            format!("{NODE}#sm://a"),
            format!("{NODE}#sm://a#tcp://b#"),
            format!("{NODE}#sm://a#tcp://b#ofi://c"),
            format!("{NODE}#sm://a#tcp://"),
            format!("{NODE}#sm://a#tcp"),
            format!("{NODE}##tcp://b"),
            format!("{NODE}#uid://x#tcp://b"),
            format!("{}#sm://a#tcp://b", NODE.to_uppercase()),
            format!("{}#sm://a#tcp://b", NODE.replace('-', "")),
            format!("{{{NODE}}}#sm://a#tcp://b"),
            "node#sm://a#tcp://b".to_owned(),
        ] {
            let refused = parse(&format!("uid://{rest}"));
            assert!(matches!(refused, Err(Error::BadAddress { .. })), "{rest}: {refused:?}");
        }
        assert!(parse("sm://a").is_err());
    }

    #[test]
    fn a_part_that_cannot_stand_in_one_is_refused() {
        let uid = |local: &str, network: &str| Uid {
            node: Uuid::nil(),
            local: Address::new(local).unwrap(),
            network: Address::new(network).unwrap(),
        };
        assert!(uid("sm://a#b", "tcp://c").address().is_err());
        assert!(uid("sm://a", "tcp://").address().is_err());
        assert!(uid("sm://a", &format!("tcp://{}", "c".repeat(500))).address().is_err());
    }

    #[test]
    fn only_a_fixed_port_has_a_name_of_its_own() {
        assert_eq!(name_of("[::1]:7000").unwrap(), "at-___1__7000");
        for rest in ["", "host", "host:0", "host:00", "host:", "host:70x", ":"] {
            assert_eq!(name_of(rest), None, "{rest}");
        }
        assert_eq!(name_of(&format!("{}:7", "h".repeat(64))), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_address_survives_its_text(
            node: u128, local in "[!-\"$-)+-~]{1,80}", network in "[!-\"$-)+-~]{1,200}",
        ) {
            let uid = Uid {
                node: Uuid::from_u128(node),
                local: Address::new(&format!("sm://{local}")).unwrap(),
                network: Address::new(&format!("tcp://{network}")).unwrap(),
            };
            let address = uid.address().unwrap();
            prop_assert_eq!(address.part("sm"), Some(uid.local.clone()));
            prop_assert_eq!(address.part("tcp"), Some(uid.network.clone()));
            prop_assert_eq!(Uid::parse(&address).unwrap(), uid);
        }

        #[test]
        fn whatever_parses_has_one_spelling(rest in "[0-9a-f#:/tcpsm-]{0,120}", any_text in any::<bool>()) {
            let rest = if any_text { rest } else { format!("{NODE}#{rest}") };
            let address = Address::new(&format!("uid://{rest}")).unwrap();
            if let Ok(uid) = Uid::parse(&address) {
                prop_assert_eq!(uid.address().unwrap(), address);
            }
        }
    }
}
