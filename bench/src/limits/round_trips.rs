//! Two processes that go back and forth: what the measurements of round trips have in common.
//!
//! The second process sleeps between two repetitions; each starts with a word that says how many
//! round trips come, of which some wake it up and fetch what is shared.

use std::time::Instant;

use crate::error::Error;
use crate::measure::{Measure, Subject, Unit};
use crate::pair::Peer;

/// A pair of processes whose figure is the time of a round trip, or how many there are in a second.
pub(crate) trait RoundTrips {
    /// Round trips before the clock starts.
    const WARM_UP: u32;
    /// Round trips in one repetition.
    const BATCH: u32;

    /// What is measured.
    fn subject(&self) -> Subject;

    /// The second process, which has to be told how many round trips come.
    fn peer(&mut self) -> &mut Peer;

    /// `count` of them, each answer checked.
    fn round_trips(&mut self, count: u32) -> Result<(), Error>;
}

impl<P: RoundTrips> Measure for P {
    fn subject(&self) -> Subject {
        RoundTrips::subject(self)
    }

    fn measure(&mut self) -> Result<f64, Error> {
        self.peer().control().send(u64::from(P::WARM_UP + P::BATCH))?;
        self.round_trips(P::WARM_UP)?;
        let start = Instant::now();
        self.round_trips(P::BATCH)?;
        let (seconds, batch) = (start.elapsed().as_secs_f64(), f64::from(P::BATCH));
        Ok(match RoundTrips::subject(self).unit {
            Unit::PerSecond => batch / seconds,
            _ => seconds * 1e6 / batch,
        })
    }
}
