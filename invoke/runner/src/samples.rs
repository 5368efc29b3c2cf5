//! What is looked at while a process runs: how many calls it has made and run.

use std::{
    io::{self, IsTerminal as _},
    sync::Arc,
    time::Duration,
};

use hg_job_runner::{
    Error as RunnerError,
    plot::{Panel, Plot, Sums, Timed},
    samples::{Sampler, bar},
};
use serde::{Deserialize, Serialize};

use crate::{Error, arguments::Arguments, payload::Counters};

/// One look at all threads of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Since the first thread began its timed run.
    pub(crate) time_us: u64,
    /// Calls so far.
    pub(crate) made: u64,
    pub(crate) run: u64,
}

impl Timed for Sample {
    fn time_us(&self) -> u64 {
        self.time_us
    }
}

/// What all processes have seen, drawn.
pub(crate) fn plot(ranks: &[Vec<Sample>]) -> Plot {
    let sums = Sums::new(ranks);
    let (made, run) = (sums.values(|it| it.made), sums.values(|it| it.run));
    // Looks of different processes are of different moments.
    let under_way = made.iter().zip(&run).map(|(made, run)| (made - run).max(0.0)).collect();
    let panels = vec![
        Panel { title: "calls/s", curves: vec![("all threads", sums.rates(|it| it.run))] },
        Panel { title: "calls under way", curves: vec![("all threads", under_way)] },
    ];
    Plot { seconds: sums.seconds(), panels }
}

/// A thread that looks from time to time; only where somebody wants to see it.
pub(crate) fn start(
    arguments: &Arguments,
    rank: u32,
    counters: Vec<Arc<Counters>>,
) -> Result<Sampler<Sample>, Error> {
    let bar = (rank == 0 && io::stderr().is_terminal()).then(|| Bar::new(arguments));
    if bar.is_none() && arguments.plot.is_none() {
        return Ok(Sampler::idle());
    }
    let look = move |time: Duration| {
        let seen = counters.iter().map(|it| it.seen());
        let (made, run) = seen.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        Sample { time_us: u64::try_from(time.as_micros()).unwrap_or(u64::MAX), made, run }
    };
    let show = bar.map(|bar| move |samples: &[Sample], is_over| bar.line(samples, is_over));
    Ok(Sampler::start(look, show).map_err(RunnerError::Thread)?)
}

/// The line on a terminal that says how far rank 0 is.
#[derive(Debug)]
struct Bar {
    /// Of all threads of the process, the warm-up included.
    count: u64,
    duration_us: Option<f64>,
}

impl Bar {
    fn new(arguments: &Arguments) -> Self {
        let each = arguments.count.saturating_add(arguments.warm_up());
        let duration_us = arguments.duration.map(|seconds| seconds * 1e6);
        Self { count: each.saturating_mul(arguments.threads().into()), duration_us }
    }

    #[expect(clippy::cast_precision_loss, reason = "shown in a few digits")]
    fn line(&self, samples: &[Sample], is_over: bool) -> String {
        let (rate, last) = match samples {
            [.., before, now] => {
                let us = now.time_us.saturating_sub(before.time_us).max(1);
                (now.run.saturating_sub(before.run) as f64 * 1e6 / us as f64, *now)
            }
            [only] => (0.0, *only),
            [] => (0.0, Sample { time_us: 0, made: 0, run: 0 }),
        };
        let part = match self.duration_us {
            Some(duration) => last.time_us as f64 / duration.max(1.0),
            None => last.made as f64 / self.count.max(1) as f64,
        };
        bar(part, &format!("rank 0 runs {rate:.0} calls/s"), is_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_with_calls_or_with_time() {
        let sample = |time_us, made, run| Sample { time_us, made, run };
        let samples = [sample(1_000_000, 60, 10), sample(3_000_000, 100, 50)];
        let counted = Bar { count: 200, duration_us: None };
        assert!(counted.line(&samples, false).contains(" 50 %, rank 0 runs 20 calls/s"));
        let timed = Bar { count: 1, duration_us: Some(12e6) };
        assert!(timed.line(&samples, false).contains(" 25 %"));
        assert!(timed.line(&samples, true).contains("100 %"));
    }

    #[test]
    fn what_is_under_way_is_drawn_beside_the_rate() {
        let line = |lag: u64| -> Vec<Sample> {
            let times = [0, 500, 1000].into_iter();
            times
                .map(|time_us| Sample { time_us, made: time_us * 3 + lag, run: time_us * 3 })
                .collect()
        };
        let plot = plot(&[line(5), line(7)]);
        assert!(plot.panels[0].curves[0].1.iter().all(|rate| (rate - 6e6).abs() < 1.0));
        assert!(plot.panels[1].curves[0].1.iter().all(|lag| (lag - 12.0).abs() < 1e-6));
    }
}
