//! What is printed at the end: a line for each rank, and one for all of them.

use std::{
    io::{self, Write as _},
    sync::Arc,
    time::Duration,
};

use hg_job::{Job, NodeMap};
use hg_shuffle::{
    Account, Failure, Statistics,
    route::{Came, Next, Routes},
};
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::{TimeVal, TimeValLike as _},
};
use serde::{Deserialize, Serialize};

use crate::{
    Error,
    arguments::Arguments,
    payload::{Reader, Wrong},
    plot::Plot,
    samples::Sample,
};

/// What one rank has seen. Rates are of the timed run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OfRank {
    rank: Option<u32>,
    ranks: u32,
    /// Messages of the timed run.
    sent: u64,
    received: u64,
    seconds: f64,
    messages_per_s: f64,
    mb_per_s: f64,
    /// Batches of the whole run, by kind of queue.
    origin_batches: u64,
    relay_batches: u64,
    network_batches: u64,
    /// Messages of the whole run that passed each kind of queue.
    origin_messages: u64,
    relay_messages: u64,
    network_messages: u64,
    /// Messages of the whole run, without those that say how many there were, by the hops that they took: 0 to 3.
    hops: [u64; 4],
    /// Microseconds from `enqueue` to the callback, of a sample.
    latency_p50_us: f64,
    latency_p90_us: f64,
    latency_p99_us: f64,
    latency_max_us: f64,
    /// Processor time of the whole run, of all threads.
    cpu_seconds: f64,
    /// Most memory of a process so far.
    peak_rss_kib: u64,
    #[serde(flatten)]
    wrong: Wrong,
}

impl OfRank {
    pub(crate) fn new(
        rank: u32,
        (sent, seconds): (u64, f64),
        reader: &mut Reader,
        statistics: &Statistics,
    ) -> Self {
        let us = |nanoseconds: u64| float(nanoseconds) / 1e3;
        let latency = &reader.latency;
        Self {
            rank: Some(rank),
            ranks: 1,
            sent,
            received: reader.timed,
            seconds,
            messages_per_s: 0.0,
            mb_per_s: 0.0,
            origin_batches: statistics.origin.batches,
            relay_batches: statistics.relay.batches,
            network_batches: statistics.network.batches,
            origin_messages: statistics.origin.messages,
            relay_messages: statistics.relay.messages,
            hops: [0; 4],
            network_messages: statistics.network.messages,
            latency_p50_us: us(latency.value_at_quantile(0.5)),
            latency_p90_us: us(latency.value_at_quantile(0.9)),
            latency_p99_us: us(latency.value_at_quantile(0.99)),
            latency_max_us: us(latency.max()),
            cpu_seconds: cpu_seconds(),
            peak_rss_kib: peak_rss_kib(),
            wrong: reader.wrong,
        }
    }

    /// `numbers`: messages sent to each rank.
    pub(crate) fn count_hops(&mut self, map: &Arc<NodeMap>, numbers: &[u64]) {
        let me = self.rank.unwrap_or(0);
        for (to, number) in (0..).zip(numbers) {
            self.hops[hops(map, me, to)] += number;
        }
    }

    /// With the rates that follow from the rest.
    fn rated(self, size: usize) -> Self {
        let messages_per_s = float(self.received) / self.seconds.max(f64::MIN_POSITIVE);
        let mb_per_s = messages_per_s * float(size as u64) / 1e6;
        Self { messages_per_s, mb_per_s, ..self }
    }

    /// Both together.
    fn plus(self, other: &Self) -> Self {
        Self {
            rank: None,
            ranks: self.ranks + other.ranks,
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
            latency_p50_us: self.latency_p50_us.max(other.latency_p50_us),
            latency_p90_us: self.latency_p90_us.max(other.latency_p90_us),
            latency_p99_us: self.latency_p99_us.max(other.latency_p99_us),
            latency_max_us: self.latency_max_us.max(other.latency_max_us),
            cpu_seconds: self.cpu_seconds + other.cpu_seconds,
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
            "{name:>5} {:>12.0} {:>9.1} {:>9} {:>9} {:>9} {:>8.0} {:>8.0} {:>8.0} {:>8.0} {:>8} {lost:>5} {repeated:>8} {corrupted:>9}",
            self.messages_per_s,
            self.mb_per_s,
            self.origin_batches,
            self.network_batches,
            self.relay_batches,
            self.latency_p50_us,
            self.latency_p90_us,
            self.latency_p99_us,
            self.latency_max_us,
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
        io::stdout().write_all((text + "\n").as_bytes())
    }
}

/// Brings the reports of all ranks together; rank 0 prints them. Whether nothing was wrong anywhere.
pub(crate) fn gather(
    job: &Job,
    arguments: &Arguments,
    own: OfRank,
    samples: &[Sample],
) -> Result<bool, Error> {
    let all = job.all_gather(&serde_json::to_vec(&own.rated(arguments.size))?)?;
    let reports = all.iter().map(|bytes| serde_json::from_slice(bytes));
    let reports = reports.collect::<Result<Vec<OfRank>, _>>()?;
    if let Some(file) = &arguments.plot {
        let all = job.all_gather(&serde_json::to_vec(samples)?)?;
        let seen = all.iter().map(|bytes| serde_json::from_slice(bytes));
        let plot = Plot::new(&seen.collect::<Result<Vec<_>, _>>()?);
        if job.rank() == 0 {
            std::fs::write(file, plot.to_string()).map_err(Error::Plot)?;
        }
    }
    let mut rest = reports.iter();
    let Some(first) = rest.next() else { return Ok(true) };
    let total = rest.fold(first.clone(), OfRank::plus).rated(arguments.size);
    let total = OfRank { rank: None, ..total };
    if job.rank() == 0 {
        print(&reports, &total, arguments.json).map_err(Error::Print)?;
    }
    Ok(total.wrong == Wrong::default())
}

fn print(reports: &[OfRank], total: &OfRank, json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if !json {
        writeln!(out, "{HEAD}")?;
    }
    for report in reports.iter().chain([total]) {
        if json {
            writeln!(out, "{}", serde_json::to_string(report)?)?;
        } else {
            writeln!(out, "{}", report.row())?;
        }
    }
    out.flush()
}

/// Of this process so far.
fn cpu_seconds() -> f64 {
    let seconds = |time: TimeVal| {
        let micros = u64::try_from(time.num_microseconds()).unwrap_or(0);
        Duration::from_micros(micros).as_secs_f64()
    };
    getrusage(UsageWho::RUSAGE_SELF)
        .map_or(0.0, |usage| seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// The high-water mark of this process's memory.
fn peak_rss_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}

const HEAD: &str = " rank   messages/s      MB/s    origin   network     relay   p50 us   p90 us   p99 us   max us  RSS KiB  lost repeated corrupted";
