//! `hg-perf idle`: processor time of engines that have a peer and nothing to do.
//!
//! `--after N` also looks at engines some seconds after N calls to a blocking handler: the threads that they have more than
//! before, and how often these wake. `--peers N` also drives a target with so many idle peers round by round, and tells the longest
//! round of those in which the kernel has not taken the core away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::Pid;

use crate::error::{Context, Error};
use crate::measure::{Subject, Unit, Wait};
use crate::pair::Cores;
use crate::process::{cpu_time, threads_and_sleeps};
use crate::product::crowd::Crowd;
use crate::product::target::{Target, raise_descriptor_limit};
use crate::product::{builder, call_once, echo, nap};
use crate::report::{self, Figure};
use crate::stats::Summary;

/// `hg-perf idle`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Chooses the transport.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// How long to look, for each way of waiting.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Makes so many calls to a blocking handler first, all at once, and counts threads and wake-ups some time later.
    #[arg(long, value_name = "CALLS")]
    after: Option<u32>,
    /// How long after them, in seconds.
    #[arg(long, default_value_t = 15)]
    later: u64,
    /// Drives a target with so many idle peers, and nothing else.
    #[arg(long, conflicts_with = "after")]
    peers: Option<usize>,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let cores = Cores::choose()?;
    if let Some(peers) = arguments.peers {
        return report::print(json, &crowded(arguments, peers, cores)?);
    }
    let mut figures = Vec::new();
    for wait in [Wait::Adaptive, Wait::Block] {
        let target = Target::start(&arguments.url, wait, cores)?;
        let crowd = Crowd::with_thread(&arguments.url, &target, cores)?;
        let origin = crowd.processes().iter().map(crate::pair::Peer::pid);
        let sides = origin.map(|pid| ("idle_origin", pid)).chain([("idle_target", target.pid()?)]);
        let sides: Vec<_> = sides.collect();
        // The last call's spinning and the background threads' steps aside end first.
        thread::sleep(SETTLE);
        let used = |pid| cpu_time(pid);
        let before = sides.iter().map(|(_, pid)| used(*pid)).collect::<Result<Vec<_>, _>>()?;
        let start = Instant::now();
        thread::sleep(Duration::from_secs(arguments.seconds));
        let seconds = start.elapsed().as_secs_f64();
        for ((name, pid), before) in sides.iter().zip(before) {
            let percent = (used(*pid)? - before).as_secs_f64() / seconds * 100.0;
            let subject = Subject {
                url: Some(arguments.url.clone()),
                wait: Some(wait),
                peers: Some(1),
                ..Subject::new(*name, Unit::Percent)
            };
            figures.push(Figure::counted(subject, percent));
        }
    }
    if let Some(calls) = arguments.after {
        figures.extend(after(arguments, calls, cores)?);
    }
    report::print(json, &figures)
}

/// Threads and wake-ups of both sides some time after many calls at once.
fn after(arguments: &Arguments, calls: u32, cores: Cores) -> Result<Vec<Figure>, Error> {
    let target = Target::start(&arguments.url, Wait::Adaptive, cores)?;
    let engine = builder(&arguments.url, Wait::Adaptive).open(&arguments.url)?;
    let peer = engine.lookup(target.address())?;
    call_once(&engine, &peer, 0)?;
    let sides = [("origin", Pid::this()), ("target", target.pid()?)];
    let seen = || sides.map(|(_, pid)| threads_and_sleeps(pid));
    let before = seen();
    let open: Vec<_> = (0..calls).map(|_| engine.call(nap, &peer, (NAP_MICROS,))).collect();
    open.into_iter().try_for_each(hg::Call::wait)?;
    let most = seen();
    thread::sleep(Duration::from_secs(arguments.later));
    let (start, settled) = (Instant::now(), seen());
    thread::sleep(Duration::from_secs(arguments.seconds));
    let (seconds, ended) = (start.elapsed().as_secs_f64(), seen());
    let mut figures = Vec::new();
    let looks = before.into_iter().zip(most).zip(settled).zip(ended);
    for ((side, _), (((before, most), settled), ended)) in sides.into_iter().zip(looks) {
        let (before, most, settled, ended) = (before?, most?, settled?, ended?);
        let figure = |name: &str, unit, value| {
            let url = Some(arguments.url.clone());
            let subject = Subject {
                url,
                wait: Some(Wait::Adaptive),
                ..Subject::new(format!("{name}_{side}"), unit)
            };
            Figure::counted(subject, value)
        };
        let threads = |name, (count, _): (u64, u64)| figure(name, Unit::Threads, count as f64);
        figures.push(threads("threads_before", before));
        figures.push(threads("threads_after_calls", most));
        figures.push(threads("threads_later", ended));
        // The thread that looks has slept once.
        let own = u64::from(side == "origin");
        let wakes = ended.1.saturating_sub(settled.1 + own);
        figures.push(figure("wakes_later", Unit::Wakes, wakes as f64 / seconds));
    }
    Ok(figures)
}

/// Rounds of a target with so many idle peers, for so many seconds.
fn crowded(arguments: &Arguments, peers: usize, cores: Cores) -> Result<Vec<Figure>, Error> {
    raise_descriptor_limit()?;
    let url = &arguments.url;
    let builder = builder(url, Wait::Spin).progress(hg::Progress::Own);
    let engine = builder.listen(true).open(url)?;
    engine.register(echo)?;
    let target = Target::at(engine.address().to_string(), Wait::Block);
    let is_there = AtomicBool::new(false);
    // The crowd dies with the thread that has started it.
    let crowd = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_there.load(Ordering::Acquire) {
                engine.progress(Duration::ZERO);
            }
        });
        let crowd = Crowd::start(url, &target, peers, cores);
        is_there.store(true, Ordering::Release);
        crowd
    })?;
    cores.pin_origin()?;
    let (mut rounds, end) = (Vec::new(), Instant::now() + Duration::from_secs(arguments.seconds));
    while Instant::now() < end {
        let (before, start) = (switches()?, Instant::now());
        engine.progress(Duration::ZERO);
        let lasted = start.elapsed();
        if switches()? == before {
            rounds.push(lasted.as_secs_f64() * 1e6);
        }
    }
    drop(crowd);
    let peers = Some(peers as u64);
    let subject = Subject::round_trip("round", 0, Wait::Spin);
    let subject = Subject { url: Some(url.clone()), peers, size: None, inflight: None, ..subject };
    let summary = Summary::of(&rounds, subject.unit.better());
    Ok(summary.map(|summary| Figure::new(subject, summary)).into_iter().collect())
}

/// How often the kernel has given this thread's core to somebody else.
fn switches() -> Result<i64, Error> {
    let used = getrusage(UsageWho::RUSAGE_THREAD).context("getrusage")?;
    Ok(used.involuntary_context_switches())
}

/// How long each of many calls blocks a thread of the target's.
const NAP_MICROS: u64 = 1_000;
/// Before the clock starts.
const SETTLE: Duration = Duration::from_millis(200);
