//! What a domain can be told when it is opened, and what the plugin can do.

use std::{collections::BTreeMap, time::Duration};

use hg_na::{Caps, Error};
use hg_na_link::Limits;
use hg_na_parts::{
    MAX_HELD_MIB, Reader, Subnet,
    key::{KEY_ENV, KEY_FILE, Key},
};

use crate::frame::{CONTROL_MAX, MESSAGE_MAX, TRANSFERS_MAX};

/// Setting: name of the interface at whose address it listens.
pub(crate) const INTERFACE: &str = "interface";
/// Setting: `ADDRESS/BITS`, where the announced address lies.
pub(crate) const SUBNET: &str = "subnet";
/// Setting: milliseconds until a peer that does not answer the greeting is given up.
pub(crate) const CONNECT_TIMEOUT_MS: &str = "connect-timeout-ms";
/// Setting: milliseconds until a peer that is cut off without a word is given up.
pub(crate) const SILENCE_BOUND_MS: &str = "silence-bound-ms";
/// Setting: KiB that the kernel takes of what it cannot send yet.
pub(crate) const UNSENT_KIB: &str = "unsent-kib";
/// Setting: connections of one context at a time.
pub(crate) const MAX_PEERS: &str = "max-peers";

const KNOWN: [&str; 9] = [
    INTERFACE,
    SUBNET,
    CONNECT_TIMEOUT_MS,
    SILENCE_BOUND_MS,
    UNSENT_KIB,
    MAX_PEERS,
    MAX_HELD_MIB,
    KEY_FILE,
    KEY_ENV,
];

/// Messages of one kind, to one peer, that wait for credits.
const QUEUE_DEPTH: usize = 1024;
/// What each peer's handle takes at a time.
pub(crate) const LIMITS: Limits = Limits {
    message: MESSAGE_MAX,
    control: CONTROL_MAX,
    depth: QUEUE_DEPTH,
    transfers: TRANSFERS_MAX,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const SILENCE_BOUND: Duration = Duration::from_secs(30);
/// The kernel counts in seconds: one of silence, then two probes a second apart.
pub(crate) const SILENCE_BOUND_MIN: Duration = Duration::from_secs(3);
const PEERS: usize = 65_536;

/// The settings of one domain.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) interface: Option<String>,
    pub(crate) subnet: Option<Subnet>,
    pub(crate) connect_timeout: Duration,
    pub(crate) silence_bound: Duration,
    /// Bytes that the kernel takes of what it cannot send yet; `None`: as many as it likes.
    pub(crate) unsent_max: Option<i32>,
    pub(crate) max_peers: usize,
    /// Bytes that wait for admission.
    pub(crate) max_held: u64,
    pub(crate) key: Option<Key>,
}

impl Settings {
    /// Reads settings by name.
    ///
    /// # Errors
    /// [`Error::BadSetting`] for a name or a value that is not taken.
    pub(crate) fn read(settings: &BTreeMap<String, String>) -> Result<Self, Error> {
        let reader = Reader::new("tcp", &KNOWN, settings)?;
        let silence_bound = reader.milliseconds(SILENCE_BOUND_MS, SILENCE_BOUND)?;
        if silence_bound < SILENCE_BOUND_MIN {
            return Err(Reader::bad(SILENCE_BOUND_MS, "the kernel's probes need 3000 at least"));
        }
        let unsent_max = reader.number(UNSENT_KIB)?.map(unsent_max).transpose()?;
        Ok(Self {
            interface: settings.get(INTERFACE).cloned(),
            subnet: reader.subnet(SUBNET)?,
            connect_timeout: reader.milliseconds(CONNECT_TIMEOUT_MS, CONNECT_TIMEOUT)?,
            silence_bound,
            unsent_max,
            max_peers: reader.count(MAX_PEERS, PEERS)?,
            max_held: reader.held()?,
            key: Key::named(&reader)?,
        })
    }

    /// The same with a key that was handed over by itself.
    ///
    /// # Errors
    /// [`Error::BadSetting`] where the settings name another one, or the build cannot encrypt.
    pub(crate) fn with_key(self, given: Option<&hg_na::Key>) -> Result<Self, Error> {
        Ok(Self { key: Key::named_or_given(self.key, given)?, ..self })
    }
}

fn unsent_max(kib: u64) -> Result<i32, Error> {
    let is_fit = (4..=1 << 20).contains(&kib);
    let bytes = is_fit.then(|| i32::try_from(kib << 10).ok()).flatten();
    bytes.ok_or_else(|| Reader::bad(UNSENT_KIB, "4 to 1048576"))
}

/// What this plugin can do.
pub(crate) fn caps(settings: &Settings) -> Caps {
    let mut caps = LIMITS.caps();
    caps.silence_bound = Some(settings.silence_bound);
    caps
}

#[cfg(test)]
mod tests {
    use hg_na_parts::key;

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
        assert_eq!(read(SILENCE_BOUND_MS, "4000").unwrap().silence_bound.as_secs(), 4);
    }

    #[test]
    fn a_key_that_is_handed_over_by_itself_is_taken_where_the_build_can_encrypt() {
        let key = hg_na::Key([7; 32]);
        assert_eq!(format!("{key:?}"), "Key(..)");
        let given = Settings::read(&BTreeMap::new()).unwrap().with_key(Some(&key));
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
