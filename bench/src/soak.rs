//! `hg-perf soak`: peers that connect, call and close, many times; afterwards all is as before.
//!
//! The call of a peer that stays is measured before and after. Memory, descriptors and mappings of
//! the target are taken after [`SETTLE_CYCLES`] cycles, when its tables have their size, and at the end.

use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::measure::{Measure, Subject, Unit, Wait};
use crate::pair::Cores;
use crate::process::Held;
use crate::product::call::{Caller, Shape, WORD};
use crate::product::target::Target;
use crate::product::{call_once, origin};
use crate::report::{self, Figure};
use crate::stats::{Better, Summary};

/// `hg-perf soak`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Chooses the transport.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// Times to connect, call and close.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    cycles: u32,
    /// How both sides wait.
    #[arg(long, value_enum, default_value = "adaptive")]
    wait: Wait,
    /// Repetitions of the call, before and after.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
}

/// Soaks and prints; fails when the target keeps descriptors or mappings.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let cores = Cores::choose()?;
    cores.pin_origin()?;
    let (url, wait) = (arguments.url.clone(), arguments.wait);
    let target = Rc::new(Target::start(&url, wait, cores)?);
    let shape = Shape { url: url.clone(), size: WORD, inflight: 1, wait, peers: 1 };
    let mut caller = Caller::connect(shape, &target)?;
    cycles(&url, wait, &target, SETTLE_CYCLES)?;
    let before = measured(&mut caller, arguments.repetitions)?;
    let held = Held::by(target.pid()?)?;

    let start = Instant::now();
    cycles(&url, wait, &target, arguments.cycles)?;
    let rate = f64::from(arguments.cycles) / start.elapsed().as_secs_f64();

    let after = measured(&mut caller, arguments.repetitions)?;
    let left = settled(&mut caller, &target, held)?;
    let named = |name, unit| Subject {
        url: Some(url.clone()),
        wait: Some(wait),
        ..Subject::new(name, unit)
    };
    let count = |name, unit, value: u64| Figure::counted(named(name, unit), value as f64);
    let call = |name| Subject { figure: name, ..caller.subject() };
    let before = Figure::new(call("call_before".into()), before);
    let figures = [
        Figure::new(call("call_after".into()), after).beside(&before),
        before,
        Figure::counted(named("connect_call_close", Unit::PerSecond), rate),
        count("target_rss_before", Unit::Kibibytes, held.rss_kib),
        count("target_rss_after", Unit::Kibibytes, left.rss_kib),
        count("target_fds_before", Unit::Descriptors, held.fds),
        count("target_fds_after", Unit::Descriptors, left.fds),
        count("target_mappings_before", Unit::Mappings, held.mappings),
        count("target_mappings_after", Unit::Mappings, left.mappings),
    ];
    report::print(json, &figures)?;
    if left.fds > held.fds {
        return Err(Error::Failed(format!("{} descriptors leaked", left.fds - held.fds)));
    }
    if left.mappings > held.mappings + MAPPINGS_SLACK {
        return Err(Error::Failed(format!("{} mappings leaked", left.mappings - held.mappings)));
    }
    Ok(())
}

/// A peer of its own each time.
fn cycles(url: &str, wait: Wait, target: &Target, count: u32) -> Result<(), Error> {
    target.resume()?;
    for number in 0..count {
        let engine = origin(url, wait)?;
        call_once(&engine, &engine.lookup(target.address())?, u64::from(number))?;
    }
    target.pause()
}

fn measured(caller: &mut Caller, repetitions: u32) -> Result<Summary, Error> {
    let values =
        (0..=repetitions).map(|_| caller.measure()).collect::<Result<Vec<f64>, Error>>()?;
    // The first one only warms up.
    Ok(Summary::of(&values[1..], Better::Smaller).expect("at least one repetition"))
}

/// What the target holds once it has dealt with the last peer's end, or after [`PATIENCE`].
fn settled(caller: &mut Caller, target: &Target, before: Held) -> Result<Held, Error> {
    let limit = Instant::now() + PATIENCE;
    loop {
        // Keeps the target running: one that spins is stopped otherwise.
        caller.measure()?;
        let held = Held::by(target.pid()?)?;
        if (held.fds <= before.fds && held.mappings <= before.mappings) || Instant::now() > limit {
            return Ok(held);
        }
    }
}

/// Cycles until the target's tables have their size.
const SETTLE_CYCLES: u32 = 200;
/// How long the target may take to let go of the last peer.
const PATIENCE: Duration = Duration::from_secs(5);
/// An allocator may split or join a mapping.
const MAPPINGS_SLACK: u64 = 4;
