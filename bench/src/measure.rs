//! What a measurement is, and how several are taken in turns.
//!
//! A figure and the limit beside it are only comparable when both were taken in the same seconds:
//! the two cores of a machine can be near or far, and other load comes and goes. So a measurement
//! is an object that can be asked for one more repetition at any time, and [`in_turns`] asks each
//! of them once per round.

use std::borrow::Cow;

use crate::error::Error;
use crate::stats::{Better, Summary};

/// A figure that can be measured again and again.
pub(crate) trait Measure {
    /// What is measured; the same in every repetition.
    fn subject(&self) -> Subject;

    /// One repetition: the mean over a batch, in the unit of [`Measure::subject`].
    fn measure(&mut self) -> Result<f64, Error>;
}

/// What a figure is about: the columns left of the numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subject {
    /// Name of the figure.
    pub(crate) figure: Cow<'static, str>,
    /// URL of the target, where there is one.
    pub(crate) url: Option<String>,
    /// Bytes moved.
    pub(crate) size: Option<u64>,
    /// Requests in flight.
    pub(crate) inflight: Option<u64>,
    /// How both sides wait.
    pub(crate) wait: Option<Wait>,
    /// Peers connected.
    pub(crate) peers: Option<u64>,
    /// What the numbers count.
    pub(crate) unit: Unit,
}

impl Subject {
    /// A round trip with one request in flight, in microseconds.
    pub(crate) fn round_trip(figure: &'static str, size: u64, wait: Wait) -> Subject {
        Subject {
            size: Some(size),
            inflight: Some(1),
            wait: Some(wait),
            ..Subject::new(figure, Unit::Microseconds)
        }
    }

    /// Only the name and the unit.
    pub(crate) fn new(figure: impl Into<Cow<'static, str>>, unit: Unit) -> Subject {
        Subject {
            figure: figure.into(),
            url: None,
            size: None,
            inflight: None,
            wait: None,
            peers: None,
            unit,
        }
    }
}

/// How a process waits for the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Wait {
    /// Looks again and again.
    Spin,
    /// Looks for a while, then sleeps.
    Adaptive,
    /// Sleeps in the kernel.
    Block,
}

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(crate) enum Unit {
    /// Time of one operation.
    #[serde(rename = "us")]
    Microseconds,
    /// Operations per second.
    #[serde(rename = "1/s")]
    PerSecond,
    /// Bandwidth.
    #[serde(rename = "MiB/s")]
    MebibytesPerSecond,
    /// One figure in proportion to another.
    #[serde(rename = "ratio")]
    Ratio,
    /// Copies of the argument.
    #[serde(rename = "copies")]
    Copies,
    /// Instructions executed.
    #[serde(rename = "instructions")]
    Instructions,
    /// System calls.
    #[serde(rename = "syscalls")]
    SystemCalls,
    /// Memory.
    #[serde(rename = "KiB")]
    Kibibytes,
    /// Open file descriptors.
    #[serde(rename = "fds")]
    Descriptors,
    /// Memory mappings.
    #[serde(rename = "mappings")]
    Mappings,
    /// Processor time in proportion to time.
    #[serde(rename = "%")]
    Percent,
}

impl Unit {
    /// Whether less is more.
    pub(crate) fn better(self) -> Better {
        match self {
            Unit::PerSecond | Unit::MebibytesPerSecond => Better::Larger,
            Unit::Microseconds
            | Unit::Ratio
            | Unit::Copies
            | Unit::Instructions
            | Unit::SystemCalls
            | Unit::Kibibytes
            | Unit::Descriptors
            | Unit::Mappings
            | Unit::Percent => Better::Smaller,
        }
    }

    /// How it is written.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Unit::Microseconds => "us",
            Unit::PerSecond => "1/s",
            Unit::MebibytesPerSecond => "MiB/s",
            Unit::Ratio => "ratio",
            Unit::Copies => "copies",
            Unit::Instructions => "instructions",
            Unit::SystemCalls => "syscalls",
            Unit::Kibibytes => "KiB",
            Unit::Descriptors => "fds",
            Unit::Mappings => "mappings",
            Unit::Percent => "%",
        }
    }
}

impl Wait {
    /// How it is written.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Wait::Spin => "spin",
            Wait::Adaptive => "adaptive",
            Wait::Block => "block",
        }
    }
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
    for measure in measures.iter_mut() {
        measure.measure()?;
    }
    for _ in 0..repetitions {
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
            Ok(f64::from(u32::try_from(self.log.borrow().len()).unwrap()))
        }
    }

    #[test]
    fn measurements_alternate_and_the_first_round_is_not_counted() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let mut measures: Vec<Box<dyn Measure>> = vec![
            Box::new(Logged { name: "a", log: log.clone() }),
            Box::new(Logged { name: "b", log: log.clone() }),
        ];
        let summaries = in_turns(&mut measures, 3).unwrap();
        assert_eq!(*log.borrow(), ["a", "b", "a", "b", "a", "b", "a", "b"]);
        assert_eq!((summaries[0].min, summaries[0].max), (3.0, 7.0));
        assert_eq!((summaries[1].min, summaries[1].repetitions), (4.0, 3));
    }
}
