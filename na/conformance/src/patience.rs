//! How long a test waits.

use std::time::{Duration, Instant};

/// How long a test waits for something: a time, and where nothing outside of the test can move
/// anything, a number of rounds.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Longest wait for one condition.
    pub time: Duration,
    /// Rounds in a row without any progress.
    pub idle_rounds: u64,
    /// Longest sleep of a context that has something to come.
    pub sleep: Duration,
}

impl Patience {
    pub(crate) fn start(self) -> PatienceClock {
        PatienceClock { patience: self, started: Instant::now(), rounds: 0, idle: 0 }
    }
}

#[derive(Debug)]
pub(crate) struct PatienceClock {
    patience: Patience,
    started: Instant,
    rounds: u64,
    idle: u64,
}

impl PatienceClock {
    /// Counts a round; false when patience has ended.
    pub(crate) fn patient(&mut self, moved: bool) -> bool {
        self.rounds += 1;
        self.idle = if moved { 0 } else { self.idle + 1 };
        if !moved {
            std::thread::yield_now();
        }
        let look = self.rounds.is_multiple_of(64);
        self.idle <= self.patience.idle_rounds
            && !(look && self.started.elapsed() > self.patience.time)
    }
}
