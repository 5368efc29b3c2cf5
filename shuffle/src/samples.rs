//! What a shuffle does over time, for whoever draws it: where [`FOLDER`] names a folder, each shuffle of this process has a file
//! there. `shuffle-runner --plot FILE.svg -- PROGRAM` reads them.
//!
//! A line is of some moment: microseconds since 1970, messages delivered so far, and messages in the origin, the network and the relay
//! queues and before delivery. The first one is of the start, and the last one of the end. There are at most 512: when there are more,
//! every other one goes, and so on.

use std::{
    env,
    fs::File,
    io::{self, Seek as _, Write as _},
    path::PathBuf,
    process,
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant, UNIX_EPOCH},
};

use crate::Statistics;

/// A file of samples.
#[derive(Debug)]
pub(crate) struct Samples {
    /// `None`: it could not be written.
    file: Option<File>,
    /// What stands there.
    lines: Vec<String>,
    /// Since 1970, and when that was: a clock that is set moves no sample.
    begin: (Duration, Instant),
    interval: Duration,
    taken: Instant,
}

impl Samples {
    /// `None`: nobody asks for them, or they cannot be had, which is told.
    pub(crate) fn asked_for(rank: u32) -> Option<Self> {
        let folder = PathBuf::from(env::var_os(FOLDER)?);
        let file = loop {
            // Relaxed: a name.
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            // Whatever is there already is not touched: a link leads elsewhere, and a pipe waits for its reader.
            match File::create_new(folder.join(format!("{rank}-{}-{number}", process::id()))) {
                Ok(file) => break file,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    tell(&format!("no samples of shuffles: {}: {error}", folder.display()));
                    return None;
                }
            }
        };
        let begin = (UNIX_EPOCH.elapsed().unwrap_or_default(), Instant::now());
        let (interval, lines, taken) = (INTERVAL, Vec::new(), begin.1);
        let mut this = Self { file: Some(file), lines, begin, interval, taken };
        // Of the start: the clock's thread may come to its first one after much was delivered.
        this.push(format!("{} 0 0 0 0 0\n", begin.0.as_micros()));
        Some(this)
    }

    /// Whether it is time for the next one.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.taken) >= self.interval
    }

    /// Takes one.
    pub(crate) fn take(&mut self, now: Instant, statistics: &Statistics) {
        self.taken = now;
        let time_us = (self.begin.0 + now.saturating_duration_since(self.begin.1)).as_micros();
        let Statistics { origin, network, relay, delivered, undelivered, .. } = *statistics;
        let [origin, network, relay] = [origin, network, relay].map(|queue| queue.unacknowledged);
        self.push(format!("{time_us} {delivered} {origin} {network} {relay} {undelivered}\n"));
    }

    fn push(&mut self, line: String) {
        let Some(file) = &mut self.file else { return };
        let is_full = self.lines.len() == SAMPLES_MAX;
        if is_full {
            let mut is_odd = false;
            self.lines.retain(|_| {
                is_odd = !is_odd;
                is_odd
            });
            self.interval *= 2;
        }
        self.lines.push(line);
        let written = if is_full {
            file.set_len(0)
                .and_then(|()| file.rewind())
                .and_then(|()| file.write_all(self.lines.concat().as_bytes()))
        } else {
            self.lines.last().map_or(Ok(()), |line| file.write_all(line.as_bytes()))
        };
        if let Err(error) = written {
            // A picture that ends early is no reason to fail.
            tell(&format!("no more samples of a shuffle: {error}"));
            self.file = None;
        }
    }
}

/// Once a process; to standard error where nobody listens to `tracing`.
fn tell(words: &str) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        tracing::warn!("{words}");
        if !tracing::enabled!(tracing::Level::WARN) {
            // That nobody reads it is no harm.
            let _ = writeln!(io::stderr(), "{words}");
        }
    });
}

/// The variable that asks for them.
const FOLDER: &str = "HG_SHUFFLE_SAMPLES";
/// How often one is taken at first, and how many are kept at most.
pub(crate) const INTERVAL: Duration = Duration::from_millis(20);
const SAMPLES_MAX: usize = 512;
/// Of the next shuffle of this process.
static NUMBER: AtomicU32 = AtomicU32::new(0);

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn too_many_samples_are_thinned_and_the_first_and_the_last_one_stay() {
        let path = env::temp_dir().join(format!("samples-{}", process::id()));
        let begin = (Duration::ZERO, Instant::now());
        let file = Some(File::create_new(&path).unwrap());
        let (lines, interval, taken) = (Vec::new(), INTERVAL, begin.1);
        let mut samples = Samples { file, lines, begin, interval, taken };
        (0..2000).for_each(|time| samples.push(format!("{time}\n")));
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let times: Vec<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert!(times.len() <= SAMPLES_MAX && times.len() > SAMPLES_MAX / 2, "{}", times.len());
        assert_eq!((times[0], times.last(), times.is_sorted()), (0, Some(&1999), true));
        assert!(samples.interval > INTERVAL);
    }
}
