//! `hg-perf rate`: calls, each figure measured in turns with the limit beside it.
//!
//! | how                        | further lines                                                             |
//! |----------------------------|---------------------------------------------------------------------------|
//! | one in flight, adaptive    | the spinning call, and the ratio of the two                               |
//! | an argument of other sizes | the 8-byte call, cold `memcpy` of that size, and how many such copies the |
//! |                            | argument costs                                                            |
//! | `--peers N`                | the call to a target with N idle peers more, and the ratio of the two     |
//!
//! The limits are those of [`beside`].

use std::rc::Rc;

use crate::error::Error;
use crate::limits::beside::{self, Way};
use crate::limits::memcpy;
use crate::limits::memory::Arena;
use crate::measure::{self, Measure, Subject, Unit, Wait};
use crate::pair::Cores;
use crate::product::call::{Caller, Shape, WORD};
use crate::product::crowd::Crowd;
use crate::product::target::Target;
use crate::report::{self, Figure};
use crate::stats::Summary;

/// `hg-perf rate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Chooses the transport.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// Bytes of the argument; the answer has 8.
    #[arg(long, default_value_t = WORD)]
    size: usize,
    /// Calls in flight.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    inflight: u32,
    /// How both sides wait.
    #[arg(long, value_enum, default_value = "spin")]
    wait: Wait,
    /// Idle peers that a second target has besides; the call to it is measured, too.
    #[arg(long, default_value_t = 0, conflicts_with = "to")]
    peers: usize,
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
        None => Target::start(&arguments.url, arguments.wait, cores)?,
    });
    let mut run = Run { cores, measures: Vec::new(), lines: Vec::new() };
    let limit = run.add_limit(&shape)?;
    let call = run.add_call(shape.clone(), &target, limit)?;
    if shape.wait == Wait::Adaptive && shape.inflight == 1 {
        let spinning = Rc::new(Target::start(&shape.url, Wait::Spin, cores)?);
        let reference =
            run.add_call(Shape { wait: Wait::Spin, ..shape.clone() }, &spinning, limit)?;
        run.lines.push(Line::Ratio { figure: "adaptive_to_spinning", of: call, to: reference });
    }
    if shape.size != WORD && shape.inflight == 1 {
        let word = run.add_call(Shape { size: WORD, ..shape.clone() }, &target, limit)?;
        let copy = memcpy::Copy::cold(shape.size, &Arena::cold(), &Arena::cold());
        let copy = run.add(Box::new(copy));
        run.lines.push(Line::Plain(copy));
        run.lines.push(Line::Copies { size: shape.size, of: call, above: word, copy });
    }
    // Kept until everything is measured.
    let mut crowd = None;
    if arguments.peers > 0 {
        let crowded = Rc::new(Target::start(&shape.url, shape.wait, cores)?);
        crowd = Some(Crowd::start(&shape.url, &crowded, arguments.peers, cores)?);
        let peers = 1 + arguments.peers as u64;
        let crowded = run.add_call(Shape { peers, ..shape.clone() }, &crowded, limit)?;
        run.lines.push(Line::Ratio { figure: "crowded_to_alone", of: crowded, to: call });
    }
    let figures = run.measure(arguments.repetitions)?;
    drop(crowd);
    report::print(json, &figures)
}

/// Everything that is measured in turns, and what is printed of it.
struct Run {
    cores: Cores,
    measures: Vec<Box<dyn Measure>>,
    lines: Vec<Line>,
}

/// One printed line; numbers are places in [`Run::measures`].
enum Line {
    Plain(usize),
    Beside { call: usize, limit: usize },
    Ratio { figure: &'static str, of: usize, to: usize },
    Copies { size: usize, of: usize, above: usize, copy: usize },
}

impl Run {
    fn add(&mut self, measure: Box<dyn Measure>) -> usize {
        self.measures.push(measure);
        self.measures.len() - 1
    }

    fn add_limit(&mut self, shape: &Shape) -> Result<usize, Error> {
        let way = Way::of(shape.scheme());
        Ok(self.add(beside::call(self.cores, way, shape.wait, shape.inflight)?))
    }

    /// A call and its line.
    fn add_call(
        &mut self,
        shape: Shape,
        target: &Rc<Target>,
        limit: usize,
    ) -> Result<usize, Error> {
        let call = self.add(Box::new(Caller::connect(shape, target)?));
        self.lines.push(Line::Beside { call, limit });
        Ok(call)
    }

    fn measure(mut self, repetitions: u32) -> Result<Vec<Figure>, Error> {
        let values = measure::values_in_turns(&mut self.measures, repetitions)?;
        let figure = |n: usize| {
            let measure = &*self.measures[n];
            Figure::new(measure.subject(), measure::summary(measure, &values[n]))
        };
        let figures = self.lines.iter().map(|line| match *line {
            Line::Plain(n) => figure(n),
            Line::Beside { call, limit } => figure(call).beside(&figure(limit)),
            Line::Ratio { figure, of, to } => {
                let ratios = values[of].iter().zip(&values[to]).map(|(of, to)| of / to);
                derived(Subject::new(figure, Unit::Ratio), ratios)
            }
            Line::Copies { size, of, above, copy } => {
                let us = |rate: &f64| size as f64 / f64::from(1 << 20) / rate * 1e6;
                let above = values[of].iter().zip(&values[above]).map(|(of, above)| of - above);
                let copies = above.zip(&values[copy]).map(|(more, rate)| more / us(rate));
                let subject = Subject::new("copies_per_argument", Unit::Copies);
                derived(Subject { size: Some(size as u64), ..subject }, copies)
            }
        });
        Ok(figures.collect())
    }
}

/// A figure computed from others, round by round, so that it is of the same moments.
fn derived(subject: Subject, values: impl Iterator<Item = f64>) -> Figure {
    let values: Vec<f64> = values.collect();
    let better = subject.unit.better();
    Figure::new(subject, Summary::of(&values, better).expect("at least one repetition"))
}
