//! `hg-perf instructions`: instructions of one 8-byte call, per side, counted by callgrind.
//!
//! Both engines live in one process and are stepped by hand on one thread, over the transport's
//! real memory: call, one round of the target's, then the origin's `wait`, which finds the answer in
//! its first round. So nobody polls in vain and the count is the same in every run. Two runs of
//! different length are counted; the difference holds neither the start nor the end.
//!
//! Over a network a message leaves with the next round, and is looked for after some that found nothing: there, both
//! sides have their rounds in turns until the answer is there, as many for each call. The kernel's work is not counted.

use std::collections::VecDeque;
use std::hint::black_box;
use std::io::{self, Write};
use std::time::Duration;

use crate::error::{Context, Error};
use crate::measure::{Subject, Unit, Wait};
use crate::product::{builder, call, echo};
use crate::report::{self, Figure};
use crate::stats::{Better, Summary};
use crate::tools::callgrind::{Callgrind, Profile};

/// `hg-perf instructions`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Chooses the transport.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// Calls in the shorter of the two runs; the longer has twice as many.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,
    /// Calls made before the target's round and the waits for them.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=32))]
    inflight: u32,
    /// How often to count.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Prints the functions and lines that the instructions are spent in.
    #[arg(long)]
    profile: bool,
}

/// `hg-perf step`: what is counted.
#[derive(Debug, clap::Args)]
pub(crate) struct StepArguments {
    #[arg(long)]
    url: String,
    #[arg(long)]
    inflight: u32,
    #[arg(long)]
    calls: u32,
}

/// Counts and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    // Whole batches only.
    let calls = arguments.calls.next_multiple_of(arguments.inflight);
    let inflight = arguments.inflight.to_string();
    let count = |calls: u32, inside| {
        let (url, calls) = (arguments.url.as_str(), calls.to_string());
        let step = ["step", "--url", url, "--inflight", &inflight, "--calls", &calls];
        Callgrind::run(&step, inside)
    };
    let mut values = Vec::new();
    for _ in 0..arguments.repetitions {
        let (short, long) = (count(calls, None)?.total()?, count(2 * calls, None)?.total()?);
        values.push((long - short) / f64::from(calls) / SIDES);
    }
    let subject = Subject {
        url: Some(arguments.url.clone()),
        size: Some(8),
        inflight: Some(u64::from(arguments.inflight)),
        ..Subject::new("instructions_per_call_and_side", Unit::Instructions)
    };
    let summary = Summary::of(&values, Better::Smaller).expect("at least one repetition");
    report::print(json, &[Figure::new(subject, summary)])?;
    if arguments.profile {
        let profile = count(calls, Some("*instructions*stepped*"))?.profile()?;
        print_profile(&profile, f64::from(calls) * SIDES)?;
    }
    Ok(())
}

/// Functions and lines, most instructions first, per call and side.
fn print_profile(profile: &Profile, divisor: f64) -> Result<(), Error> {
    let out = &mut io::stdout().lock();
    for (what, costs) in [("function", &profile.functions), ("line", &profile.lines)] {
        writeln!(out, "\ninstructions  {what}").context("write")?;
        for (name, cost) in costs.iter().take(ROWS) {
            writeln!(out, "{:12.1}  {name}", *cost / divisor).context("write")?;
        }
    }
    Ok(())
}

/// The calls, with both engines in this process.
pub(crate) fn step(arguments: &StepArguments) -> Result<(), Error> {
    let own = || builder(&arguments.url, Wait::Spin).progress(hg::Progress::Own);
    let target = own().listen(true).open(&arguments.url)?;
    target.register(echo)?;
    let origin = own().open(&arguments.url)?;
    let peer = origin.lookup(target.address())?;
    let in_turns = |value| in_turns(&target, &origin, &peer, value);
    in_turns(0)?;
    if origin.way_of(&peer) != "sm" {
        if arguments.inflight > 1 {
            let why = "over a network, calls are counted one by one: --inflight 1";
            return Err(Error::Impossible(why.to_owned()));
        }
        (0..WARM_UP).try_for_each(in_turns)?;
        return stepped(arguments.calls, in_turns);
    }
    let once = |value| stepped_once(&target, &origin, &peer, value);
    (0..WARM_UP).try_for_each(once)?;
    if arguments.inflight > 1 {
        return stepped_batches(&target, &origin, &peer, arguments.inflight, arguments.calls);
    }
    stepped(arguments.calls, once)
}

/// A call that takes many rounds on both sides: the first one to a peer, and every one over a network.
fn in_turns(
    target: &hg::Handle,
    origin: &hg::Handle,
    peer: &hg::Peer,
    value: u64,
) -> Result<(), Error> {
    let mut open = origin.call(echo, peer, (value,));
    loop {
        origin.progress(Duration::ZERO);
        target.progress(Duration::ZERO);
        match open.try_take() {
            Ok(answer) => return call::check(value, answer?),
            Err(again) => open = again,
        }
    }
}

/// What the profile is of.
#[inline(never)]
fn stepped(calls: u32, one: impl Fn(u64) -> Result<(), Error>) -> Result<(), Error> {
    (0..calls).try_for_each(|number| one(black_box(u64::from(number))))
}

#[inline(always)]
fn stepped_once(
    target: &hg::Handle,
    origin: &hg::Handle,
    peer: &hg::Peer,
    value: u64,
) -> Result<(), Error> {
    let call = origin.call(echo, peer, (value,));
    if !target.progress(Duration::ZERO) {
        return Err(Error::Failed("a round of the target's found no request".to_owned()));
    }
    let got = call.wait()?;
    if got != value {
        return Err(Error::WrongAnswer { figure: "call", sent: value, got });
    }
    Ok(())
}

/// The same with several calls in flight: the target's rounds take what is there, and end with one
/// that finds nothing.
#[inline(never)]
fn stepped_batches(
    target: &hg::Handle,
    origin: &hg::Handle,
    peer: &hg::Peer,
    inflight: u32,
    calls: u32,
) -> Result<(), Error> {
    let mut open = VecDeque::new();
    for _ in 0..calls / inflight {
        for number in 0..inflight {
            open.push_back(origin.call(echo, peer, (black_box(u64::from(number)),)));
        }
        while target.progress(Duration::ZERO) {}
        for (number, call) in open.drain(..).enumerate() {
            let (sent, got) = (number as u64, call.wait()?);
            if got != sent {
                return Err(Error::WrongAnswer { figure: "call", sent, got });
            }
        }
    }
    Ok(())
}

/// Functions and lines of a profile that are printed.
const ROWS: usize = 40;

/// Calls before those that are counted.
const WARM_UP: u64 = 1_000;

/// A call has two sides.
const SIDES: f64 = 2.0;
