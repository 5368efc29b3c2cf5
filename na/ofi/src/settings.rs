//! What a domain can be told when it is opened.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use hg_na::Error;
use hg_na_frames::{
    Bounds,
    common::{CONNECT_TIMEOUT_MS, KEY_ENV, KEY_FILE, MAX_PEERS, RMA, SILENCE_BOUND_MS},
};
use hg_na_parts::{Reader, Subnet};

use crate::fabric::Way;

/// Setting: name of libfabric's domain: an interface or a card (`fi_info` lists them).
pub(crate) const DOMAIN: &str = "domain";
/// Setting: `ADDRESS/BITS`, where the address of the context lies.
pub(crate) const SUBNET: &str = "subnet";
/// Setting: the address of this machine on which lifelines are taken, for providers without internet addresses.
pub(crate) const LIFELINE: &str = "lifeline";
/// Setting: milliseconds until a peer that lives, but to whom libfabric sends nothing, is given up.
pub(crate) const RETRY_BOUND_MS: &str = "retry-bound-ms";
/// Setting: `off` posts a frame for each message even where the provider has multi-receive buffers.
pub(crate) const MULTI_RECEIVE: &str = "multi-receive";
/// Setting: `tagged` uses tagged messages even where the provider has others.
pub(crate) const MESSAGES: &str = "messages";
/// Setting: `off` polls even where the provider has something to wait on.
pub(crate) const SLEEP: &str = "sleep";

const KNOWN: [&str; 13] = [
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
    KEY_FILE,
    KEY_ENV,
];

const RETRY_BOUND: Duration = Duration::from_secs(60);

/// The settings of one domain.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) domain: Option<String>,
    pub(crate) subnet: Option<Subnet>,
    pub(crate) lifeline: Option<IpAddr>,
    pub(crate) bounds: Bounds,
    pub(crate) retry_bound: Duration,
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
            bounds: Bounds::read(&reader)?,
            multi_receive,
            way,
            sleep: reader.switch(SLEEP, "on", "off", true)?,
            domain: reader.text(DOMAIN).map(str::to_owned),
            subnet: reader.subnet(SUBNET)?,
            lifeline: lifeline.transpose()?,
            retry_bound: reader.milliseconds(RETRY_BOUND_MS, RETRY_BOUND)?,
        })
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
        assert_eq!(read(SILENCE_BOUND_MS, "4000").unwrap().bounds.silence_bound.as_secs(), 4);
    }
}
