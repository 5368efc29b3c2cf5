//! `hg-perf waits`: `Wait::Adaptive` beside the better one of `Spin` and `Block`, where cores are free and where they are not.
//!
//! | where (`op`) | who runs where                                            |
//! |--------------|-----------------------------------------------------------|
//! | `two cores`  | each side has a core                                      |
//! | `one core`   | both sides share one                                      |
//! | `busy`       | each side has a core, and a busy loop beside it           |
//!
//! A call's time is taken over a stretch of time and not over a number of calls: where both sides share a core, one that spins
//! makes a call in some turns of the system's scheduler.

use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::measure::{Measure, Subject, Unit, Wait};
use crate::pair::{self, Cores, Peer};
use crate::product::call::{Caller, Shape, WORD};
use crate::product::target::Target;
use crate::report::{self, Figure};
use crate::turns::{Place, Taken, Turns, derived};

/// `hg-perf waits`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Chooses the transport.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// Numbers of calls in flight.
    #[arg(long, value_delimiter = ',', default_value = "1,16")]
    inflight: Vec<u32>,
    /// Only this placement.
    #[arg(long, value_enum)]
    only: Option<Placed>,
    /// Repetitions of each figure, taken in turns.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
}

/// `hg-perf busy`: a loop that takes a core.
#[derive(Debug, clap::Args)]
pub(crate) struct BusyArguments {
    #[arg(long)]
    parent: u32,
    #[arg(long)]
    core: Option<usize>,
}

/// Where the two sides run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Placed {
    /// Each has a core.
    Two,
    /// They share one.
    One,
    /// Each has a core with a busy loop.
    Busy,
}

impl Placed {
    const ALL: [Placed; 3] = [Placed::Two, Placed::One, Placed::Busy];

    fn name(self) -> &'static str {
        match self {
            Placed::Two => "two_cores",
            Placed::One => "one_core",
            Placed::Busy => "busy",
        }
    }
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let cores = Cores::choose()?;
    if !cores.are_two() {
        return Err(Error::Impossible("there is one core only".to_owned()));
    }
    let placed = arguments.only.as_ref().map_or(&Placed::ALL[..], std::slice::from_ref);
    let mut figures = Vec::new();
    for &placed in placed {
        for &inflight in &arguments.inflight {
            figures.extend(arguments.measured(placed, inflight, cores)?);
        }
    }
    report::print(json, &figures)
}

impl Arguments {
    fn measured(&self, placed: Placed, inflight: u32, cores: Cores) -> Result<Vec<Figure>, Error> {
        cores.pin_origin()?;
        let together = Cores { target: cores.origin, ..cores };
        let cores = if placed == Placed::One { together } else { cores };
        let mut turns = Turns::default();
        let [spin, block, adaptive] = [Wait::Spin, Wait::Block, Wait::Adaptive].map(|wait| {
            let target = Rc::new(Target::start(&self.url, wait, cores)?);
            let shape = Shape { url: self.url.clone(), size: WORD, inflight, wait, peers: 1 };
            let caller = Caller::connect(shape, &target)?;
            let figure = format!("call_{}", placed.name());
            let place = turns.add(Stretch { caller, target, inflight, figure });
            turns.line(move |taken| taken.figure(place));
            Ok::<_, Error>(place)
        });
        let (spin, block, adaptive) = (spin?, block?, adaptive?);
        let subject = Subject {
            url: Some(self.url.clone()),
            inflight: Some(u64::from(inflight)),
            ..Subject::new(format!("adaptive_to_better_{}", placed.name()), Unit::Ratio)
        };
        turns.line(move |taken| {
            let better = better(taken, spin, block);
            derived(subject.clone(), taken.ratio(adaptive, better))
        });
        let busy = [cores.origin, cores.target];
        let busy: Result<Vec<_>, _> = match placed {
            Placed::Busy => busy.iter().map(|core| Peer::run("busy", &["busy"], *core)).collect(),
            Placed::Two | Placed::One => Ok(Vec::new()),
        };
        let busy = busy?;
        let figures = turns.take(self.repetitions);
        drop(busy);
        figures
    }
}

/// The one with the smaller median.
fn better(taken: &Taken<'_>, one: Place, other: Place) -> Place {
    let [of_one, of_other] = [one, other].map(|place| {
        let mut values = taken.values(place).to_vec();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    });
    if of_one < of_other { one } else { other }
}

/// Calls for a stretch of time.
struct Stretch {
    caller: Caller,
    target: Rc<Target>,
    inflight: u32,
    figure: String,
}

impl Measure for Stretch {
    fn subject(&self) -> Subject {
        let figure = self.figure.clone().into();
        Subject { figure, unit: Unit::Microseconds, ..self.caller.subject() }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let batch = self.inflight * WINDOWS;
        self.target.running(|| {
            self.caller.calls(batch)?;
            let (start, mut calls) = (Instant::now(), 0.0);
            while start.elapsed() < STRETCH {
                self.caller.calls(batch)?;
                calls += f64::from(batch);
            }
            Ok(start.elapsed().as_secs_f64() * 1e6 / calls)
        })
    }
}

/// Takes a core until it is killed.
pub(crate) fn busy(arguments: &BusyArguments) -> Result<(), Error> {
    let _control = pair::become_peer(arguments.parent, arguments.core)?;
    loop {
        std::hint::spin_loop();
    }
}

/// Calls of one batch, each as many as there are in flight.
const WINDOWS: u32 = 8;
/// How long one repetition takes at least.
const STRETCH: Duration = Duration::from_millis(50);
