//! What a domain can be told when it is opened, and what the plugin can do.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use hg_na::{Caps, CheckedBy, Error, PutOrdering, Sleep};
use hg_na_link::Limits;
use hg_na_parts::{Reader, Subnet, regions::SEGMENTS_MAX};

use crate::fabric::Way;

/// Setting: name of libfabric's domain: an interface or a card (`fi_info` lists them).
pub(crate) const DOMAIN: &str = "domain";
/// Setting: `ADDRESS/BITS`, where the address of the context lies.
pub(crate) const SUBNET: &str = "subnet";
/// Setting: the address of this machine on which lifelines are taken, for providers without internet addresses.
pub(crate) const LIFELINE: &str = "lifeline";
/// Setting: milliseconds until a peer that does not answer the greeting is given up.
pub(crate) const CONNECT_TIMEOUT_MS: &str = "connect-timeout-ms";
/// Setting: milliseconds until a peer that is cut off without a word is given up.
pub(crate) const SILENCE_BOUND_MS: &str = "silence-bound-ms";
/// Setting: milliseconds until a peer that lives, but to whom libfabric sends nothing, is given up.
pub(crate) const RETRY_BOUND_MS: &str = "retry-bound-ms";
/// Setting: connections of one context at a time.
pub(crate) const MAX_PEERS: &str = "max-peers";

/// Setting: `off` posts a frame for each message even where the provider has multi-receive buffers.
pub(crate) const MULTI_RECEIVE: &str = "multi-receive";
/// Setting: `tagged` uses tagged messages even where the provider has others.
pub(crate) const MESSAGES: &str = "messages";
/// Setting: `off` polls even where the provider has something to wait on.
pub(crate) const SLEEP: &str = "sleep";

/// Setting: `off` moves put and get in messages even where the provider has one-sided operations.
pub(crate) const RMA: &str = "rma";

const KNOWN: [&str; 11] = [
    DOMAIN,
    SUBNET,
    LIFELINE,
    CONNECT_TIMEOUT_MS,
    SILENCE_BOUND_MS,
    RETRY_BOUND_MS,
    MAX_PEERS,
    RMA,
    MULTI_RECEIVE,
    MESSAGES,
    SLEEP,
];

/// Longest message in bytes: several frames where a provider's are shorter.
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
const RETRY_BOUND: Duration = Duration::from_secs(60);
const PEERS: usize = 65_536;

/// The settings of one domain.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) domain: Option<String>,
    pub(crate) subnet: Option<Subnet>,
    pub(crate) lifeline: Option<IpAddr>,
    pub(crate) connect_timeout: Duration,
    pub(crate) silence_bound: Duration,
    pub(crate) retry_bound: Duration,
    pub(crate) max_peers: usize,
    pub(crate) rma: bool,
    /// `None`: where it pays.
    pub(crate) multi_receive: Option<bool>,
    /// `None`: untagged, if the provider has that.
    pub(crate) way: Option<Way>,
    pub(crate) sleep: bool,
}

impl Settings {
    /// Reads settings by name.
    ///
    /// # Errors
    /// [`Error::BadSetting`] for a name or a value that is not taken.
    pub(crate) fn read(settings: &BTreeMap<String, String>) -> Result<Self, Error> {
        let reader = Reader::new("ofi", &KNOWN, settings)?;
        let silence_bound = reader.milliseconds(SILENCE_BOUND_MS, SILENCE_BOUND)?;
        if silence_bound < SILENCE_BOUND_MIN {
            return Err(Reader::bad(SILENCE_BOUND_MS, "the kernel's probes need 3000 at least"));
        }
        let lifeline = reader
            .text(LIFELINE)
            .map(|text| text.parse().map_err(|_| Reader::bad(LIFELINE, "it takes an IP address")));
        let multi_receive = match reader.text(MULTI_RECEIVE) {
            None => None,
            Some(_) => Some(reader.switch(MULTI_RECEIVE, "on", "off", true)?),
        };
        let way = match reader.text(MESSAGES) {
            None => None,
            Some(_) if reader.switch(MESSAGES, "tagged", "untagged", false)? => Some(Way::Tagged),
            Some(_) => Some(Way::Untagged),
        };
        Ok(Self {
            rma: reader.switch(RMA, "on", "off", true)?,
            multi_receive,
            way,
            sleep: reader.switch(SLEEP, "on", "off", true)?,
            domain: reader.text(DOMAIN).map(str::to_owned),
            subnet: reader.subnet(SUBNET)?,
            lifeline: lifeline.transpose()?,
            connect_timeout: reader.milliseconds(CONNECT_TIMEOUT_MS, CONNECT_TIMEOUT)?,
            silence_bound,
            retry_bound: reader.milliseconds(RETRY_BOUND_MS, RETRY_BOUND)?,
            max_peers: reader.count(MAX_PEERS, PEERS)?,
        })
    }
}

/// What this plugin can do. `sleeps`: the provider has something to wait on.
pub(crate) fn caps(settings: &Settings, sleeps: bool) -> Caps {
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
    caps.sleep = if sleeps { Sleep::Descriptor } else { Sleep::Poll };
    caps.joins = sleeps;
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
            (SUBNET, "10.0.0.0"),
            (LIFELINE, "eth0"),
            (RMA, "perhaps"),
            (MULTI_RECEIVE, "2"),
            (MESSAGES, "off"),
            (SLEEP, "poll"),
        ] {
            assert!(matches!(read(name, value), Err(Error::BadSetting { .. })), "{name} {value}");
        }
        assert_eq!(read(SILENCE_BOUND_MS, "4000").unwrap().silence_bound.as_secs(), 4);
    }
}
