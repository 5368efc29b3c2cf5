//! What a domain can be told when it is opened, and what the plugin can do.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use hg_na::{Caps, CheckedBy, Error, PutOrdering, Sleep};

use crate::{region::SEGMENTS_MAX, wire::WINDOW};

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

/// Setting: `off` moves put and get in messages even where the provider has one-sided operations.
pub(crate) const RMA: &str = "rma";

const KNOWN: [&str; 8] = [
    DOMAIN,
    SUBNET,
    LIFELINE,
    CONNECT_TIMEOUT_MS,
    SILENCE_BOUND_MS,
    RETRY_BOUND_MS,
    MAX_PEERS,
    RMA,
];

/// Longest message in bytes: several frames where a provider's are shorter.
pub(crate) const MESSAGE_MAX: usize = 16 << 10;
/// Longest control message in bytes.
pub(crate) const CONTROL_MAX: usize = 1024;
/// Messages of one kind, to one peer, that wait for credits.
pub(crate) const QUEUE_DEPTH: usize = 1024;

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
}

fn bad(name: &str, why: &str) -> Error {
    Error::BadSetting { name: name.to_owned(), why: why.to_owned() }
}

impl Settings {
    /// Reads settings by name.
    ///
    /// # Errors
    /// [`Error::BadSetting`] for a name or a value that is not taken.
    pub(crate) fn read(settings: &BTreeMap<String, String>) -> Result<Self, Error> {
        if let Some(name) = settings.keys().find(|name| !KNOWN.contains(&name.as_str())) {
            return Err(bad(name, &format!("ofi knows only {}", KNOWN.join(", "))));
        }
        let number = |name: &str| -> Result<Option<u64>, Error> {
            let parse = |text: &String| text.parse().ok().filter(|number| *number > 0);
            let wrong = || bad(name, "it takes a positive number");
            settings.get(name).map(|text| parse(text).ok_or_else(wrong)).transpose()
        };
        let time = |name: &str, default: Duration| -> Result<Duration, Error> {
            Ok(number(name)?.map_or(default, Duration::from_millis))
        };
        let silence_bound = time(SILENCE_BOUND_MS, SILENCE_BOUND)?;
        if silence_bound < SILENCE_BOUND_MIN {
            return Err(bad(SILENCE_BOUND_MS, "the kernel's probes need 3000 at least"));
        }
        let subnet = settings.get(SUBNET).map(|text| {
            Subnet::parse(text).ok_or_else(|| bad(SUBNET, "it takes ADDRESS/BITS, as 10.1.0.0/16"))
        });
        let lifeline = settings
            .get(LIFELINE)
            .map(|text| text.parse().map_err(|_| bad(LIFELINE, "it takes an IP address")));
        let rma = match settings.get(RMA).map(String::as_str) {
            None | Some("on") => true,
            Some("off") => false,
            Some(_) => return Err(bad(RMA, "it takes on or off")),
        };
        Ok(Self {
            rma,
            domain: settings.get(DOMAIN).cloned(),
            subnet: subnet.transpose()?,
            lifeline: lifeline.transpose()?,
            connect_timeout: time(CONNECT_TIMEOUT_MS, CONNECT_TIMEOUT)?,
            silence_bound,
            retry_bound: time(RETRY_BOUND_MS, RETRY_BOUND)?,
            max_peers: number(MAX_PEERS)?
                .map_or(PEERS, |number| usize::try_from(number).unwrap_or(PEERS)),
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
    caps.unmatched_max = usize::from(WINDOW);
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

/// A range of addresses: `10.1.0.0/16`, `fd00::/8`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subnet {
    base: IpAddr,
    bits: u8,
}

impl Subnet {
    fn parse(text: &str) -> Option<Self> {
        let (base, bits) = text.split_once('/')?;
        let (base, bits): (IpAddr, u8) = (base.parse().ok()?, bits.parse().ok()?);
        let most = if base.is_ipv4() { 32 } else { 128 };
        (bits <= most).then_some(Self { base, bits })
    }

    /// Whether an address lies in it.
    pub(crate) fn contains(self, ip: IpAddr) -> bool {
        let (one, other, width) = match (self.base, ip) {
            (IpAddr::V4(base), IpAddr::V4(ip)) => {
                (u128::from(base.to_bits()), u128::from(ip.to_bits()), 32)
            }
            (IpAddr::V6(base), IpAddr::V6(ip)) => (base.to_bits(), ip.to_bits(), 128),
            _ => return false,
        };
        (one ^ other).checked_shr(width - u32::from(self.bits)).unwrap_or(0) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, value: &str) -> Result<Settings, Error> {
        Settings::read(&BTreeMap::from([(name.to_owned(), value.to_owned())]))
    }

    #[test]
    fn unknown_names_and_bad_values_are_refused() {
        for (name, value) in [
            ("colour", "red"),
            (CONNECT_TIMEOUT_MS, "0"),
            (MAX_PEERS, "many"),
            (SILENCE_BOUND_MS, "2999"),
            (SUBNET, "10.0.0.0"),
            (LIFELINE, "eth0"),
            (RMA, "perhaps"),
        ] {
            assert!(matches!(read(name, value), Err(Error::BadSetting { .. })), "{name} {value}");
        }
        assert_eq!(read(SILENCE_BOUND_MS, "4000").unwrap().silence_bound.as_secs(), 4);
    }

    #[test]
    fn a_subnet_contains_what_shares_its_bits() {
        let ten = read(SUBNET, "10.1.0.0/16").unwrap().subnet.unwrap();
        assert!(ten.contains("10.1.255.255".parse().unwrap()));
        assert!(!ten.contains("10.2.0.0".parse().unwrap()));
        assert!(!ten.contains("::1".parse().unwrap()));
    }
}
