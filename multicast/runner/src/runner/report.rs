//! What is printed at the end: a line for each combination.

use std::{
    env,
    io::{self, Write as _},
};

use hg_job_runner::{
    process::{cpu_seconds, peak_rss_kib},
    say::unless_closed,
};
use hg_multicast::schedule::Schedule;
use serde::{Deserialize, Serialize};

use crate::{
    Error,
    arguments::{Arguments, Scheduled},
    network,
};

/// What came of one combination.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The schedule, or the program beside it.
    pub(crate) what: String,
    pub(crate) members: u32,
    pub(crate) size: u64,
    pub(crate) block_size: u64,
    pub(crate) blocks: u64,
    /// From the sending to the last member's completion.
    pub(crate) seconds_median: f64,
    pub(crate) seconds_min: f64,
    pub(crate) seconds_max: f64,
    pub(crate) mb_per_s: f64,
    /// One after the other, each with its median time.
    pub(crate) objects_per_s: f64,
    pub(crate) steps: Option<u64>,
    /// The steps, each as long as the bare link takes for a block.
    pub(crate) predicted_seconds: Option<f64>,
    pub(crate) times_predicted: Option<f64>,
    /// Of the same size and block: time, and steps.
    pub(crate) times_pipeline: Option<f64>,
    pub(crate) predicted_times_pipeline: Option<f64>,
    seconds: Vec<f64>,
}

impl Row {
    #[expect(clippy::cast_precision_loss, reason = "bytes and steps below 2^53")]
    pub(crate) fn new(
        scheduled: Scheduled,
        members: u32,
        (size, block_size): (u64, u64),
        seconds: Vec<f64>,
        rate: Option<f64>,
    ) -> Self {
        let blocks = size.div_ceil(block_size);
        let steps = stepped(scheduled).map(|schedule| schedule.steps(members, blocks));
        let predicted =
            steps.zip(rate).map(|(steps, rate)| steps as f64 * block_size.min(size) as f64 / rate);
        let mut row =
            Self::beside(scheduled.name().to_owned(), members, (size, block_size), seconds);
        row.steps = steps;
        row.predicted_seconds = predicted;
        row.times_predicted = predicted.map(|predicted| row.seconds_median / predicted);
        row
    }

    /// Of something that has no steps.
    #[expect(clippy::cast_precision_loss, reason = "bytes below 2^53")]
    pub(crate) fn beside(
        what: String,
        members: u32,
        (size, block_size): (u64, u64),
        mut seconds: Vec<f64>,
    ) -> Self {
        seconds.sort_by(f64::total_cmp);
        let at = |at: usize| seconds.get(at).copied().unwrap_or(0.0);
        let seconds_median = at(seconds.len() / 2);
        Self {
            what,
            members,
            size,
            block_size,
            blocks: size.div_ceil(block_size.max(1)),
            seconds_median,
            seconds_min: at(0),
            seconds_max: at(seconds.len().saturating_sub(1)),
            mb_per_s: size as f64 / 1e6 / seconds_median.max(f64::MIN_POSITIVE),
            objects_per_s: 1.0 / seconds_median.max(f64::MIN_POSITIVE),
            steps: None,
            predicted_seconds: None,
            times_predicted: None,
            times_pipeline: None,
            predicted_times_pipeline: None,
            seconds,
        }
    }

    /// Where a member has stopped for a while.
    pub(crate) fn stalled(mut self) -> Self {
        self.what += " stalled";
        self
    }

    fn line(&self) -> String {
        let or_none =
            |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        format!(
            "{:<18} {:>4} {:>11} {:>9} {:>10.3} {:>10.3} {:>10.3} {:>9.1} {:>10.1} {:>6} {:>9} {:>10} {:>9}",
            self.what,
            self.members,
            self.size,
            self.block_size,
            self.seconds_median * 1e3,
            self.seconds_min * 1e3,
            self.seconds_max * 1e3,
            self.mb_per_s,
            self.objects_per_s,
            self.steps.map_or("-".to_owned(), |steps| steps.to_string()),
            or_none(self.times_predicted),
            or_none(self.times_pipeline),
            or_none(self.predicted_times_pipeline),
        )
    }
}

/// Its steps, where they are known beforehand.
pub(crate) fn stepped(scheduled: Scheduled) -> Option<Schedule> {
    match scheduled {
        Scheduled::Sequential => Some(Schedule::Sequential),
        Scheduled::Chain => Some(Schedule::Chain),
        Scheduled::Tree => Some(Schedule::Tree),
        Scheduled::Pipeline => Some(Schedule::Pipeline),
        Scheduled::Auto | Scheduled::Hybrid => None,
    }
}

/// Sets each beside the pipeline of its size and block; what has no blocks, beside that of its size.
#[expect(clippy::cast_precision_loss, reason = "steps below 2^53")]
pub(crate) fn compare(rows: &mut [Row]) {
    let pipelines: Vec<Row> = rows.iter().filter(|row| row.what == "pipeline").cloned().collect();
    for row in rows {
        let is_like = |it: &&Row| {
            it.size == row.size && (it.block_size == row.block_size || row.block_size == 0)
        };
        let Some(pipeline) = pipelines.iter().find(is_like) else { continue };
        row.times_pipeline = Some(row.seconds_median / pipeline.seconds_median);
        row.predicted_times_pipeline =
            row.steps.zip(pipeline.steps).map(|(own, its)| own as f64 / its as f64);
    }
}

/// What the runner has measured before it started this process.
///
/// # Errors
/// It cannot be read.
pub(crate) fn beside() -> Result<Vec<Row>, Error> {
    let text = env::var(BESIDE).unwrap_or_default();
    if text.is_empty() { Ok(Vec::new()) } else { Ok(serde_json::from_str(&text)?) }
}

/// Where it stands.
pub(crate) const BESIDE: &str = "MULTICAST_RUNNER_BESIDE";

/// What stands above the lines, or is one of them.
#[derive(Debug, Serialize)]
struct Circumstances {
    links: Option<String>,
    bare_link_mb_per_s: Option<f64>,
    stall: Option<String>,
    cpu_seconds_of_rank_0: f64,
    peak_rss_kib_of_rank_0: u64,
    is_well: bool,
}

pub(crate) fn print(
    arguments: &Arguments,
    rate: Option<f64>,
    rows: &[Row],
    is_well: bool,
) -> Result<(), Error> {
    let circumstances = Circumstances {
        links: arguments.link.map(network::described),
        bare_link_mb_per_s: rate.map(|rate| rate / 1e6),
        stall: arguments.stall.map(|stall| stall.to_string()),
        cpu_seconds_of_rank_0: cpu_seconds(),
        peak_rss_kib_of_rank_0: peak_rss_kib(),
        is_well,
    };
    let printed = unless_closed(write(arguments.json, &circumstances, rows));
    printed.map_err(Error::Print)
}

fn write(json: bool, circumstances: &Circumstances, rows: &[Row]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        for row in rows {
            writeln!(out, "{}", serde_json::to_string(row)?)?;
        }
        writeln!(out, "{}", serde_json::to_string(circumstances)?)?;
        return out.flush();
    }
    if let (Some(links), Some(rate)) = (&circumstances.links, circumstances.bare_link_mb_per_s) {
        writeln!(out, "{links}\na plain stream between two of them: {rate:.1} MB/s")?;
    }
    if let Some(stall) = &circumstances.stall {
        writeln!(out, "stalled: {stall}")?;
    }
    writeln!(out, "{HEAD}")?;
    for row in rows {
        writeln!(out, "{}", row.line())?;
    }
    if circumstances.is_well {
        writeln!(out, "every byte of every object was verified at every receiver")?;
    }
    out.flush()
}

const HEAD: &str = "\
time until the last member had it; predicted: steps x a block's time on the bare link; x pipeline: beside the pipeline, and by steps
what                    n       bytes     block  median ms     min ms     max ms      MB/s  objects/s  steps x predict x pipeline  by steps";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_stand_beside_what_steps_predict_and_beside_the_pipeline() {
        let row = |scheduled, seconds: f64| {
            Row::new(
                scheduled,
                8,
                (64 << 20, 1 << 20),
                vec![seconds, 0.0, 9.0],
                Some(f64::from(1 << 20)),
            )
        };
        let mut rows = vec![row(Scheduled::Tree, 200.0), row(Scheduled::Pipeline, 66.0)];
        rows.push(Row::beside("mpi".to_owned(), 8, (64 << 20, 0), vec![99.0]));
        compare(&mut rows);
        assert_eq!((rows[1].steps, rows[0].steps), (Some(66), Some(192)));
        assert_eq!((rows[1].seconds_median, rows[1].predicted_seconds), (9.0, Some(66.0)));
        assert!((rows[1].objects_per_s - 1.0 / 9.0).abs() < 1e-9);
        assert_eq!((rows[0].times_pipeline, rows[2].times_pipeline), (Some(1.0), Some(11.0)));
        assert!((rows[0].predicted_times_pipeline.unwrap() - 192.0 / 66.0).abs() < 1e-9);
        assert_eq!(rows[2].predicted_times_pipeline, None);
    }
}
