//! What is printed at the end: a line for each rank, and one for all of them.

use std::{
    fs,
    io::{self, Write as _},
    sync::Arc,
};

use hdrhistogram::Histogram;
use hg_job::{Job, NodeMap, simulate::Bounds};
use hg_job_runner::{
    process::{cpu_seconds, peak_rss_kib},
    say::unless_closed,
};
use hg_shuffle::{
    Account, Failure, Statistics,
    route::{Came, Next, Plan, Process, Routes},
};
use serde::{Deserialize, Serialize};

use crate::{
    Error,
    arguments::Arguments,
    payload::{Reader, Wrong, latencies},
    samples::{self, Sample},
};

/// What one rank has seen in the timed run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OfRank {
    rank: Option<u32>,
    ranks: u32,
    /// Messages to oneself are among them.
    with_self: bool,
    /// Messages.
    sent: u64,
    received: u64,
    seconds: f64,
    messages_per_s: f64,
    mb_per_s: f64,
    /// Batches, by kind of queue.
    origin_batches: u64,
    relay_batches: u64,
    network_batches: u64,
    /// Messages that passed each kind of queue.
    origin_messages: u64,
    relay_messages: u64,
    network_messages: u64,
    /// Messages by the hops that they took: 0 to 3.
    hops: [u64; 4],
    /// Microseconds from `enqueue` to the callback, of a sample.
    latency_p50_us: f64,
    latency_p90_us: f64,
    latency_p99_us: f64,
    latency_max_us: f64,
    /// Processor time of the whole run, and of the timed one, of all threads; of that, what each message has cost.
    cpu_seconds: f64,
    timed_cpu_seconds: f64,
    cpu_ns_per_message: f64,
    /// Most memory of a process so far.
    peak_rss_kib: u64,
    /// Of the whole run, its warm-up included.
    #[serde(flatten)]
    wrong: Wrong,
}

impl OfRank {
    pub(crate) fn new(rank: u32, timed: &Timed, reader: &Reader) -> Self {
        let statistics = &timed.statistics;
        let own = Self {
            rank: Some(rank),
            ranks: 1,
            with_self: timed.with_self,
            sent: timed.sent,
            received: reader.timed,
            seconds: timed.seconds,
            messages_per_s: 0.0,
            mb_per_s: 0.0,
            origin_batches: statistics.origin.batches,
            relay_batches: statistics.relay.batches,
            network_batches: statistics.network.batches,
            origin_messages: statistics.origin.messages,
            relay_messages: statistics.relay.messages,
            hops: [0; 4],
            network_messages: statistics.network.messages,
            latency_p50_us: 0.0,
            latency_p90_us: 0.0,
            latency_p99_us: 0.0,
            latency_max_us: 0.0,
            cpu_seconds: cpu_seconds(),
            timed_cpu_seconds: timed.cpu_seconds,
            cpu_ns_per_message: 0.0,
            peak_rss_kib: peak_rss_kib(),
            wrong: reader.wrong,
        };
        own.with_latency(&reader.latency)
    }

    fn with_latency(self, latency: &Histogram<u64>) -> Self {
        let us = |nanoseconds: u64| float(nanoseconds) / 1e3;
        Self {
            latency_p50_us: us(latency.value_at_quantile(0.5)),
            latency_p90_us: us(latency.value_at_quantile(0.9)),
            latency_p99_us: us(latency.value_at_quantile(0.99)),
            latency_max_us: us(latency.max()),
            ..self
        }
    }

    /// `sent`: messages to each rank.
    pub(crate) fn count_hops(&mut self, map: &Arc<NodeMap>, sent: &[u64]) {
        let me = self.rank.unwrap_or(0);
        for (to, number) in (0..).zip(sent) {
            self.hops[hops(map, me, to)] += number;
        }
    }

    /// With the rates that follow from the rest.
    fn rated(self, size: usize) -> Self {
        let messages_per_s = float(self.received) / self.seconds.max(f64::MIN_POSITIVE);
        let mb_per_s = messages_per_s * float(size as u64) / 1e6;
        let cpu_ns_per_message = self.timed_cpu_seconds * 1e9 / float(self.received.max(1));
        Self { messages_per_s, mb_per_s, cpu_ns_per_message, ..self }
    }

    /// Both together, but for latency, which takes more than both to know.
    fn plus(self, other: &Self) -> Self {
        Self {
            rank: None,
            ranks: self.ranks + other.ranks,
            with_self: self.with_self,
            sent: self.sent + other.sent,
            received: self.received + other.received,
            seconds: self.seconds.max(other.seconds),
            messages_per_s: 0.0,
            mb_per_s: 0.0,
            origin_batches: self.origin_batches + other.origin_batches,
            relay_batches: self.relay_batches + other.relay_batches,
            network_batches: self.network_batches + other.network_batches,
            origin_messages: self.origin_messages + other.origin_messages,
            relay_messages: self.relay_messages + other.relay_messages,
            hops: std::array::from_fn(|hops| self.hops[hops] + other.hops[hops]),
            network_messages: self.network_messages + other.network_messages,
            latency_p50_us: 0.0,
            latency_p90_us: 0.0,
            latency_p99_us: 0.0,
            latency_max_us: 0.0,
            cpu_seconds: self.cpu_seconds + other.cpu_seconds,
            timed_cpu_seconds: self.timed_cpu_seconds + other.timed_cpu_seconds,
            cpu_ns_per_message: 0.0,
            peak_rss_kib: self.peak_rss_kib.max(other.peak_rss_kib),
            wrong: Wrong {
                lost: self.wrong.lost + other.wrong.lost,
                repeated: self.wrong.repeated + other.wrong.repeated,
                corrupted: self.wrong.corrupted + other.wrong.corrupted,
            },
        }
    }

    fn row(&self) -> String {
        let name = self.rank.map_or("all".to_owned(), |rank| rank.to_string());
        let Wrong { lost, repeated, corrupted } = self.wrong;
        format!(
            "{name:>5} {:>12.0} {:>9.1} {:>9} {:>9} {:>9} {:>8.0} {:>8.0} {:>8.0} {:>8.0} {:>7.0} {:>8} {lost:>5} {repeated:>8} {corrupted:>9}",
            self.messages_per_s,
            self.mb_per_s,
            self.origin_batches,
            self.network_batches,
            self.relay_batches,
            self.latency_p50_us,
            self.latency_p90_us,
            self.latency_p99_us,
            self.latency_max_us,
            self.cpu_ns_per_message,
            self.peak_rss_kib,
        )
    }
}

/// The hops of a message: what each process on its way does with it.
fn hops(map: &Arc<NodeMap>, from: u32, to: u32) -> usize {
    let (mut at, mut came) = (from, Came::FromHere);
    for hops in 0..3 {
        let next = Routes::new(Arc::clone(map), at).next(came, to);
        (at, came) = match next {
            Ok(Next::Origin { rank }) => (rank, Came::FromNode),
            Ok(Next::Network { rank, .. }) => (rank, Came::FromNetwork),
            Ok(Next::Relay { rank }) => (rank, Came::Relayed),
            Ok(Next::Deliver) | Err(_) => return hops,
        };
    }
    3
}

/// What a rank says when another one has failed: what became of all that it sent, got and passed on.
#[derive(Debug, Serialize)]
pub(crate) struct Torn<'a> {
    rank: u32,
    failed_rank: u32,
    hop: String,
    why: &'a str,
    /// Messages of this rank that were delivered or not, and those that were not.
    in_doubt: u64,
    dropped: u64,
    /// Messages of the whole run taken from this rank, to each rank.
    sent: Vec<u64>,
    /// Messages that came here, from each rank.
    received: Vec<u64>,
    /// The rest: what was passed on, by its ways.
    account: Account,
    #[serde(flatten)]
    wrong: Wrong,
}

impl<'a> Torn<'a> {
    pub(crate) fn new(rank: u32, failure: &'a Failure, account: Account, reader: &Reader) -> Self {
        Self {
            rank,
            failed_rank: failure.rank,
            hop: failure.hop.to_string(),
            why: &failure.why,
            in_doubt: failure.in_doubt,
            dropped: failure.dropped,
            sent: account.sent.clone(),
            account,
            received: reader.received(),
            wrong: reader.wrong,
        }
    }

    pub(crate) fn print(&self, json: bool) -> io::Result<()> {
        let text = if json {
            serde_json::to_string(self)?
        } else {
            let sum = |counts: &[u64]| counts.iter().sum::<u64>();
            let Self { rank, in_doubt, dropped, account, received, .. } = self;
            let (sent, received) = (sum(&account.sent), sum(received));
            let unfinished = account.unfinished();
            let Wrong { lost, repeated, corrupted } = self.wrong;
            format!(
                "rank {rank}: {sent} sent, of which {in_doubt} are in doubt and {dropped} were dropped; of all that left or \
                 passed here {unfinished} were not acknowledged; {received} received; {lost} missing in between, {repeated} repeated, {corrupted} corrupted"
            )
        };
        // At once: other ranks print as well.
        unless_closed(io::stdout().write_all((text + "\n").as_bytes()))
    }
}

/// What came of the timed run of one rank.
#[derive(Debug)]
pub(crate) struct Timed {
    pub(crate) sent: u64,
    pub(crate) with_self: bool,
    pub(crate) seconds: f64,
    /// Of processor time.
    pub(crate) cpu_seconds: f64,
    /// What the shuffle did meanwhile.
    pub(crate) statistics: Statistics,
    /// Messages to each rank.
    pub(crate) sent_to: Vec<u64>,
    pub(crate) samples: Vec<Sample>,
}

/// What one rank tells the others.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    report: OfRank,
    /// Its latencies: how many of each.
    latency: Vec<(u64, u64)>,
}

/// Brings the reports of all ranks together; rank 0 prints them. Whether nothing was wrong anywhere.
pub(crate) fn gather(
    job: &Job,
    arguments: &Arguments,
    own: OfRank,
    (reader, samples): (&Reader, &[Sample]),
) -> Result<bool, Error> {
    let counts = reader.latency.iter_recorded();
    let latency = counts.map(|count| (count.value_iterated_to(), count.count_at_value())).collect();
    let own = Told { report: own.rated(arguments.size), latency };
    let all = job.all_gather(&serde_json::to_vec(&own)?)?;
    let told = all.iter().map(|bytes| serde_json::from_slice(bytes));
    let told = told.collect::<Result<Vec<Told>, _>>()?;
    let mut drawn = Ok(());
    if let Some(file) = &arguments.plot {
        let all = job.all_gather(&serde_json::to_vec(samples)?)?;
        let seen = all.iter().map(|bytes| serde_json::from_slice(bytes));
        let plot = samples::plot(&seen.collect::<Result<Vec<_>, _>>()?);
        if job.rank() == 0 {
            let written = fs::write(file, plot.to_string());
            drawn = written.map_err(|error| Error::Plot(file.clone(), error));
        }
    }
    let Some(total) = total(&told, arguments.size) else { return Ok(true) };
    if job.rank() == 0 {
        let reports = told.iter().map(|told| &told.report).chain([&total]);
        let verified = (total.wrong == Wrong::default()).then_some(total.received);
        unless_closed(print(reports, verified, arguments.json)).map_err(Error::Print)?;
    }
    // Not sooner: the figures of the run are not lost with their picture.
    drawn?;
    Ok(total.wrong == Wrong::default())
}

/// Of all ranks together; `None` of none.
fn total(told: &[Told], size: usize) -> Option<OfRank> {
    let (first, rest) = told.split_first()?;
    let sum = rest.iter().fold(first.report.clone(), |sum, told| sum.plus(&told.report));
    let mut latency = latencies();
    for (value, count) in told.iter().flat_map(|told| &told.latency) {
        latency.saturating_record_n(*value, *count);
    }
    Some(OfRank { rank: None, ..sum }.with_latency(&latency).rated(size))
}

/// `verified`: messages of a run in which nothing was wrong.
fn print<'a>(
    reports: impl Iterator<Item = &'a OfRank>,
    verified: Option<u64>,
    json: bool,
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let mut reports = reports.peekable();
    if !json {
        let with_self = reports.peek().is_none_or(|report| report.with_self);
        let said = if with_self { "messages to oneself counted" } else { "none to oneself" };
        writeln!(out, "timed run, {said}; {HEAD}")?;
    }
    for report in reports {
        if json {
            writeln!(out, "{}", serde_json::to_string(report)?)?;
        } else {
            writeln!(out, "{}", report.row())?;
        }
    }
    if let Some(messages) = verified.filter(|_| !json) {
        writeln!(out, "{messages} messages verified: none lost, repeated or corrupted")?;
    }
    out.flush()
}

#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}

const HEAD: &str = "\
batches by kind of queue; latency from `enqueue` to the callback, of a sample; processor time of a message; RSS: the most so far
 rank   messages/s      MB/s    origin   network     relay   p50 us   p90 us   p99 us   max us  cpu ns  RSS KiB  lost repeated corrupted";

/// What it costs to make and check a message, in nanoseconds.
pub(crate) fn of_checks(cost: f64, size: usize) -> String {
    format!("{cost:.1} ns to make and check a message of {size} bytes\n")
}

/// What `--plan --json` prints: of each figure the least and the most of a process.
pub(crate) fn of_plan(plan: &Plan) -> String {
    let figure = |figure: fn(&Process) -> u64| {
        let extremes = plan.extremes(figure);
        serde_json::json!({ "min": extremes.min, "max": extremes.max })
    };
    let start: serde_json::Map<String, serde_json::Value> = plan
        .start()
        .figures()
        .map(|(name, Bounds { least, most })| {
            (name.replace(' ', "_"), serde_json::json!({ "min": least, "max": most }))
        })
        .collect();
    let all = serde_json::json!({
        "ranks": plan.ranks(),
        "nodes": plan.nodes(),
        "local_queues": figure(|process| process.local_queues),
        "network_queues": figure(|process| process.network_queues),
        "local_connections": figure(|process| process.local_connections),
        "network_connections": figure(|process| process.network_connections),
        "message_bytes": figure(|process| process.bytes),
        "backlog_bytes": figure(|process| process.backlog_bytes),
        "start": start,
        "table_bytes": figure(|process| process.table_bytes),
    });
    format!("{all}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(rank: u32, latencies: &[u64]) -> Told {
        let mut reader = Reader::new(2);
        for latency in latencies {
            reader.latency.saturating_record(*latency);
        }
        let timed = Timed {
            sent: 1,
            with_self: true,
            seconds: 1.0,
            cpu_seconds: 0.5,
            statistics: Statistics::default(),
            sent_to: Vec::new(),
            samples: Vec::new(),
        };
        let counts = reader.latency.iter_recorded();
        let latency = counts.map(|it| (it.value_iterated_to(), it.count_at_value())).collect();
        Told { report: OfRank::new(rank, &timed, &reader), latency }
    }

    #[test]
    fn the_percentiles_of_all_are_those_of_all_messages_and_not_of_the_slowest_rank() {
        // 90 messages of 1 ms in one rank, 10 of 1 s in the other.
        let both = [told(0, &[1_000_000; 90]), told(1, &[1_000_000_000; 10])];
        let total = total(&both, 32).unwrap();
        let about = |value: f64, expected: f64| (value / expected - 1.0).abs() < 0.02;
        assert!(about(both[1].report.latency_p50_us, 1e6), "{:?}", both[1].report);
        assert!(about(total.latency_p50_us, 1e3) && about(total.latency_p90_us, 1e3), "{total:?}");
        assert!(about(total.latency_p99_us, 1e6) && about(total.latency_max_us, 1e6), "{total:?}");
    }
}
