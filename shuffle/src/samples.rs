//! What a shuffle does over time, for whoever draws it: where [`FOLDER`] names a folder, each shuffle of this process has a file
//! there. `shuffle-runner --plot FILE.svg -- PROGRAM` reads them.
//!
//! A line is of some moment: microseconds since 1970, messages delivered so far, and messages in the origin, the network and the relay
//! queues and before delivery. The first one is of the start, and the last one of the end.

use std::{
    env,
    fs::File,
    io::Write as _,
    path::PathBuf,
    process,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant, UNIX_EPOCH},
};

use crate::Statistics;

/// A file of samples.
#[derive(Debug)]
pub(crate) struct Samples {
    file: File,
    taken: Option<Instant>,
}

impl Samples {
    /// `None`: nobody asks for them.
    pub(crate) fn asked_for(rank: u32) -> Option<Self> {
        let folder = PathBuf::from(env::var_os(FOLDER)?);
        // Relaxed: a name.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{rank}-{}-{number}", process::id()));
        let file = File::create(&path).inspect_err(|error| {
            tracing::warn!("no samples of this shuffle: {}: {error}", path.display());
        });
        Some(Self { file: file.ok()?, taken: None })
    }

    /// Whether it is time for the next one.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.taken.is_none_or(|taken| now.saturating_duration_since(taken) >= INTERVAL)
    }

    /// Takes one.
    pub(crate) fn take(&mut self, now: Instant, statistics: &Statistics) {
        self.taken = Some(now);
        let time_us = UNIX_EPOCH.elapsed().map_or(0, |time| time.as_micros());
        let Statistics { origin, network, relay, delivered, undelivered, .. } = *statistics;
        let [origin, network, relay] = [origin, network, relay].map(|queue| queue.unacknowledged);
        let line = format!("{time_us} {delivered} {origin} {network} {relay} {undelivered}\n");
        // A picture that misses a moment is no reason to fail.
        let _ = self.file.write_all(line.as_bytes());
    }
}

/// The variable that asks for them.
const FOLDER: &str = "HG_SHUFFLE_SAMPLES";
/// How often one is taken.
pub(crate) const INTERVAL: Duration = Duration::from_millis(20);
/// Of the next shuffle of this process.
static NUMBER: AtomicU32 = AtomicU32::new(0);
