//! `hg-perf hung`: a call of one client alone, and beside peers that have stopped taking anything.
//!
//! | figure          | what it is                                                               |
//! |-----------------|--------------------------------------------------------------------------|
//! | `call`          | the 8-byte call of a client with one peer, and of one with hung ones too |
//! | `hung_to_alone` | the second in proportion to the first                                    |
//!
//! The hung peers are contexts of this process of which nobody makes progress after their first call: what a stopped process
//! looks like to its peers. Each is sent more one-way calls than the transport takes, so that messages wait for all of them. With
//! `--clients` they have stopped in the middle of their calls to the same target, which has answers for all of them; the client itself
//! knows nothing of them.

use std::io::{self, Write};
use std::rc::Rc;
use std::time::Duration;

use crate::error::Error;
use crate::measure::Wait;
use crate::pair::Cores;
use crate::product::call::{Caller, Shape, WORD, check};
use crate::product::target::{Target, raise_descriptor_limit};
use crate::product::{builder, echo};
use crate::report;
use crate::turns::Turns;

/// `hg-perf hung`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Chooses the transport.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// Peers that have stopped.
    #[arg(long, default_value_t = 200)]
    peers: usize,
    /// They are the target's clients.
    #[arg(long)]
    clients: bool,
    /// Repetitions of each figure, taken in turns.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let cores = Cores::choose()?;
    cores.pin_origin()?;
    raise_descriptor_limit()?;
    let (url, wait) = (arguments.url.clone(), Wait::Spin);
    let target = Rc::new(Target::start(&url, wait, cores)?);
    let alone = Shape { url, size: WORD, inflight: 1, wait, peers: 1 };
    let beside = Shape { peers: 1 + arguments.peers as u64, ..alone.clone() };
    let mut turns = Turns::default();
    let alone = turns.add(Caller::connect(alone, &target)?);
    // Kept until everything is measured.
    let _hung;
    let beside = if arguments.clients {
        let crowded = Rc::new(Target::start(&arguments.url, wait, cores)?);
        _hung = crowded.running(|| hang_clients(&arguments.url, arguments.peers, &crowded))?;
        turns.add(Caller::connect(Shape { peers: 1, ..beside }, &crowded)?)
    } else {
        let engine = builder(&arguments.url, wait).progress(hg::Progress::Own).calls_max(CALLS_MAX);
        let engine = engine.open(&arguments.url)?;
        _hung = (hang(&arguments.url, arguments.peers, &engine)?, Vec::new());
        turns.add(Caller::over(engine, beside, &target)?)
    };
    // Figures come at the end alone: whoever ends this by a signal before is to see how far it was.
    let (peers, repetitions) = (arguments.peers, arguments.repetitions);
    let _ = writeln!(io::stderr(), "hg-perf: {peers} hang; {repetitions} repetitions of 2 figures");
    for call in [alone, beside] {
        turns.line(move |taken| taken.figure(call));
    }
    turns.ratio_line("hung_to_alone", beside, alone);
    report::print(json, &turns.take(arguments.repetitions)?)
}

/// Peers of an engine that have answered one call, and take nothing any more, although it has more for them than there is
/// room for.
fn hang(url: &str, peers: usize, origin: &hg::Engine) -> Result<Vec<hg::Engine>, Error> {
    let mut engines = Vec::new();
    let mut left = peers;
    while left > 0 {
        let contexts = left.min(CONTEXTS);
        let builder = builder(url, Wait::Spin).progress(hg::Progress::Own).listen(true);
        let engine = builder.contexts(contexts).open(url)?;
        engine.register(echo)?;
        for index in 0..contexts {
            let context = engine.context(index).expect("as many contexts as were asked for");
            let peer = origin.lookup(context.address())?;
            let mut call = origin.call(echo, &peer, (1,));
            let answer = loop {
                origin.progress(Duration::ZERO);
                context.progress(Duration::ZERO);
                if let Some(answer) = call.try_wait() {
                    break answer?;
                }
            };
            check(1, answer)?;
            for value in 0..TOO_MANY {
                drop(origin.notify(echo, &peer, (value,)));
            }
        }
        engines.push(engine);
        left -= contexts;
    }
    Ok(engines)
}

/// What hangs: engines, and their calls.
type Hung = (Vec<hg::Engine>, Vec<hg::OwnedCall<echo>>);

/// Clients of a target that have had one call answered, and take no answer any more of the many that they have asked for.
fn hang_clients(url: &str, clients: usize, target: &Target) -> Result<Hung, Error> {
    let (mut engines, mut calls) = (Vec::new(), Vec::new());
    while engines.len() * CONTEXTS < clients {
        let contexts = CONTEXTS.min(clients - engines.len() * CONTEXTS);
        let builder = builder(url, Wait::Spin).progress(hg::Progress::Own);
        let engine = builder.contexts(contexts).open(url)?;
        for index in 0..contexts {
            let context = engine.context(index).expect("as many contexts as were asked for");
            let peer = context.lookup(&hg::Address::new(target.address())?)?;
            check(1, context.call(echo, &peer, (1,)).wait()?)?;
            calls.extend((0..TOO_MANY).map(|value| context.call_owned(echo, &peer, (value,))));
            context.progress(Duration::ZERO);
        }
        engines.push(engine);
    }
    Ok((engines, calls))
}

/// Contexts of one engine.
const CONTEXTS: usize = 50;

/// Short messages, more than a transport takes for one peer that takes none.
const TOO_MANY: u64 = 1500;

/// More than wait for all peers.
const CALLS_MAX: usize = 1 << 20;
