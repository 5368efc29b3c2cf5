//! What a domain can be told when it is opened, and what the plugin can do.

use std::{collections::BTreeMap, time::Duration};

use hg_na::{Caps, CheckedBy, Error, PutOrdering, Sleep};
use hg_na_link::Limits;
use hg_na_parts::{Reader, regions::SEGMENTS_MAX};

/// Setting: milliseconds until a peer that does not answer the greeting is given up.
pub(crate) const CONNECT_TIMEOUT_MS: &str = "connect-timeout-ms";
/// Setting: milliseconds until a peer that is cut off without a word is given up.
pub(crate) const SILENCE_BOUND_MS: &str = "silence-bound-ms";
/// Setting: connections of one context at a time.
pub(crate) const MAX_PEERS: &str = "max-peers";
/// Setting: one in so many posts of a queue pair asks for its completion.
pub(crate) const SIGNAL_EVERY: &str = "signal-every";
/// Setting: `off` moves put and get in messages.
pub(crate) const RMA: &str = "rma";

const KNOWN: [&str; 5] = [CONNECT_TIMEOUT_MS, SILENCE_BOUND_MS, MAX_PEERS, SIGNAL_EVERY, RMA];

/// Longest message in bytes.
pub(crate) const MESSAGE_MAX: usize = 16 << 10;
/// Longest control message in bytes.
pub(crate) const CONTROL_MAX: usize = 1024;
/// Messages of one kind, to one peer, that wait for credits.
const QUEUE_DEPTH: usize = 1024;
/// What each peer's handle takes at a time.
pub(crate) const LIMITS: Limits = Limits {
    message: MESSAGE_MAX,
    control: CONTROL_MAX,
    depth: QUEUE_DEPTH,
    transfers: QUEUE_DEPTH,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const SILENCE_BOUND: Duration = Duration::from_secs(30);
/// The kernel counts its probes in seconds.
const SILENCE_BOUND_MIN: Duration = Duration::from_secs(3);
const PEERS: usize = 65_536;
const EVERY: usize = 32;

/// The settings of one domain.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) connect_timeout: Duration,
    pub(crate) silence_bound: Duration,
    pub(crate) max_peers: usize,
    pub(crate) signal_every: u32,
    pub(crate) rma: bool,
}

impl Settings {
    /// Reads settings by name.
    ///
    /// # Errors
    /// [`Error::BadSetting`] for a name or a value that is not taken.
    pub(crate) fn read(settings: &BTreeMap<String, String>) -> Result<Self, Error> {
        let reader = Reader::new("verbs", &KNOWN, settings)?;
        let silence_bound = reader.milliseconds(SILENCE_BOUND_MS, SILENCE_BOUND)?;
        if silence_bound < SILENCE_BOUND_MIN {
            return Err(Reader::bad(SILENCE_BOUND_MS, "the kernel's probes need 3000 at least"));
        }
        let every = reader.count(SIGNAL_EVERY, EVERY)?;
        Ok(Self {
            connect_timeout: reader.milliseconds(CONNECT_TIMEOUT_MS, CONNECT_TIMEOUT)?,
            silence_bound,
            max_peers: reader.count(MAX_PEERS, PEERS)?,
            // Half a queue's places are fewer in any case.
            signal_every: u32::try_from(every).unwrap_or(u32::MAX),
            rma: reader.switch(RMA, "on", "off", true)?,
        })
    }
}

/// What this plugin can do.
pub(crate) fn caps(settings: &Settings) -> Caps {
    let mut caps = Caps::minimal();
    caps.max_unexpected = MESSAGE_MAX;
    caps.max_expected = MESSAGE_MAX;
    caps.max_control = CONTROL_MAX;
    caps.short_unexpected = hg_na::INLINE_MAX;
    caps.short_expected = hg_na::INLINE_MAX;
    caps.queue_depth = QUEUE_DEPTH;
    caps.max_contexts = 256;
    caps.max_segments = SEGMENTS_MAX;
    caps.one_sided = true;
    caps.checked_by = CheckedBy::Owner;
    caps.put_ordering = PutOrdering::AfterCompletion;
    caps.sleep = Sleep::Descriptor;
    caps.joins = true;
    caps.silence_bound = Some(settings.silence_bound);
    caps
}

#[cfg(test)]
mod tests {
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
            (SILENCE_BOUND_MS, "2999"),
            (SIGNAL_EVERY, "0"),
            (RMA, "perhaps"),
        ] {
            assert!(matches!(read(name, value), Err(Error::BadSetting { .. })), "{name} {value}");
        }
        assert_eq!(read(SIGNAL_EVERY, "1").unwrap().signal_every, 1);
    }
}
