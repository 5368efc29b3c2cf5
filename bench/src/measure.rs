//! What a measurement is, and how several are taken in turns.
//!
//! A figure and the limit beside it are only comparable when both were taken in the same seconds:
//! the two cores of a machine can be near or far, and other load comes and goes. So a measurement
//! is an object that can be asked for one more repetition at any time, and [`in_turns`] asks each
//! of them once per round.

use crate::error::Error;
use crate::progress::Progress;
use crate::stats::Summary;
pub(crate) use crate::subject::{Caches, Memory, Op, Subject, Unit, Wait};

/// A figure that can be measured again and again.
pub(crate) trait Measure {
    /// What is measured; the same in every repetition.
    fn subject(&self) -> Subject;

    /// One repetition: the mean over a batch, in the unit of [`Measure::subject`].
    fn measure(&mut self) -> Result<f64, Error>;
}

/// Takes `repetitions` of every measurement, one of each per round, after one round that only
/// warms up. The summaries come in the order of `measures`.
///
/// # Panics
/// When `repetitions` is 0: the command line does not allow it.
pub(crate) fn in_turns(
    measures: &mut [Box<dyn Measure>],
    repetitions: u32,
) -> Result<Vec<Summary>, Error> {
    let values = values_in_turns(measures, repetitions)?;
    Ok(measures.iter().zip(&values).map(|(measure, values)| summary(&**measure, values)).collect())
}

/// The same, but every single value: round `n` of all measurements was taken in the same moments.
pub(crate) fn values_in_turns(
    measures: &mut [Box<dyn Measure>],
    repetitions: u32,
) -> Result<Vec<Vec<f64>>, Error> {
    let mut values = vec![Vec::new(); measures.len()];
    let mut progress = Progress::new();
    for measure in measures.iter_mut() {
        measure.measure()?;
    }
    for done in 0..repetitions {
        progress.round(done, repetitions);
        for (measure, values) in measures.iter_mut().zip(&mut values) {
            values.push(measure.measure()?);
        }
    }
    Ok(values)
}

/// The distribution of one measurement's values.
///
/// # Panics
/// When there are none: the command line does not allow 0 repetitions.
pub(crate) fn summary(measure: &dyn Measure, values: &[f64]) -> Summary {
    Summary::of(values, measure.subject().unit.better()).expect("at least one repetition")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    struct Logged {
        name: &'static str,
        log: Rc<RefCell<Vec<&'static str>>>,
    }

    impl Measure for Logged {
        fn subject(&self) -> Subject {
            Subject::new(self.name, Unit::Microseconds)
        }

        fn measure(&mut self) -> Result<f64, Error> {
            self.log.borrow_mut().push(self.name);
            let rounds = u32::try_from(self.log.borrow().len()).expect("a few");
            Ok(f64::from(rounds))
        }
    }

    #[test]
    fn measurements_alternate_and_the_first_round_is_not_counted() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let mut measures: Vec<Box<dyn Measure>> = vec![
            Box::new(Logged { name: "a", log: log.clone() }),
            Box::new(Logged { name: "b", log: log.clone() }),
        ];
        let summaries = in_turns(&mut measures, 3).expect("nothing fails here");
        assert_eq!(*log.borrow(), ["a", "b", "a", "b", "a", "b", "a", "b"]);
        assert_eq!((summaries[0].min, summaries[0].max), (3.0, 7.0));
        assert_eq!((summaries[1].min, summaries[1].repetitions), (4.0, 3));
    }
}
