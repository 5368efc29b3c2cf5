//! Measurements taken in turns, and the lines that are printed of them.

use crate::error::Error;
use crate::measure::{self, Measure, Subject, Unit};
use crate::report::Figure;
use crate::stats::Summary;

/// Everything that is measured in turns, and what is printed of it.
#[derive(Default)]
pub(crate) struct Turns {
    measures: Vec<Box<dyn Measure>>,
    lines: Vec<Line>,
}

/// Makes a printed line of what was measured.
type Line = Box<dyn Fn(&Taken<'_>) -> Figure>;

/// One of the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place(usize);

impl Turns {
    /// Measures one more thing.
    pub(crate) fn add(&mut self, measure: impl Measure + 'static) -> Place {
        self.add_boxed(Box::new(measure))
    }

    /// The same.
    pub(crate) fn add_boxed(&mut self, measure: Box<dyn Measure>) -> Place {
        self.measures.push(measure);
        Place(self.measures.len() - 1)
    }

    /// Prints one more line.
    pub(crate) fn line(&mut self, line: impl Fn(&Taken<'_>) -> Figure + 'static) {
        self.lines.push(Box::new(line));
    }

    /// Prints how one measurement compares to another, round by round.
    pub(crate) fn ratio_line(&mut self, figure: &'static str, of: Place, to: Place) {
        self.line(move |taken| derived(Subject::new(figure, Unit::Ratio), taken.ratio(of, to)));
    }

    /// Measures, and makes the lines in the order in which they were asked for.
    pub(crate) fn take(mut self, repetitions: u32) -> Result<Vec<Figure>, Error> {
        let values = measure::values_in_turns(&mut self.measures, repetitions)?;
        let taken = Taken { measures: &self.measures, values: &values };
        Ok(self.lines.iter().map(|line| line(&taken)).collect())
    }
}

/// What was measured.
pub(crate) struct Taken<'t> {
    measures: &'t [Box<dyn Measure>],
    values: &'t [Vec<f64>],
}

impl Taken<'_> {
    /// What a measurement is about.
    pub(crate) fn subject(&self, place: Place) -> Subject {
        self.measures[place.0].subject()
    }

    /// Every repetition of a measurement: one a round.
    pub(crate) fn values(&self, place: Place) -> &[f64] {
        &self.values[place.0]
    }

    /// The figure of a measurement.
    pub(crate) fn figure(&self, place: Place) -> Figure {
        derived(self.subject(place), self.values(place).iter().copied())
    }

    /// The figure of a measurement with the limit beside it.
    pub(crate) fn beside(&self, place: Place, limit: Place) -> Figure {
        self.figure(place).beside(&self.figure(limit))
    }

    /// One measurement in proportion to another, round by round.
    pub(crate) fn ratio(&self, of: Place, to: Place) -> impl Iterator<Item = f64> {
        self.values(of).iter().zip(self.values(to)).map(|(of, to)| of / to)
    }
}

/// A figure computed from others, round by round, so that it is of the same moments.
///
/// # Panics
/// When there is no round: the command line does not allow 0 repetitions.
pub(crate) fn derived(subject: Subject, values: impl Iterator<Item = f64>) -> Figure {
    let values: Vec<f64> = values.collect();
    let better = subject.unit.better();
    Figure::new(subject, Summary::of(&values, better).expect("at least one repetition"))
}
