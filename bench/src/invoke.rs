//! `hg-perf invoke`: calls between workers, one way, from one process or thread to another.
//!
//! | figure            | what it is                                                                                  | beside it       |
//! |-------------------|---------------------------------------------------------------------------------------------|-----------------|
//! | `cache_line_round_trip` | whether the two cores are near or far, which decides what is promised                 |                 |
//! | `block_stream`    | messages of 4 KiB a second on a bare context over `sm://`, one way                          | `ring_rate`     |
//! | `invoke_trad`     | calls a second, packed into blocks of 4 KiB                                                 | `ring_rate`     |
//! | `invoke_blocks`   | the same with arguments that fill a block each                                              | `block_stream`  |
//! | `calls_to_blocks` | the bytes of packed calls in proportion to those of `block_stream`                          |                 |
//! | `invoke_plain`    | a message each, always                                                                      | `ring_rate`     |
//! | `invoke_ovfl`     | a message each while the transport takes them                                               | `invoke_plain`  |
//! | `invoke_thread`   | packed calls to another thread of the same process                                          | `ring_rate`     |
//! | `invoke_notified` | the time of one call until its caller knows that it has run; both sides spin                | the 8-byte RPC  |
//!
//! What has another limit beside it, or none, says by `ring_ratio` how many calls there are in proportion to `ring_rate`.
//!
//! Where there is no room, a call comes back and is made again after some progress: both sides spin. A rate ends when the last call is known to have run, and counts
//! only if all have. Arguments of 8 bytes are a number, longer ones bytes and their length.

mod bare;
mod stepped;
mod workers;

use std::rc::Rc;

use crate::error::Error;
use crate::limits::{cache_line, ring};
use crate::measure::{Measure, Subject, Unit, Wait};
use crate::pair::Cores;
use crate::product::call::{Caller, Shape, WORD};
use crate::product::target::Target;
use crate::report::{self, Figure};
use crate::turns::{Place, Taken, Turns, derived};
pub(crate) use bare::serve as serve_blocks;
pub(crate) use stepped::step;
use workers::Workers;
pub(crate) use workers::{InvokedArguments, Packed, serve};

/// `hg-perf invoke`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Transport of the figures that are not of one process; those over TCP are measured besides.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// Bytes of the arguments of packed calls: 8 is measured in any case.
    #[arg(long, value_delimiter = ',', default_value = "64,256", value_parser = clap::value_parser!(u64).range(16..=4080))]
    sizes: Vec<u64>,
    /// Leaves TCP out.
    #[arg(long)]
    no_tcp: bool,
    /// Repetitions of each figure, taken in turns.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let cores = Cores::choose()?;
    cores.pin_origin()?;
    let url = &arguments.url;
    let mut turns = Turns::default();
    let line = turns.add(cache_line::Pair::start(cores, cache_line::Payload::Word)?);
    turns.line(move |taken| taken.figure(line));
    let ring = turns.add(ring::Pair::start(cores, INFLIGHT)?);
    let stream = turns.add(bare::Stream::start(cores)?);
    turns.line(move |taken| taken.beside(stream, ring));
    let packed = Rc::new(Workers::of_processes(url, Packed::Trad, cores)?);
    add(&mut turns, ring, Rate::new("invoke_trad", url, &packed, WORD as u64));
    let blocks = turns.add(Rate::new("invoke_blocks", url, &packed, BLOCK));
    for &size in &arguments.sizes {
        let calls = add(&mut turns, ring, Rate::new("invoke_trad", url, &packed, size));
        turns.line(move |taken| {
            let share = (size + RECORD) as f64 / 4096.0;
            let subject = Subject::new("calls_to_blocks", Unit::Ratio);
            let subject = Subject { size: Some(size), ..subject };
            let ratios = taken.ratio(calls, stream).map(|ratio| ratio * share);
            in_rings(derived(subject, ratios), taken, (calls, ring))
        });
    }
    turns.line(move |taken| in_rings(taken.beside(blocks, stream), taken, (blocks, ring)));
    let plain = Rc::new(Workers::of_processes(url, Packed::Plain, cores)?);
    let plain = add(&mut turns, ring, Rate::new("invoke_plain", url, &plain, WORD as u64));
    let ovfl = Rc::new(Workers::of_processes(url, Packed::Ovfl, cores)?);
    let ovfl = turns.add(Rate::new("invoke_ovfl", url, &ovfl, WORD as u64));
    turns.line(move |taken| in_rings(taken.beside(ovfl, plain), taken, (ovfl, ring)));
    let threads = Rc::new(Workers::of_threads(cores)?);
    add(&mut turns, ring, Rate::new("invoke_thread", url, &threads, WORD as u64));
    if !arguments.no_tcp {
        let tcp = Rc::new(Workers::of_processes(TCP, Packed::Trad, cores)?);
        add(&mut turns, ring, Rate::new("invoke_trad", TCP, &tcp, WORD as u64));
    }
    let target = Rc::new(Target::start(url, Wait::Spin, cores)?);
    let shape = Shape { url: url.clone(), size: WORD, inflight: 1, wait: Wait::Spin, peers: 1 };
    let call = turns.add(Caller::connect(shape, &target)?);
    turns.line(move |taken| taken.figure(call));
    let notified = turns.add(Notified { url: url.clone(), workers: packed });
    turns.line(move |taken| {
        // One after the other: as many a second as its time goes into one.
        let a_second = taken.values(notified).iter().map(|us| 1e6 / us);
        let ratios = a_second.zip(taken.values(ring)).map(|(calls, ring)| calls / ring);
        taken.beside(notified, call).in_rings(median(ratios))
    });
    report::print(json, &turns.take(arguments.repetitions)?)
}

/// A rate and its line.
fn add(turns: &mut Turns, limit: Place, rate: Rate) -> Place {
    let rate = turns.add(rate);
    turns.line(move |taken| taken.beside(rate, limit));
    rate
}

/// How often a rate is that of bare rings, beside its own limit.
fn in_rings(figure: Figure, taken: &Taken<'_>, (calls, ring): (Place, Place)) -> Figure {
    figure.in_rings(median(taken.ratio(calls, ring)))
}

fn median(ratios: impl Iterator<Item = f64>) -> f64 {
    derived(Subject::new("ring_ratio", Unit::Ratio), ratios).median()
}

/// Calls a second.
struct Rate {
    subject: Subject,
    workers: Rc<Workers>,
    size: u64,
    calls: u64,
}

impl Rate {
    fn new(figure: &'static str, url: &str, workers: &Rc<Workers>, size: u64) -> Self {
        let subject = Subject::new(figure, Unit::PerSecond);
        let subject = Subject { url: Some(url.to_owned()), size: Some(size), ..subject };
        // Packed or not, a repetition is some milliseconds long.
        let calls = if figure == "invoke_trad" || figure == "invoke_thread" { MANY } else { SOME };
        let calls = calls / (size / 32).max(1);
        Self { subject, workers: Rc::clone(workers), size, calls }
    }
}

impl Measure for Rate {
    fn subject(&self) -> Subject {
        self.subject.clone()
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let time = self.workers.calls(self.size, self.calls)?;
        Ok(self.calls as f64 / time.as_secs_f64())
    }
}

/// One call after the other, each known to have run.
struct Notified {
    url: String,
    workers: Rc<Workers>,
}

impl Measure for Notified {
    fn subject(&self) -> Subject {
        let subject = Subject::round_trip("invoke_notified", WORD as u64, Wait::Spin);
        Subject { url: Some(self.url.clone()), ..subject }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let time = self.workers.notified_calls(NOTIFIED)?;
        Ok(time.as_secs_f64() * 1e6 / NOTIFIED as f64)
    }
}

/// Requests in flight of `ring_rate`.
const INFLIGHT: u32 = 16;
const TCP: &str = "tcp://127.0.0.1";
/// What a call costs beside its arguments, and the arguments that fill a block of the usual size: 4 KiB, less its head.
const RECORD: u64 = 8;
const BLOCK: u64 = 4096 - 8 - RECORD;
/// Calls of one repetition; of a build that is not optimised no figure means anything, and few do.
const MANY: u64 = if cfg!(debug_assertions) { 4_000 } else { 400_000 };
const SOME: u64 = MANY / 4;
const NOTIFIED: u64 = MANY / 100;
