//! `hg-perf syscalls`: system calls of one call and side, by kind, counted by strace.
//!
//! Blocking with one call in flight: two runs of different length are counted, both processes of each;
//! the difference holds neither the start nor the end. One `write` (the wake-up) and one `epoll_wait` or
//! the like (the sleep); fewer where strace delays a side so long that the other finds the next message
//! before it sleeps.
//!
//! Spinning with 16 in flight: next to none; so one long run is counted whole, start and end included.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::error::Error;
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
    let mut figures = counted(&arguments.url, Wait::Block, 1, arguments.calls)?;
    let many = arguments.calls.saturating_mul(LOADED);
    figures.extend(counted(&arguments.url, Wait::Spin, INFLIGHT, many)?);
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
    let figure = |name: String, number: f64| {
        let subject = Subject {
            url: Some(url.to_owned()),
            size: Some(WORD as u64),
            inflight: Some(u64::from(inflight)),
            wait: Some(wait),
            ..Subject::new(name, Unit::SystemCalls)
        };
        Figure::counted(subject, number)
    };
    let total: f64 = kinds.values().sum();
    let mut figures = vec![figure("syscalls_per_call_and_side".to_owned(), total / divisor)];
    let worth = kinds.into_iter().map(|(name, number)| (name, number / divisor));
    figures.extend(
        worth
            .filter(|(_, number)| number.abs() >= RARE)
            .map(|(name, n)| figure(format!("syscalls_{name}"), n)),
    );
    Ok(figures)
}

/// The calls, to a target of this process's own.
pub(crate) fn calls(arguments: &CallsArguments) -> Result<(), Error> {
    let cores = Cores::choose()?;
    cores.pin_origin()?;
    let target = Rc::new(Target::start(&arguments.url, arguments.wait, cores)?);
    let shape = Shape {
        url: arguments.url.clone(),
        size: WORD,
        inflight: arguments.inflight,
        wait: arguments.wait,
        peers: 1,
    };
    let caller = Caller::connect(shape, &target)?;
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
