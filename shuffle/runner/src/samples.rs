//! What is looked at while a rank runs: how far it is, and how deep its queues are.

use std::{
    io::{self, IsTerminal as _, Write as _},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use hg_shuffle::{Dump, Statistics};
use serde::{Deserialize, Serialize};

use crate::{Error, arguments::Arguments};

/// One look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Since the timed run began.
    pub(crate) time_us: u64,
    /// Messages delivered so far.
    pub(crate) delivered: u64,
    /// Messages in the origin, network and relay queues, and before delivery.
    pub(crate) depths: [u64; 4],
}

/// Looks, as often as fits: when there are too many, every other one goes, and so on.
#[derive(Debug)]
struct Samples {
    interval: Duration,
    taken: Vec<Sample>,
}

impl Samples {
    fn push(&mut self, sample: Sample) {
        if self.taken.len() == SAMPLES_MAX {
            let mut is_odd = false;
            self.taken.retain(|_| {
                is_odd = !is_odd;
                is_odd
            });
            self.interval *= 2;
        }
        self.taken.push(sample);
    }
}

/// A thread that looks from time to time; only where somebody wants to see it.
#[derive(Debug)]
pub(crate) struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Vec<Sample>>>,
}

#[derive(Debug)]
struct Shared {
    begin: Instant,
    /// Messages sent by the timed run.
    sent: AtomicU64,
    is_over: Mutex<bool>,
    ended: Condvar,
}

impl Sampler {
    pub(crate) fn start(arguments: &Arguments, rank: u32, dump: Dump) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            begin: Instant::now(),
            sent: AtomicU64::new(0),
            is_over: Mutex::new(false),
            ended: Condvar::new(),
        });
        let bar = (rank == 0 && io::stderr().is_terminal()).then(|| Bar::new(arguments));
        if bar.is_none() && arguments.plot.is_none() {
            return Ok(Self { shared, thread: None });
        }
        let looking = Arc::clone(&shared);
        let run = move || looking.look(&dump, bar.as_ref());
        let thread = thread::Builder::new().name("samples".to_owned()).spawn(run);
        Ok(Self { shared, thread: Some(thread.map_err(|error| Error::Os("a thread", error))?) })
    }

    /// The timed run has sent so many.
    #[inline]
    pub(crate) fn note_sent(&self, sent: u64) {
        // Relaxed: a figure to be shown.
        self.shared.sent.store(sent, Ordering::Relaxed);
    }

    /// What was seen.
    pub(crate) fn end(mut self) -> Vec<Sample> {
        self.stop()
    }

    fn stop(&mut self) -> Vec<Sample> {
        *self.shared.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.ended.notify_all();
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn look(&self, dump: &Dump, bar: Option<&Bar>) -> Vec<Sample> {
        let mut samples = Samples { interval: INTERVAL, taken: Vec::new() };
        loop {
            let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = self.ended.wait_timeout_while(is_over, samples.interval, |over| !*over);
            let is_over = *waited.unwrap_or_else(PoisonError::into_inner).0;
            let sample = Sample::of(&dump.statistics(), self.begin.elapsed());
            samples.push(sample);
            if let Some(bar) = bar {
                let line = bar.line(self.sent.load(Ordering::Relaxed), &samples.taken, is_over);
                let _ = io::stderr().write_all(line.as_bytes());
            }
            if is_over {
                return samples.taken;
            }
        }
    }
}

impl Sample {
    fn of(statistics: &Statistics, time: Duration) -> Self {
        let Statistics { origin, network, relay, delivered, undelivered, .. } = *statistics;
        let queues = [origin, network, relay].map(|counts| counts.unacknowledged);
        Self {
            time_us: u64::try_from(time.as_micros()).unwrap_or(u64::MAX),
            delivered,
            depths: [queues[0], queues[1], queues[2], undelivered],
        }
    }
}

/// The line on a terminal that says how far rank 0 is.
#[derive(Debug)]
struct Bar {
    count: u64,
    duration_us: Option<f64>,
}

impl Bar {
    fn new(arguments: &Arguments) -> Self {
        let duration_us = arguments.duration.map(|seconds| seconds * 1e6);
        Self { count: arguments.count, duration_us }
    }

    #[expect(clippy::cast_precision_loss, reason = "shown in a few digits")]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 1")]
    fn line(&self, sent: u64, samples: &[Sample], is_over: bool) -> String {
        let [before, now] = match samples {
            [.., before, now] => [before.delivered as f64, now.delivered as f64],
            _ => [0.0; 2],
        };
        let times = match samples {
            [.., before, now] => now.time_us.saturating_sub(before.time_us) as f64 / 1e6,
            _ => 0.0,
        };
        let time_us = samples.last().map_or(0, |sample| sample.time_us) as f64;
        let part = match self.duration_us {
            Some(duration) => time_us / duration.max(1.0),
            None => sent as f64 / self.count.max(1) as f64,
        };
        let part = if is_over { 1.0 } else { part.clamp(0.0, 1.0) };
        let rate = if times > 0.0 { (now - before) / times } else { 0.0 };
        let filled = (part * WIDTH as f64) as usize;
        let bar = format!("{}{}", "#".repeat(filled), ".".repeat(WIDTH - filled));
        let end = if is_over { "\n" } else { "" };
        format!("\r[{bar}] {:3.0} %, rank 0 gets {rate:.0} messages/s\x1b[K{end}", part * 100.0)
    }
}

/// How often at first, and how many at most.
const INTERVAL: Duration = Duration::from_millis(20);
const SAMPLES_MAX: usize = 512;
/// Of the bar, in characters.
const WIDTH: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(time_us: u64, delivered: u64) -> Sample {
        Sample { time_us, delivered, depths: [0; 4] }
    }

    #[test]
    fn too_many_samples_are_thinned_and_the_last_one_stays() {
        let mut samples = Samples { interval: INTERVAL, taken: Vec::new() };
        for time in 0..2000 {
            samples.push(sample(time, 0));
        }
        let times: Vec<_> = samples.taken.iter().map(|sample| sample.time_us).collect();
        assert!(times.len() <= SAMPLES_MAX && times.len() > SAMPLES_MAX / 2, "{}", times.len());
        assert_eq!((times[0], times.last(), times.is_sorted()), (0, Some(&1999), true));
        assert!(samples.interval > INTERVAL);
    }

    #[test]
    fn the_bar_fills_with_messages_or_with_time() {
        let samples = [sample(1_000_000, 10), sample(3_000_000, 50)];
        let counted = Bar { count: 200, duration_us: None };
        assert_eq!(counted.line(100, &samples, false).matches('#').count(), WIDTH / 2);
        assert!(counted.line(100, &samples, false).contains(" 50 %, rank 0 gets 20 messages/s"));
        let timed = Bar { count: 1, duration_us: Some(12e6) };
        assert!(timed.line(7, &samples, false).contains(" 25 %"));
        assert!(timed.line(7, &samples, true).contains("100 %"));
    }
}
