//! `hg-perf held`: how long a thread waits for an engine's lock while an `async` handler pulls one piece after the other.
//!
//! | figure                   | what it is                                                                      |
//! |--------------------------|---------------------------------------------------------------------------------|
//! | `lock_wait_p99`          | 99 of 100 questions that need the lock for a moment take less                   |
//! | `lock_wait_median`       | half of them take less                                                          |
//! | `pulls_alone`            | pulls per second while nobody asks                                              |
//! | `pulls_beside_questions` | while another thread asks, beside them                                          |
//!
//! A question's time is that of the hold which it meets, and of the waking of who waited where that was long.

use std::rc::Rc;

use hg::bulk::{Bulk, Rights};

use crate::error::Error;
use crate::measure::{Caches, Op, Subject, Unit, Wait};
use crate::pair::Cores;
use crate::product::probed::Plan;
use crate::product::store::Layout;
use crate::product::target::Target;
use crate::product::{builder, pulls};
use crate::report;
use crate::stats::{Better, Summary};
use crate::turns::derived;

/// `hg-perf held`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Chooses the transport.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// Bytes of a pull.
    #[arg(long, default_value_t = 1 << 20, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    size: u64,
    /// How the side that pulls waits; the other one blocks.
    #[arg(long, value_enum, default_value = "adaptive")]
    wait: Wait,
    /// Repetitions of each figure, taken in turns.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let cores = Cores::choose()?;
    cores.pin_origin()?;
    let (url, size) = (arguments.url.as_str(), arguments.size);
    let target = Rc::new(Target::start(url, arguments.wait, cores)?);
    let engine = builder(url, Wait::Block).eager_max(0).open(url)?;
    let peer = engine.lookup(target.address())?;
    let exposed = Layout::new(size, 1, 1, Caches::Hot).expose(&engine, Rights::READ)?;
    let bulks: Vec<Bulk> = exposed.into_iter().map(|it| it.bulk).collect();
    let pulled = |asks| {
        let plan = Plan { millis: MILLIS, asks, core: cores.origin };
        target.running(|| Ok(engine.call(pulls, &peer, (bulks[0].descriptor(), plan)).wait()?))
    };
    pulled(true)?;
    let (mut waits, mut typical, mut beside, mut alone) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..arguments.repetitions {
        alone.push(pulled(false)?.rate);
        let pulled = pulled(true)?;
        beside.push(pulled.rate);
        let summary = Summary::of(&pulled.waits, Better::Smaller);
        let asked = || Error::Failed("the thread that asks has asked nothing".to_owned());
        let summary = summary.ok_or_else(asked)?;
        waits.push(summary.p99);
        typical.push(summary.median);
    }
    let subject = |name, unit| Subject {
        url: Some(url.to_owned()),
        op: Some(Op::Pull),
        size: Some(size),
        wait: Some(arguments.wait),
        ..Subject::new(name, unit)
    };
    let figure = |name, unit, values: &[f64]| derived(subject(name, unit), values.iter().copied());
    let alone = figure("pulls_alone", Unit::PerSecond, &alone);
    let beside = figure("pulls_beside_questions", Unit::PerSecond, &beside).beside(&alone);
    let waits = figure("lock_wait_p99", Unit::Microseconds, &waits);
    let typical = figure("lock_wait_median", Unit::Microseconds, &typical);
    report::print(json, &[waits, typical, alone, beside])
}

/// How long a handler pulls in one repetition.
const MILLIS: u64 = 100;
