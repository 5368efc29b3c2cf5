//! What is looked at while a rank runs: how far it is, and how deep its queues are.

use std::{
    io::{self, IsTerminal as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hg_job_runner::{
    plot::{Panel, Plot, Sums, Timed},
    samples::{self, bar},
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

impl Timed for Sample {
    fn time_us(&self) -> u64 {
        self.time_us
    }
}

/// What all ranks have seen, drawn.
pub(crate) fn plot(ranks: &[Vec<Sample>]) -> Plot {
    let sums = Sums::new(ranks);
    let names = ["origin queues", "network queues", "relay queues", "delivery"];
    let depths = names
        .iter()
        .enumerate()
        .map(|(queue, name)| (*name, sums.values(|sample| sample.depths[queue])));
    let rates = vec![("all ranks", sums.rates(|sample| sample.delivered))];
    let panels = vec![
        Panel { title: "messages/s", curves: rates },
        Panel { title: "messages queued", curves: depths.collect() },
    ];
    Plot { seconds: sums.seconds(), panels }
}

/// A thread that looks from time to time; only where somebody wants to see it.
#[derive(Debug)]
pub(crate) struct Sampler {
    /// Messages sent by the timed run.
    sent: Arc<AtomicU64>,
    looking: samples::Sampler<Sample>,
}

impl Sampler {
    pub(crate) fn start(arguments: &Arguments, rank: u32, dump: Dump) -> Result<Self, Error> {
        let sent = Arc::new(AtomicU64::new(0));
        let bar = (rank == 0 && io::stderr().is_terminal()).then(|| Bar::new(arguments));
        if bar.is_none() && arguments.plot.is_none() {
            return Ok(Self { sent, looking: samples::Sampler::idle() });
        }
        let seen = Arc::clone(&sent);
        let show = bar.map(|bar| {
            move |samples: &[Sample], is_over| {
                bar.line(seen.load(Ordering::Relaxed), samples, is_over)
            }
        });
        let look = move |time| Sample::of(&dump.statistics(), time);
        let looking = samples::Sampler::start(look, show);
        Ok(Self { sent, looking: looking.map_err(|error| Error::Os("a thread", error))? })
    }

    /// The timed run has sent so many.
    #[inline]
    pub(crate) fn note_sent(&self, sent: u64) {
        // Relaxed: a figure to be shown.
        self.sent.store(sent, Ordering::Relaxed);
    }

    /// What was seen.
    pub(crate) fn end(self) -> Vec<Sample> {
        self.looking.end()
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
        let rate = if times > 0.0 { (now - before) / times } else { 0.0 };
        bar(part, &format!("rank 0 gets {rate:.0} messages/s"), is_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(time_us: u64, delivered: u64) -> Sample {
        Sample { time_us, delivered, depths: [0; 4] }
    }

    #[test]
    fn the_bar_fills_with_messages_or_with_time() {
        let samples = [sample(1_000_000, 10), sample(3_000_000, 50)];
        let counted = Bar { count: 200, duration_us: None };
        assert!(counted.line(100, &samples, false).contains(" 50 %, rank 0 gets 20 messages/s"));
        let timed = Bar { count: 1, duration_us: Some(12e6) };
        assert!(timed.line(7, &samples, false).contains(" 25 %"));
        assert!(timed.line(7, &samples, true).contains("100 %"));
    }
}
