//! What a domain can be told when it is opened.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use hg_na::Error;
use hg_na_frames::common::{BOUNDS, Bounds, RMA};
use hg_na_parts::{Reader, Subnet};

use libfabric_sys::TRAFFIC_CLASSES;

use crate::fabric::Way;

/// Setting: name of libfabric's domain: an interface or a card (`fi_info` lists them).
pub(crate) const DOMAIN: &str = "domain";
/// Setting: `ADDRESS/BITS`, where the address of the context lies.
pub(crate) const SUBNET: &str = "subnet";
/// Setting: the address of this machine on which lifelines are taken, for providers without internet addresses.
pub(crate) const LIFELINE: &str = "lifeline";
/// Setting: milliseconds until a peer that lives, but to whom libfabric sends nothing, is given up.
pub(crate) const RETRY_BOUND_MS: &str = "retry-bound-ms";
/// Setting: what admits to a part of the network.
pub(crate) const AUTH_KEY: &str = "auth-key";
/// Setting: how the network treats what is sent.
pub(crate) const TRAFFIC_CLASS: &str = "traffic-class";
/// Setting: `on` reaches memory of devices, where the provider can.
pub(crate) const DEVICE_MEMORY: &str = "device-memory";
/// Setting: `off` posts a frame for each message even where the provider has multi-receive buffers.
pub(crate) const MULTI_RECEIVE: &str = "multi-receive";
/// Setting: `tagged` uses tagged messages even where the provider has others.
pub(crate) const MESSAGES: &str = "messages";
/// Setting: `off` polls even where the provider has something to wait on.
pub(crate) const SLEEP: &str = "sleep";

const OWN: [&str; 11] = [
    DOMAIN,
    SUBNET,
    LIFELINE,
    RETRY_BOUND_MS,
    RMA,
    MULTI_RECEIVE,
    MESSAGES,
    SLEEP,
    AUTH_KEY,
    TRAFFIC_CLASS,
    DEVICE_MEMORY,
];

const RETRY_BOUND: Duration = Duration::from_secs(60);

/// The settings of one domain.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) domain: Option<String>,
    pub(crate) subnet: Option<Subnet>,
    pub(crate) lifeline: Option<IpAddr>,
    pub(crate) bounds: Bounds,
    /// Whether one-sided operations are used where there are any.
    pub(crate) rma: bool,
    pub(crate) retry_bound: Duration,
    /// `None`: where it pays.
    pub(crate) multi_receive: Option<bool>,
    /// `None`: untagged, if the provider has that.
    pub(crate) way: Option<Way>,
    pub(crate) sleep: bool,
    pub(crate) device_memory: bool,
    pub(crate) auth_key: Option<Vec<u8>>,
    /// `None`: the provider's default.
    pub(crate) traffic_class: Option<u32>,
}

/// Longest `auth-key` in bytes.
const AUTH_KEY_MAX: usize = 64;

/// As cxi wants it (`cxi_auth_key`: service and VNI), or digits.
fn auth_key(text: &str) -> Option<Vec<u8>> {
    if let Some((service, vni)) = text.split_once(':') {
        let (service, vni): (u32, u16) = (service.parse().ok()?, vni.parse().ok()?);
        return Some([&service.to_ne_bytes()[..], &vni.to_ne_bytes(), &[0; 2]].concat());
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
    let pair = |two: &[u8]| Some(digit(two[0])? << 4 | digit(two[1])?);
    let is_length = (2..=2 * AUTH_KEY_MAX).contains(&text.len()) && text.len().is_multiple_of(2);
    if !is_length {
        return None;
    }
    text.as_bytes().chunks_exact(2).map(pair).collect()
}

fn traffic_class(text: &str) -> Result<u32, Error> {
    let class = TRAFFIC_CLASSES.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
    class.ok_or_else(|| {
        let names = TRAFFIC_CLASSES.map(|(name, _)| name).join(", ");
        Reader::bad(TRAFFIC_CLASS, &format!("it takes one of {names}"))
    })
}

impl Settings {
    /// Reads settings by name.
    ///
    /// # Errors
    /// [`Error::BadSetting`] for a name or a value that is not taken.
    pub(crate) fn read(settings: &BTreeMap<String, String>) -> Result<Self, Error> {
        let reader = Reader::new("ofi", &[&OWN[..], &BOUNDS].concat(), settings)?;
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
        let no_key = || Reader::bad(AUTH_KEY, "it takes SERVICE:VNI, or hexadecimal digits");
        let auth_key = reader.text(AUTH_KEY).map(|text| auth_key(text).ok_or_else(no_key));
        let device_memory = reader.switch(DEVICE_MEMORY, "on", "off", false)?;
        let rma = reader.switch(RMA, "on", "off", true)?;
        if device_memory && !rma {
            return Err(Reader::bad(
                DEVICE_MEMORY,
                "it is moved one-sidedly alone: `rma` is `off`",
            ));
        }
        Ok(Self {
            device_memory,
            auth_key: auth_key.transpose()?,
            traffic_class: reader.text(TRAFFIC_CLASS).map(traffic_class).transpose()?,
            bounds: Bounds::read(&reader)?,
            rma,
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
    use hg_na_frames::common::{CONNECT_TIMEOUT_MS, MAX_PEERS, SILENCE_BOUND_MS};

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
            (AUTH_KEY, "1:2:3"),
            (AUTH_KEY, "1:70000"),
            (AUTH_KEY, "0"),
            (AUTH_KEY, "0g"),
            (AUTH_KEY, ""),
            (TRAFFIC_CLASS, "fast"),
            (DEVICE_MEMORY, "cuda"),
        ] {
            assert!(matches!(read(name, value), Err(Error::BadSetting { .. })), "{name} {value}");
        }
        let key = |text| read(AUTH_KEY, text).unwrap().auth_key.unwrap();
        assert_eq!(key("00fF10"), [0, 0xFF, 0x10]);
        assert_eq!(
            key("5:300"),
            [&5u32.to_ne_bytes()[..], &300u16.to_ne_bytes(), &[0; 2]].concat()
        );
        assert_eq!(read(TRAFFIC_CLASS, "bulk-data").unwrap().traffic_class, Some(0x203));
        assert_eq!(read(SILENCE_BOUND_MS, "4000").unwrap().bounds.silence_bound.as_secs(), 4);
    }
}
