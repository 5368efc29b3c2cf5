//! `hg-perf rate`: calls, each figure measured in turns with the limit beside it.
//!
//! | how                        | further lines                                                             |
//! |----------------------------|---------------------------------------------------------------------------|
//! | one in flight, adaptive    | the spinning call, and the ratio of the two                               |
//! | an argument of other sizes | the 8-byte call, cold `memcpy` of that size, and how many such copies the |
//! |                            | argument costs                                                            |
//! | several in flight, `sm`    | `cache_line_round_trip`: where the two cores are to each other            |
//! | `--peers N`                | the call to a target with N idle peers more, and the ratio of the two     |
//! | `--cancelled N`            | the call of an origin that has cancelled N which are never answered       |
//! | `--beside N`               | the same calls with N in flight                                           |
//!
//! The limits are those of [`beside`].

use std::rc::Rc;

use crate::error::Error;
use crate::limits::beside::{self, Way};
use crate::limits::memcpy;
use crate::limits::memory::Arena;
use crate::measure::{Subject, Unit, Wait};
use crate::pair::Cores;
use crate::product::call::{Caller, Shape, WORD};
use crate::product::crowd::Crowd;
use crate::product::target::{Node, Target};
use crate::report;
use crate::turns::{Place, Turns, derived};

/// `hg-perf rate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Chooses the transport.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// Bytes of the argument; the answer has 8.
    #[arg(long, default_value_t = WORD, value_parser = size)]
    size: usize,
    /// Calls in flight.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    inflight: u32,
    /// How both sides wait.
    #[arg(long, value_enum, default_value = "spin")]
    wait: Wait,
    /// Looks a routed target up as it is, or as a process on another node would.
    #[arg(long, value_enum, default_value = "same", conflicts_with = "to")]
    node: Node,
    /// Idle peers that a second target has besides; the call to it is measured, too.
    #[arg(long, default_value_t = 0, conflicts_with = "to")]
    peers: usize,
    /// Calls that a second origin has cancelled before, and that are never answered; its calls are measured, too.
    #[arg(long, default_value_t = 0, conflicts_with = "to")]
    cancelled: usize,
    /// Calls in flight of a second origin, whose calls are measured, too.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    beside: Option<u32>,
    /// Calls a target that runs already (`hg-perf target`), instead of one of its own.
    #[arg(long, value_name = "ADDRESS")]
    to: Option<String>,
    /// Repetitions of each figure, taken in turns.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let cores = Cores::choose()?;
    cores.pin_origin()?;
    let shape = Shape {
        url: arguments.url.clone(),
        size: arguments.size,
        inflight: arguments.inflight,
        wait: arguments.wait,
        peers: 1,
    };
    let target = Rc::new(match &arguments.to {
        Some(address) => Target::at(address.clone(), arguments.wait),
        None => Target::start(&arguments.url, arguments.wait, cores)?.seen_from(arguments.node),
    });
    let mut turns = Turns::default();
    let caller = Caller::connect(shape.clone(), &target)?;
    let via = caller.via().clone();
    let limit = turns.add_boxed(beside::call(cores, via.way(), shape.wait, shape.inflight)?);
    let call = add(&mut turns, caller, limit);
    if shape.wait == Wait::Adaptive && shape.inflight == 1 {
        let spinning = Rc::new(Target::start(&shape.url, Wait::Spin, cores)?);
        let spinning = Caller::connect(Shape { wait: Wait::Spin, ..shape.clone() }, &spinning)?;
        let spinning = add(&mut turns, spinning, limit);
        turns.ratio_line("adaptive_to_spinning", call, spinning);
    }
    if shape.size != WORD && shape.inflight == 1 {
        let word = Caller::connect(Shape { size: WORD, ..shape.clone() }, &target)?;
        let word = add(&mut turns, word, limit);
        add_copies(&mut turns, shape.size, call, word);
    }
    if shape.wait == Wait::Spin && shape.inflight > 1 && via.way() == Way::SharedMemory {
        let line = turns.add_boxed(beside::call(cores, via.way(), shape.wait, 1)?);
        turns.line(move |taken| taken.figure(line));
    }
    // Kept until everything is measured.
    let mut crowd = None;
    if arguments.peers > 0 {
        let crowded = Rc::new(Target::start(&shape.url, shape.wait, cores)?);
        crowd = Some(Crowd::start(&shape.url, &crowded, arguments.peers, cores)?);
        let peers = 1 + arguments.peers as u64;
        let crowded = Caller::connect(Shape { peers, ..shape.clone() }, &crowded)?;
        let crowded = add(&mut turns, crowded, limit);
        turns.ratio_line("crowded_to_alone", crowded, call);
    }
    if arguments.cancelled > 0 {
        let other = Caller::connect(shape.clone(), &target)?;
        other.cancel(arguments.cancelled)?;
        let other = add(&mut turns, other, limit);
        turns.ratio_line("with_cancelled_to_without", other, call);
    }
    if let Some(inflight) = arguments.beside {
        let other = Caller::connect(Shape { inflight, ..shape.clone() }, &target)?;
        let other = add(&mut turns, other, limit);
        turns.ratio_line("call_to_other_in_flight", call, other);
    }
    turns.ratio_line("call_to_limit", call, limit);
    let figures = turns.take(arguments.repetitions)?;
    drop(crowd);
    report::print(json, &figures)
}

/// Of an argument: no longer than one may be.
fn size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(size) if size <= SIZE_MAX => Ok(size),
        _ => {
            Err(format!("it is no number from 0 to {SIZE_MAX}, the default of Builder::large_max"))
        }
    }
}

/// A call and its line.
fn add(turns: &mut Turns, caller: Caller, limit: Place) -> Place {
    let call = turns.add(caller);
    turns.line(move |taken| taken.beside(call, limit));
    call
}

/// The cold copy of the argument, and how many of them a call with it costs above one without.
fn add_copies(turns: &mut Turns, size: usize, call: Place, word: Place) {
    let copy = turns.add(memcpy::Copy::cold(size, &Arena::cold(), &Arena::cold()));
    turns.line(move |taken| taken.figure(copy));
    turns.line(move |taken| {
        let us = |rate: &f64| size as f64 / f64::from(1 << 20) / rate * 1e6;
        let calls = taken.values(call).iter().zip(taken.values(word));
        let copies = calls.map(|(call, word)| call - word).zip(taken.values(copy));
        let subject = Subject::new("copies_per_argument", Unit::Copies);
        let subject = Subject { size: Some(size as u64), ..subject };
        derived(subject, copies.map(|(more, rate)| more / us(rate)))
    });
}

/// The longest argument that a target takes, less its head.
const SIZE_MAX: usize = (1 << 30) - 64;
