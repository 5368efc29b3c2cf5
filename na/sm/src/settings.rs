//! What a domain can be told when it is opened, and the plugin's fixed limits.

use std::{collections::BTreeMap, os::fd::RawFd, time::Duration};

use hg_na::{Caps, CheckedBy, Error, PutOrdering, Sleep};
use hg_na_parts::{
    MAX_HELD_MIB, Reader,
    bounds::{CONNECT_TIMEOUT_MS, MAX_PEERS},
};

use crate::{
    arena::MESSAGE_MAX,
    connection::QUEUE_DEPTH,
    link::{ANSWERS, CONTROL_MAX, REQUESTS, SHORT},
    rendezvous::{
        policy::{ALLOW_UID, Policy},
        socket::{LISTEN_FD, bad_listen_fd},
    },
};

/// How often a full backlog is tried again.
pub(crate) const BACKLOG_RETRY: Duration = Duration::from_millis(5);

/// Setting: `off` keeps this side from reaching into the memory of others by `process_vm_readv` and
/// `process_vm_writev`; transfers are then copied through shared memory, as where the system denies the other way. `auto`
/// (the default) tries.
pub(crate) const CMA: &str = "cma";

/// Setting: `off` in a domain that registers no memory, which has a descriptor less then. `on` by default.
const REGIONS: &str = "regions";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const PEERS: usize = 65_536;

/// The settings of one domain.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) policy: Policy,
    pub(crate) connect_timeout: Duration,
    pub(crate) max_peers: usize,
    /// Bytes of ended peers' requests that wait for admission.
    pub(crate) max_held: u64,
    pub(crate) cma: bool,
    pub(crate) regions: bool,
    pub(crate) listen_fd: Option<RawFd>,
}

impl Settings {
    /// Reads settings by name.
    ///
    /// # Errors
    /// [`Error::BadSetting`] for a name or a value that is not taken.
    pub(crate) fn read(settings: &BTreeMap<String, String>) -> Result<Self, Error> {
        let known =
            [ALLOW_UID, CMA, CONNECT_TIMEOUT_MS, LISTEN_FD, MAX_HELD_MIB, MAX_PEERS, REGIONS];
        let reader = Reader::new("sm", &known, settings)?;
        let regions = reader.switch(REGIONS, "on", "off", true)?;
        let listen_fd = reader.text(LISTEN_FD).map(|text| {
            let fd = text.parse().ok().filter(|fd| *fd >= 0 && !regions);
            fd.ok_or_else(|| bad_listen_fd("it takes a number, with `regions` off"))
        });
        Ok(Self {
            cma: reader.switch(CMA, "auto", "off", true)?,
            regions,
            listen_fd: listen_fd.transpose()?,
            policy: Policy::from_setting(reader.text(ALLOW_UID))?,
            connect_timeout: reader.milliseconds(CONNECT_TIMEOUT_MS, CONNECT_TIMEOUT)?,
            max_peers: reader.count(MAX_PEERS, PEERS)?,
            max_held: reader.held()?,
        })
    }
}

/// What this plugin can do.
pub(crate) fn caps() -> Caps {
    let mut caps = Caps::minimal();
    caps.max_unexpected = MESSAGE_MAX as usize;
    caps.max_expected = MESSAGE_MAX as usize;
    caps.max_control = CONTROL_MAX;
    caps.short_unexpected = SHORT[REQUESTS];
    caps.short_expected = SHORT[ANSWERS];
    caps.queue_depth = QUEUE_DEPTH;
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
        assert!(matches!(read("colour", "red"), Err(Error::UnknownSetting { .. })));
        assert!(matches!(read(CONNECT_TIMEOUT_MS, "0"), Err(Error::BadSetting { .. })));
        assert!(matches!(read(MAX_HELD_MIB, "0"), Err(Error::BadSetting { .. })));
        assert_eq!(read(MAX_HELD_MIB, "3").unwrap().max_held, 3 << 20);
        assert!(matches!(read(MAX_PEERS, "many"), Err(Error::BadSetting { .. })));
        assert!(matches!(read(CMA, "on"), Err(Error::BadSetting { .. })));
        assert!(!read(CMA, "off").unwrap().cma && read(CMA, "auto").unwrap().cma);
        assert!(!read(REGIONS, "off").unwrap().regions && read(REGIONS, "on").unwrap().regions);
        assert!(matches!(read(LISTEN_FD, "3"), Err(Error::BadSetting { .. })), "with regions");
        let both = |fd: &str| {
            let settings = [(LISTEN_FD, fd), (REGIONS, "off")];
            Settings::read(
                &settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            )
        };
        for wrong in ["three", "-1"] {
            assert!(matches!(both(wrong), Err(Error::BadSetting { .. })), "{wrong}");
        }
        assert_eq!(both("3").unwrap().listen_fd, Some(3));
        let settings = read(CONNECT_TIMEOUT_MS, "250").unwrap();
        assert_eq!(settings.connect_timeout, Duration::from_millis(250));
    }
}
