//! The settings that all transports over a network have, and what they bound.

use std::time::Duration;

use hg_na::Error;

use crate::{
    MAX_HELD_MIB, Reader,
    key::{KEY_ENV, KEY_FILE, Key},
};

/// Setting: milliseconds until a peer that does not answer the greeting is given up.
pub const CONNECT_TIMEOUT_MS: &str = "connect-timeout-ms";
/// Setting: milliseconds until a peer that is cut off without a word is given up.
pub const SILENCE_BOUND_MS: &str = "silence-bound-ms";
/// Setting: connections of one context at a time.
pub const MAX_PEERS: &str = "max-peers";
/// All of them.
pub const BOUNDS: [&str; 6] =
    [CONNECT_TIMEOUT_MS, SILENCE_BOUND_MS, MAX_PEERS, MAX_HELD_MIB, KEY_FILE, KEY_ENV];

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const SILENCE_BOUND: Duration = Duration::from_secs(30);
/// The kernel counts its probes in seconds: one of silence, then two probes a second apart.
pub const SILENCE_BOUND_MIN: Duration = Duration::from_secs(3);
const PEERS: usize = 65_536;

/// What they bound.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// For greeting a peer.
    pub connect_timeout: Duration,
    /// For noticing a peer that is cut off.
    pub silence_bound: Duration,
    /// Connections of one context.
    pub max_peers: usize,
    /// Bytes that wait for admission, of all peers of a context.
    pub max_held: u64,
    /// What both ends of a connection have to have.
    pub key: Option<Key>,
}

impl Bounds {
    /// Reads them.
    ///
    /// # Errors
    /// [`Error::BadSetting`] for a value that is not taken.
    pub fn read(reader: &Reader<'_>) -> Result<Self, Error> {
        let silence_bound = reader.milliseconds(SILENCE_BOUND_MS, SILENCE_BOUND)?;
        if silence_bound < SILENCE_BOUND_MIN {
            return Err(Reader::bad(SILENCE_BOUND_MS, "the kernel's probes need 3000 at least"));
        }
        Ok(Self {
            connect_timeout: reader.milliseconds(CONNECT_TIMEOUT_MS, CONNECT_TIMEOUT)?,
            silence_bound,
            max_peers: reader.count(MAX_PEERS, PEERS)?,
            max_held: reader.held()?,
            key: Key::read(reader.text(KEY_FILE), reader.text(KEY_ENV))?,
        })
    }

    /// The same with a key that was handed over by itself.
    ///
    /// # Errors
    /// [`Error::BadSetting`] where the settings name another one, or the build cannot encrypt.
    pub fn with_key(self, given: Option<&hg_na::Key>) -> Result<Self, Error> {
        let key = match (given, self.key) {
            (None, named) => named,
            (Some(given), None) => Some(Key::given(given)?),
            (Some(_), Some(_)) => return Err(Reader::bad("key", "the settings name another one")),
        };
        Ok(Self { key, ..self })
    }
}

/// What the kernel takes at most of each (`MAX_TCP_KEEPIDLE`, `MAX_TCP_KEEPINTVL`: seconds; `MAX_TCP_KEEPCNT`).
const PAUSE_MAX: u64 = 32_767;
const RETRIES_MAX: u64 = 127;

/// Seconds until the kernel's first probe of an idle connection, seconds between probes, and how many: within a bound of silence
/// together, and as late in it as the kernel can.
#[must_use]
pub fn probes(silence: Duration) -> (Duration, Duration, u32) {
    let bound = silence.as_secs().max(SILENCE_BOUND_MIN.as_secs());
    let idle = (bound / 3).clamp(1, PAUSE_MAX);
    let interval = ((bound - idle) / 4).clamp(1, PAUSE_MAX);
    let retries = ((bound - idle) / interval).min(RETRIES_MAX);
    let retries = u32::try_from(retries).expect("RETRIES_MAX at most");
    (Duration::from_secs(idle), Duration::from_secs(interval), retries)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use nix::sys::socket::{setsockopt, sockopt};

    use super::*;

    #[test]
    fn probes_end_within_the_bound() {
        for bound in 3..1000 {
            let bound = Duration::from_secs(bound);
            let (idle, interval, retries) = probes(bound);
            let total = idle + interval * retries;
            assert!(total <= bound && total + interval > bound, "{bound:?}: {total:?}");
            assert!((2..=7).contains(&retries), "{bound:?}: {retries}");
        }
    }

    #[test]
    fn the_kernel_takes_the_probes_of_every_bound() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        for bound in [3, 98_303, 98_304, 100_000, 10_000_000].map(Duration::from_secs) {
            let (idle, interval, retries) = probes(bound);
            assert!(idle + interval * retries <= bound, "{bound:?}");
        }
        for bound in [Duration::from_secs(100_000), Duration::MAX] {
            let (idle, interval, retries) = probes(bound);
            let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap();
            setsockopt(&socket, sockopt::TcpKeepIdle, &seconds(idle)).unwrap();
            setsockopt(&socket, sockopt::TcpKeepInterval, &seconds(interval)).unwrap();
            setsockopt(&socket, sockopt::TcpKeepCount, &retries).unwrap();
        }
    }
}
