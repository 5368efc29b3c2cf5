//! What a domain can be told when it is opened, and what the plugin can do.

use std::{collections::BTreeMap, time::Duration};

use hg_na::{Caps, Error};
use hg_na_link::Limits;
use hg_na_parts::{
    Reader,
    credits::{Amount, OWED_PART},
};

use crate::wire::{FRAME_MIN, HEADER_LEN};

/// By what name applications look for a daemon, unless they are told another one.
pub const NAME: &str = "hg-visor";

/// Setting: the daemon's name in shared memory.
const DAEMON: &str = "daemon";
/// The same, of a whole process.
const DAEMON_ENV: &str = "HG_VISOR";
/// Setting: as of `sm`, where the daemon is another user's.
pub(crate) const ALLOW_UID: &str = "allow-uid";
/// Who may have made a daemon's socket, besides one's own user: whoever starts it (`hg-visor.socket`), and may do anything anyway.
pub(crate) const ROOT: &str = "0";
/// Setting: milliseconds until a daemon that does not answer is given up.
const CONNECT_TIMEOUT_MS: &str = "connect-timeout-ms";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Transfers of one link, of each side's.
pub(crate) const TRANSFERS_MAX: usize = 256;
/// Longest message in bytes.
pub(crate) const MESSAGE_MAX: usize = FRAME_MIN - HEADER_LEN;
/// Longest control message in bytes.
const CONTROL_MAX: usize = 1024;
/// Messages of one kind, to one peer, that wait.
const QUEUE_DEPTH: usize = 1024;
/// Unexpected messages of one peer that were not admitted yet.
pub(crate) const UNEXPECTED: Amount = Amount { messages: 64, bytes: 256 << 10 };

/// What each peer's handle takes at a time.
pub(crate) const LIMITS: Limits =
    Limits { message: MESSAGE_MAX, control: CONTROL_MAX, depth: QUEUE_DEPTH, transfers: 1024 };

const _: () = assert!(MESSAGE_MAX <= (UNEXPECTED.bytes - UNEXPECTED.bytes / OWED_PART) as usize);

/// The settings of one domain.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) daemon: String,
    pub(crate) allow_uid: Option<String>,
    pub(crate) connect_timeout: Duration,
}

impl Settings {
    /// Reads settings by name. The daemon is that of the setting, of the environment, the plugin's, or the usual one.
    ///
    /// # Errors
    /// [`Error::BadSetting`], [`Error::UnknownSetting`].
    pub(crate) fn read(
        settings: &BTreeMap<String, String>,
        of_plugin: Option<&str>,
    ) -> Result<Self, Error> {
        let reader = Reader::new("visor", &[DAEMON, ALLOW_UID, CONNECT_TIMEOUT_MS], settings)?;
        let of_process = || std::env::var(DAEMON_ENV).ok();
        let named = reader.text(DAEMON).or(of_plugin).map(str::to_owned);
        Ok(Self {
            daemon: named.or_else(of_process).unwrap_or_else(|| NAME.to_owned()),
            allow_uid: reader.text(ALLOW_UID).map(str::to_owned),
            connect_timeout: reader.milliseconds(CONNECT_TIMEOUT_MS, CONNECT_TIMEOUT)?,
        })
    }
}

/// What this plugin can do.
pub(crate) fn caps() -> Caps {
    let mut caps = LIMITS.caps();
    caps.joins = true;
    caps
}
