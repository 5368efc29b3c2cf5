//! `hg-perf syscalls`: system calls of one call and side, by kind, counted by strace.
//!
//! Blocking with one call in flight: two runs of different length are counted, both processes of each;
//! the difference holds neither the start nor the end. One `write` (the wake-up) and one `epoll_wait` or
//! the like (the sleep); fewer where strace delays a side so long that the other finds the next message
//! before it sleeps.
//!
//! With 16 in flight there are few; so one long run is counted whole, start and end included, and
//! `calls_per_syscall_and_side` says how many calls each of them served.
//!
//! strace delays every system call, and what waits meanwhile travels together; so over TCP
//! `calls_per_segment_and_side` is counted, too, in a run without strace: every write to a socket makes one
//! segment or more (`OutSegs` in `/proc/net/snmp`, acknowledgements and other processes' included).

use std::collections::BTreeMap;
use std::fs;
use std::rc::Rc;

use crate::error::{Context, Error};
use crate::measure::{Subject, Unit, Wait};
use crate::pair::Cores;
use crate::product::call::{Caller, Shape, WORD};
use crate::product::target::Target;
use crate::report::{self, Figure};
use crate::tools;

/// `hg-perf syscalls`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Chooses the transport.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// Blocking calls in the shorter of the two runs; under load there are 500 times as many.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,
}

/// `hg-perf calls`: what is counted.
#[derive(Debug, clap::Args)]
pub(crate) struct CallsArguments {
    #[arg(long)]
    url: String,
    #[arg(long, value_enum)]
    wait: Wait,
    #[arg(long)]
    inflight: u32,
    #[arg(long)]
    calls: u32,
}

/// Counts and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let url = arguments.url.as_str();
    let mut figures = counted(url, Wait::Block, 1, arguments.calls)?;
    let many = arguments.calls.saturating_mul(LOADED);
    figures.extend(counted(url, Wait::Spin, INFLIGHT, many)?);
    if url.starts_with("tcp:") {
        figures.extend(counted(url, Wait::Block, INFLIGHT, many)?);
        for wait in [Wait::Spin, Wait::Block] {
            figures.push(per_segment(url, wait, many)?);
        }
    }
    report::print(json, &figures)
}

/// The total, and every kind that is not rare.
fn counted(url: &str, wait: Wait, inflight: u32, calls: u32) -> Result<Vec<Figure>, Error> {
    let count = |calls: u32| {
        let (inflight, calls) = (inflight.to_string(), calls.to_string());
        let mut arguments = vec!["calls", "--url", url, "--wait", wait.as_str()];
        arguments.extend(["--inflight", &inflight, "--calls", &calls]);
        tools::system_calls(&arguments)
    };
    let longer = calls.saturating_mul(2);
    let mut kinds: BTreeMap<String, f64> = BTreeMap::new();
    for (name, number) in count(longer)? {
        *kinds.entry(name).or_default() += number as f64;
    }
    let loaded = inflight > 1;
    if !loaded {
        for (name, number) in count(calls)? {
            *kinds.entry(name).or_default() -= number as f64;
        }
    }
    let divisor = f64::from(if loaded { longer } else { calls }) * SIDES;
    let figure = |name: String, unit, number: f64| {
        Figure::counted(subject(name, unit, url, inflight, wait), number)
    };
    let total: f64 = kinds.values().sum();
    let per_call = figure("syscalls_per_call_and_side".into(), Unit::SystemCalls, total / divisor);
    let mut figures = vec![per_call];
    if loaded {
        figures.push(figure("calls_per_syscall_and_side".into(), Unit::Calls, divisor / total));
    }
    let worth = kinds.into_iter().map(|(name, number)| (name, number / divisor));
    figures.extend(
        worth
            .filter(|(_, number)| number.abs() >= RARE)
            .map(|(name, n)| figure(format!("syscalls_{name}"), Unit::SystemCalls, n)),
    );
    Ok(figures)
}

fn subject(name: String, unit: Unit, url: &str, inflight: u32, wait: Wait) -> Subject {
    Subject {
        url: Some(url.to_owned()),
        size: Some(WORD as u64),
        inflight: Some(u64::from(inflight)),
        wait: Some(wait),
        ..Subject::new(name, unit)
    }
}

/// Calls under load for each TCP segment, without strace.
fn per_segment(url: &str, wait: Wait, calls: u32) -> Result<Figure, Error> {
    let (caller, target) = pair(url, wait, INFLIGHT)?;
    target.resume()?;
    let before = segments_sent()?;
    caller.calls(calls)?;
    let segments = segments_sent()? - before;
    let name = "calls_per_segment_and_side".to_owned();
    let subject = subject(name, Unit::Calls, url, INFLIGHT, wait);
    Ok(Figure::counted(subject, f64::from(calls) * SIDES / segments as f64))
}

/// TCP segments that the processes of this network namespace have sent so far.
fn segments_sent() -> Result<u64, Error> {
    let text = fs::read_to_string("/proc/net/snmp").context("read /proc/net/snmp")?;
    let segments = out_segments(&text);
    segments.ok_or_else(|| Error::Failed("/proc/net/snmp does not read as expected".to_owned()))
}

/// `OutSegs` in a line of names and a line of numbers.
fn out_segments(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let at = names.split(' ').position(|name| name == "OutSegs")?;
    numbers.split(' ').nth(at)?.parse().ok()
}

/// A target of this process's own, and who calls it.
fn pair(url: &str, wait: Wait, inflight: u32) -> Result<(Caller, Rc<Target>), Error> {
    let cores = Cores::choose()?;
    cores.pin_origin()?;
    let target = Rc::new(Target::start(url, wait, cores)?);
    let shape = Shape { url: url.to_owned(), size: WORD, inflight, wait, peers: 1 };
    Ok((Caller::connect(shape, &target)?, target))
}

/// The calls that are counted.
pub(crate) fn calls(arguments: &CallsArguments) -> Result<(), Error> {
    let (caller, target) = pair(&arguments.url, arguments.wait, arguments.inflight)?;
    target.resume()?;
    caller.calls(arguments.calls)
}

/// Calls in flight under load.
const INFLIGHT: u32 = 16;
/// How many calls under load stand for one blocking call.
const LOADED: u32 = 500;
/// A kind with fewer calls than this is left out.
const RARE: f64 = 0.001;

const SIDES: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_found_by_their_name() {
        let text = "Ip: A OutSegs\nIp: 1 2\nTcp: InSegs OutSegs X\nTcp: 3 45 -1\nUdp: A\nUdp: 6\n";
        assert_eq!(out_segments(text), Some(45));
        assert_eq!(out_segments("Tcp: InSegs\nTcp: 3\n"), None);
    }
}
