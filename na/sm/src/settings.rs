//! What a domain can be told when it is opened, and the plugin's fixed limits.

use std::{collections::BTreeMap, time::Duration};

use hg_na::{Caps, CheckedBy, Error, PutOrdering, Sleep};

use crate::{
    arena::MESSAGE_MAX,
    connection::QUEUE_DEPTH,
    link::{ANSWERS, CONTROL, REQUESTS, SHORT},
    receives::UNMATCHED_MAX,
    rendezvous::policy::{ALLOW_UID, Policy},
};

/// Setting: milliseconds until a peer that does not answer the handshake is given up.
pub(crate) const CONNECT_TIMEOUT_MS: &str = "connect-timeout-ms";
/// Setting: connections of one context at a time.
pub(crate) const MAX_PEERS: &str = "max-peers";

/// How often a full backlog is tried again.
pub(crate) const BACKLOG_RETRY: Duration = Duration::from_millis(5);

/// Setting: `off` keeps this side from reaching into the memory of others by `process_vm_readv` and
/// `process_vm_writev`; transfers are then copied through shared memory, as where the system denies the other way. `auto`
/// (the default) tries.
pub(crate) const CMA: &str = "cma";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const PEERS: usize = 65_536;

/// The settings of one domain.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) policy: Policy,
    pub(crate) connect_timeout: Duration,
    pub(crate) max_peers: usize,
    pub(crate) cma: bool,
}

impl Settings {
    /// Reads settings by name.
    ///
    /// # Errors
    /// [`Error::BadSetting`] for a name or a value that is not taken.
    pub(crate) fn read(settings: &BTreeMap<String, String>) -> Result<Self, Error> {
        let known = [ALLOW_UID, CMA, CONNECT_TIMEOUT_MS, MAX_PEERS];
        if let Some(name) = settings.keys().find(|name| !known.contains(&name.as_str())) {
            let why = format!("sm knows only {}", known.join(", "));
            return Err(Error::BadSetting { name: name.clone(), why });
        }
        let number = |name: &str| -> Result<Option<u64>, Error> {
            let parse = |text: &String| text.parse().ok().filter(|number| *number > 0);
            let why = || "it takes a positive number".to_owned();
            let bad = || Error::BadSetting { name: name.to_owned(), why: why() };
            settings.get(name).map(|text| parse(text).ok_or_else(bad)).transpose()
        };
        let cma = match settings.get(CMA).map(String::as_str) {
            None | Some("auto") => true,
            Some("off") => false,
            Some(_) => {
                let why = "it takes `auto` or `off`".to_owned();
                return Err(Error::BadSetting { name: CMA.to_owned(), why });
            }
        };
        Ok(Self {
            cma,
            policy: Policy::from_setting(settings.get(ALLOW_UID).map(String::as_str))?,
            connect_timeout: number(CONNECT_TIMEOUT_MS)?
                .map_or(CONNECT_TIMEOUT, Duration::from_millis),
            max_peers: number(MAX_PEERS)?
                .map_or(PEERS, |number| usize::try_from(number).unwrap_or(PEERS)),
        })
    }
}

/// What this plugin can do.
pub(crate) fn caps() -> Caps {
    let mut caps = Caps::minimal();
    caps.max_unexpected = MESSAGE_MAX as usize;
    caps.max_expected = MESSAGE_MAX as usize;
    caps.max_control = SHORT[CONTROL];
    caps.short_unexpected = SHORT[REQUESTS];
    caps.short_expected = SHORT[ANSWERS];
    caps.queue_depth = QUEUE_DEPTH;
    caps.unmatched_max = UNMATCHED_MAX;
    caps.max_contexts = 256;
    caps.max_segments = 1024;
    caps.one_sided = true;
    caps.views = true;
    caps.checked_by = CheckedBy::Table;
    caps.put_ordering = PutOrdering::AfterCompletion;
    caps.sleep = Sleep::Descriptor;
    caps.joins = true;
    caps.silence_bound = None;
    caps
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn read(name: &str, value: &str) -> Result<Settings, Error> {
        Settings::read(&BTreeMap::from([(name.to_owned(), value.to_owned())]))
    }

    #[test]
    fn unknown_names_and_bad_values_are_refused() {
        assert!(matches!(read("colour", "red"), Err(Error::BadSetting { .. })));
        assert!(matches!(read(CONNECT_TIMEOUT_MS, "0"), Err(Error::BadSetting { .. })));
        assert!(matches!(read(MAX_PEERS, "many"), Err(Error::BadSetting { .. })));
        assert!(matches!(read(CMA, "on"), Err(Error::BadSetting { .. })));
        assert!(!read(CMA, "off").unwrap().cma && read(CMA, "auto").unwrap().cma);
        let settings = read(CONNECT_TIMEOUT_MS, "250").unwrap();
        assert_eq!(settings.connect_timeout, Duration::from_millis(250));
    }
}
