//! What a domain can be told when it is opened, and what the plugin can do.

use std::collections::BTreeMap;

use hg_na::{Caps, Error};
use hg_na_link::Limits;
use hg_na_parts::{
    Reader, Subnet,
    bounds::{BOUNDS, Bounds},
};

use crate::frame::{CONTROL_MAX, MESSAGE_MAX, TRANSFERS_MAX};

/// Setting: name of the interface at whose address it listens.
pub(crate) const INTERFACE: &str = "interface";
/// Setting: `ADDRESS/BITS`, where the announced address lies.
pub(crate) const SUBNET: &str = "subnet";
/// Setting: KiB that the kernel takes of what it cannot send yet.
pub(crate) const UNSENT_KIB: &str = "unsent-kib";
const OWN: [&str; 3] = [INTERFACE, SUBNET, UNSENT_KIB];

/// Messages of one kind, to one peer, that wait for credits.
const QUEUE_DEPTH: usize = 1024;
/// What each peer's handle takes at a time.
pub(crate) const LIMITS: Limits = Limits {
    message: MESSAGE_MAX,
    control: CONTROL_MAX,
    depth: QUEUE_DEPTH,
    transfers: TRANSFERS_MAX,
};

/// The settings of one domain.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) interface: Option<String>,
    pub(crate) subnet: Option<Subnet>,
    pub(crate) bounds: Bounds,
    /// Bytes that the kernel takes of what it cannot send yet; `None`: as many as it likes.
    pub(crate) unsent_max: Option<u32>,
}

impl Settings {
    /// Reads settings by name.
    ///
    /// # Errors
    /// [`Error::BadSetting`] for a name or a value that is not taken.
    pub(crate) fn read(settings: &BTreeMap<String, String>) -> Result<Self, Error> {
        let reader = Reader::new("tcp", &[&OWN[..], &BOUNDS].concat(), settings)?;
        Ok(Self {
            interface: settings.get(INTERFACE).cloned(),
            subnet: reader.subnet(SUBNET)?,
            bounds: Bounds::read(&reader)?,
            unsent_max: reader.number(UNSENT_KIB)?.map(unsent_max).transpose()?,
        })
    }
}

fn unsent_max(kib: u64) -> Result<u32, Error> {
    let is_fit = (4..=1 << 20).contains(&kib);
    let bytes = is_fit.then(|| u32::try_from(kib << 10).ok()).flatten();
    bytes.ok_or_else(|| Reader::bad(UNSENT_KIB, "4 to 1048576"))
}

/// What this plugin can do.
pub(crate) fn caps(settings: &Settings) -> Caps {
    let mut caps = LIMITS.caps();
    caps.silence_bound = Some(settings.bounds.silence_bound);
    caps
}

#[cfg(test)]
mod tests {
    use hg_na_parts::{
        MAX_HELD_MIB,
        bounds::{CONNECT_TIMEOUT_MS, MAX_PEERS, SILENCE_BOUND_MS},
        key,
    };

    use super::*;

    fn read(name: &str, value: &str) -> Result<Settings, Error> {
        Settings::read(&BTreeMap::from([(name.to_owned(), value.to_owned())]))
    }

    #[test]
    fn unknown_names_and_bad_values_are_refused() {
        assert!(matches!(read("colour", "red"), Err(Error::UnknownSetting { .. })));
        assert!(read("routing", "off").is_ok(), "there is but one way");
        for (name, value) in [
            (CONNECT_TIMEOUT_MS, "0"),
            (MAX_PEERS, "many"),
            (MAX_HELD_MIB, "0"),
            (UNSENT_KIB, "3"),
            (UNSENT_KIB, "1048577"),
            (SILENCE_BOUND_MS, "2999"),
            (SUBNET, "10.0.0.0"),
        ] {
            assert!(matches!(read(name, value), Err(Error::BadSetting { .. })), "{name} {value}");
        }
        assert_eq!(read(UNSENT_KIB, "64").unwrap().unsent_max, Some(64 << 10));
        assert_eq!(read(SILENCE_BOUND_MS, "4000").unwrap().unsent_max, None);
        assert_eq!(read(SILENCE_BOUND_MS, "4000").unwrap().bounds.silence_bound.as_secs(), 4);
    }

    #[test]
    fn a_key_that_is_handed_over_by_itself_is_taken_where_the_build_can_encrypt() {
        let key = hg_na::Key([7; 32]);
        assert_eq!(format!("{key:?}"), "Key(..)");
        let given = Settings::read(&BTreeMap::new()).unwrap().bounds.with_key(Some(&key));
        if key::AVAILABLE {
            let given = given.unwrap();
            assert!(given.key.is_some());
            let twice = given.with_key(Some(&key)).unwrap_err().to_string();
            assert!(twice.contains("another one"), "{twice}");
        } else {
            assert!(given.unwrap_err().to_string().contains("cannot encrypt"));
        }
    }
}
