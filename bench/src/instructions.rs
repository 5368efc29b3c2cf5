//! `hg-perf instructions`: instructions of one 8-byte call, per side, counted by callgrind.
//!
//! Both engines live in one process and are stepped by hand on one thread, over the transport's
//! real memory: call, one round of the target's, then the origin's `wait`, which finds the answer in
//! its first round. So nobody polls in vain and the count is the same in every run. Two runs of
//! different length are counted; the difference holds neither the start nor the end.
//!
//! The same call with a deadline, one to an `async fn` that ends at once, and one between workers of `invoke` whose caller is told when it
//! has run, are counted in the same runs and stand beside the plain one.
//! `--beside PROGRAM` holds the plain call against that of another build of this program. So `tracing`, which is always compiled in
//! and has no subscriber here, is held against a build without it:
//! `cargo build --release -p bench --features tracing/max_level_off --target-dir target/untraced`.
//!
//! Over a network a message leaves with the next round, and is looked for after some that found nothing: there, both
//! sides have their rounds in turns until the answer is there, as many for each call. The kernel's work is not counted.

use std::collections::VecDeque;
use std::hint::black_box;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Context, Error};
use crate::invoke;
use crate::measure::{Subject, Unit, Wait};
use crate::product::{builder, call, echo, echo_async};
use crate::report::{self, Figure};
use crate::stats::{Better, Summary};
use crate::tools::{
    self,
    callgrind::{Callgrind, Profile},
};

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
    /// How the calls are made.
    #[arg(long, value_enum)]
    how: Option<How>,
    /// Another build of this program, whose plain calls are counted in turns with this one's.
    #[arg(long, value_name = "PROGRAM")]
    beside: Option<PathBuf>,
    /// Prints the functions and lines that the instructions are spent in.
    #[arg(long)]
    profile: bool,
}

/// How a call is made or served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum How {
    /// Without more ado.
    Plain,
    /// It has a deadline, which is far away.
    Deadline,
    /// Its handler is an `async fn` that ends at once.
    Async,
    /// It is one of `invoke`'s, and its caller is told when it has run.
    Notified,
}

impl How {
    const ALL: [How; 4] = [How::Plain, How::Deadline, How::Async, How::Notified];

    /// As the command line has it.
    fn word(self) -> &'static str {
        match self {
            How::Plain => "plain",
            How::Deadline => "deadline",
            How::Async => "async",
            How::Notified => "notified",
        }
    }

    /// The name of its figure.
    fn figure(self) -> &'static str {
        match self {
            How::Plain => "instructions_per_call_and_side",
            How::Deadline => "instructions_with_deadline",
            How::Async => "instructions_to_async_fn",
            How::Notified => "instructions_notified",
        }
    }
}

/// `hg-perf step`: what is counted.
#[derive(Debug, clap::Args)]
pub(crate) struct StepArguments {
    #[arg(long)]
    url: String,
    #[arg(long)]
    inflight: u32,
    #[arg(long, value_enum, default_value = "plain")]
    how: How,
    #[arg(long)]
    calls: u32,
}

/// Counts and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let kinds = arguments.how.as_ref().map_or(&How::ALL[..], std::slice::from_ref);
    let own = tools::this()?;
    let mut counted: Vec<_> = kinds.iter().map(|&how| (own.as_path(), how, Vec::new())).collect();
    counted.extend(arguments.beside.iter().map(|other| (other.as_path(), How::Plain, Vec::new())));
    for _ in 0..arguments.repetitions {
        for (program, how, values) in &mut counted {
            values.push(arguments.per_call_and_side(program, *how)?);
        }
    }
    let subject = |name| Subject {
        url: Some(arguments.url.clone()),
        size: Some(8),
        inflight: Some(u64::from(arguments.inflight)),
        ..Subject::new(name, Unit::Instructions)
    };
    let figure = |name, values: &[f64]| {
        let summary = Summary::of(values, Better::Smaller).expect("at least one repetition");
        Figure::new(subject(name), summary)
    };
    let mut figures: Vec<_> =
        counted.iter().map(|(_, how, values)| figure(how.figure(), values)).collect();
    if arguments.beside.is_some()
        && let Some((_, _, values)) = counted.pop()
    {
        let other = figure("instructions_of_other_build", &values);
        figures.pop();
        figures[0] = figures[0].clone().beside(&other);
    }
    if let [plain, others @ ..] = &mut figures[..] {
        others.iter_mut().for_each(|figure| *figure = figure.clone().beside(plain));
    }
    report::print(json, &figures)?;
    if arguments.profile {
        let (how, calls) = (kinds[0], arguments.whole_batches());
        let (inside, others) = if how == How::Notified {
            ("*invoke*counted*", 0)
        } else {
            ("*instructions*stepped*", WARM_UP.next_multiple_of(arguments.inflight))
        };
        let profile = arguments.count(&own, how, calls, Some(inside))?.profile()?;
        print_profile(&profile, f64::from(calls + others) * SIDES)?;
    }
    Ok(())
}

impl Arguments {
    fn whole_batches(&self) -> u32 {
        self.calls.next_multiple_of(self.inflight)
    }

    /// Runs `hg-perf step`, of this build or another one.
    fn count(
        &self,
        program: &Path,
        how: How,
        calls: u32,
        inside: Option<&str>,
    ) -> Result<Callgrind, Error> {
        let (inflight, calls) = (self.inflight.to_string(), calls.to_string());
        let mut step = vec!["step", "--url", &self.url, "--inflight", &inflight];
        step.extend(["--calls", &calls]);
        // An older build knows plain calls only.
        if how != How::Plain {
            step.extend(["--how", how.word()]);
        }
        Callgrind::run(program, &step, inside)
    }

    fn per_call_and_side(&self, program: &Path, how: How) -> Result<f64, Error> {
        let calls = self.whole_batches();
        let total = |calls| self.count(program, how, calls, None)?.total();
        Ok((total(2 * calls)? - total(calls)?) / f64::from(calls) / SIDES)
    }
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

/// The calls, with both sides in this process.
pub(crate) fn step(arguments: &StepArguments) -> Result<(), Error> {
    let StepArguments { url, inflight, calls, how } = arguments;
    if *how == How::Notified {
        return invoke::step(url, *inflight, *calls, WARM_UP);
    }
    let own = || builder(url, Wait::Spin).progress(hg::Progress::Own);
    let target = own().listen(true).open(url)?;
    if *how == How::Async {
        target.register(echo_async)?;
    } else {
        target.register(echo)?;
    }
    let origin = own().open(url)?;
    let peer = origin.lookup(target.address())?;
    let pair = (&target, &origin, &peer);
    if *how == How::Deadline {
        let options = hg::CallOptions::within(DEADLINE);
        return steps(arguments, pair, |value| origin.call_with(echo, &peer, (value,), options));
    }
    steps(arguments, pair, |value| origin.call(echo, &peer, (value,)))
}

#[inline(always)]
fn steps<'e>(
    arguments: &StepArguments,
    (target, origin, peer): (&hg::Engine, &'e hg::Engine, &hg::Peer),
    call: impl Fn(u64) -> hg::Call<'e, echo>,
) -> Result<(), Error> {
    // Called from one place, a call is a part of the loop, as it is in a program: the first ones are not counted apart.
    let calls = WARM_UP.next_multiple_of(arguments.inflight) + arguments.calls;
    let in_turns = |value| in_turns(target, origin, call(value), value);
    in_turns(0)?;
    if origin.way_of(peer) != "sm" {
        if arguments.inflight > 1 {
            let why = "over a network, calls are counted one by one: --inflight 1";
            return Err(Error::Impossible(why.to_owned()));
        }
        return stepped(calls, in_turns);
    }
    if arguments.inflight > 1 {
        return stepped_batches(target, call, arguments.inflight, calls);
    }
    stepped(calls, |value| stepped_once(target, &call, value))
}

/// A call that takes many rounds on both sides: the first one to a peer, and every one over a network.
fn in_turns(
    target: &hg::Engine,
    origin: &hg::Engine,
    mut open: hg::Call<'_, echo>,
    value: u64,
) -> Result<(), Error> {
    loop {
        origin.progress(Duration::ZERO);
        target.progress(Duration::ZERO);
        if let Some(answer) = open.try_wait() {
            return call::check(value, answer?);
        }
    }
}

/// What the profile is of.
#[inline(never)]
fn stepped(calls: u32, one: impl Fn(u64) -> Result<(), Error>) -> Result<(), Error> {
    (0..calls).try_for_each(|number| one(black_box(u64::from(number))))
}

#[inline(always)]
fn stepped_once<'e>(
    target: &hg::Engine,
    call: impl Fn(u64) -> hg::Call<'e, echo>,
    value: u64,
) -> Result<(), Error> {
    let call = call(value);
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
fn stepped_batches<'e>(
    target: &hg::Engine,
    call: impl Fn(u64) -> hg::Call<'e, echo>,
    inflight: u32,
    calls: u32,
) -> Result<(), Error> {
    let mut open = VecDeque::new();
    for _ in 0..calls / inflight {
        for number in 0..inflight {
            open.push_back(call(black_box(u64::from(number))));
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

/// Calls before those that make the difference.
const WARM_UP: u32 = 1_000;

/// Of the calls that have one.
const DEADLINE: Duration = Duration::from_secs(3600);

/// A call has two sides.
const SIDES: f64 = 2.0;
