//! `hg-perf first`: what the first call to a new peer costs, and the second.
//!
//! | figure        | what it is                                                                         |
//! |---------------|------------------------------------------------------------------------------------|
//! | `first_call`  | an origin that knows nobody: lookup, connection, handshake, the first answer       |
//! | `second_call` | the call right after it, beside the limit of a call                                |
//!
//! The target has another peer all the time, whose call just before shows that it is awake and through
//! with the last new one.

use std::time::Instant;

use crate::error::Error;
use crate::limits::beside;
use crate::measure::{Subject, Unit, Wait};
use crate::pair::Cores;
use crate::product::call::{Shape, WORD};
use crate::product::target::Target;
use crate::product::{Via, call_once, origin};
use crate::report::{self, Figure};
use crate::stats::Summary;

/// `hg-perf first`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Chooses the transport.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// How both sides wait.
    #[arg(long, value_enum, default_value = "adaptive")]
    wait: Wait,
    /// New peers, one after the other.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let cores = Cores::choose()?;
    cores.pin_origin()?;
    let (url, wait) = (arguments.url.clone(), arguments.wait);
    let shape = Shape { url: url.clone(), size: WORD, inflight: 1, wait, peers: 1 };
    let target = Target::start(&url, wait, cores)?;
    let keeper = origin(&url, wait)?;
    let kept = keeper.lookup(target.address())?;
    target.running(|| call_once(&keeper, &kept, 0))?;
    let via = Via::of(&keeper, &kept, &url);
    let mut limit = beside::call(cores, via.way(), wait, 1)?;
    let (mut firsts, mut seconds, mut limits) = (Vec::new(), Vec::new(), Vec::new());
    // The first new peer only warms up.
    for repetition in 0..=arguments.repetitions {
        let bare = limit.measure()?;
        let (first, second) = target.running(|| {
            call_once(&keeper, &kept, 0)?;
            new_peer(&shape, &target)
        })?;
        if repetition > 0 {
            firsts.push(first);
            seconds.push(second);
            limits.push(bare);
        }
    }
    let figure = |name, values: &[f64]| {
        let (url, via) = (Some(url.clone()), via.key());
        let subject = Subject { url, via, ..Subject::round_trip(name, WORD as u64, wait) };
        Figure::new(subject, summary(values))
    };
    let bare = Figure::new(limit.subject(), summary(&limits));
    report::print(
        json,
        &[figure("first_call", &firsts), figure("second_call", &seconds).beside(&bare)],
    )
}

/// Microseconds of the first and of the second call of an origin of its own.
fn new_peer(shape: &Shape, target: &Target) -> Result<(f64, f64), Error> {
    let engine = origin(&shape.url, shape.wait)?;
    let start = Instant::now();
    let peer = engine.lookup(target.address())?;
    call_once(&engine, &peer, 1)?;
    let first = start.elapsed();
    call_once(&engine, &peer, 2)?;
    let second = start.elapsed() - first;
    Ok((first.as_secs_f64() * 1e6, second.as_secs_f64() * 1e6))
}

fn summary(values: &[f64]) -> Summary {
    Summary::of(values, Unit::Microseconds.better()).expect("at least one repetition")
}
