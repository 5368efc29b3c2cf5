//! How a worker waits: it polls, lets others run now and then, and sleeps at last.
//!
//! That pays where whoever it waits for has a core, or gets this one. A core that comes back late was wanted by somebody else: whoever sleeps is woken for
//! what comes, and has a core before those who want it always. So the wait sleeps then, and so do the next ones, before it is tried again.

use std::{cell::Cell, time::Duration};

/// Of one wait.
#[derive(Debug)]
pub(crate) struct Patience<'w> {
    /// Rounds that have found nothing.
    empty: u32,
    /// Waits that are still to sleep at once, of all waits of the worker.
    crowded: &'w Cell<u32>,
}

/// What is done after a round that has found nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Poll,
    /// Others may run, if they want to: [`Patience::came_back`].
    GiveWay,
    Sleep,
}

impl<'w> Patience<'w> {
    pub(crate) fn new(crowded: &'w Cell<u32>) -> Self {
        Self { empty: 0, crowded }
    }

    #[inline]
    pub(crate) fn found(&mut self) {
        self.empty = 0;
    }

    #[inline]
    pub(crate) fn found_nothing(&mut self) -> Next {
        if self.empty >= SPIN_ROUNDS {
            return Next::Sleep;
        }
        self.empty += 1;
        if !self.empty.is_multiple_of(YIELD_ROUNDS) {
            return Next::Poll;
        }
        let crowded = self.crowded.get();
        if crowded == 0 {
            return Next::GiveWay;
        }
        self.crowded.set(crowded - 1);
        self.empty = SPIN_ROUNDS;
        Next::Sleep
    }

    /// The core was given away for so long.
    pub(crate) fn came_back(&mut self, after: Duration) {
        if after > LATE {
            self.crowded.set(CROWDED);
            self.empty = SPIN_ROUNDS;
        }
    }
}

/// Empty rounds until a wait sleeps, and until it lets others run.
const SPIN_ROUNDS: u32 = 2048;
const YIELD_ROUNDS: u32 = 64;
/// A core that comes back after more was wanted for long: whoever shares it with a peer alone has it back sooner.
const LATE: Duration = Duration::from_micros(200);
/// Waits that sleep at once after that.
const CROWDED: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// What a wait does until it sleeps, where the core comes back after so long: how often it gives way, and polls.
    fn until_it_sleeps(crowded: &Cell<u32>, back: Duration) -> (u32, u32) {
        let (mut patience, mut gave_way, mut polled) = (Patience::new(crowded), 0, 0);
        loop {
            match patience.found_nothing() {
                Next::Poll => polled += 1,
                Next::GiveWay => {
                    gave_way += 1;
                    patience.came_back(back);
                }
                Next::Sleep => {
                    assert_eq!(patience.found_nothing(), Next::Sleep, "until something is found");
                    patience.found();
                    assert_eq!(patience.found_nothing(), Next::Poll);
                    return (gave_way, polled);
                }
            }
        }
    }

    #[test]
    fn a_core_that_comes_back_soon_is_given_away_for_long() {
        let (crowded, each) = (Cell::new(0), SPIN_ROUNDS / YIELD_ROUNDS);
        for _ in 0..3 {
            assert_eq!(until_it_sleeps(&crowded, LATE), (each, SPIN_ROUNDS - each));
        }
    }

    #[test]
    fn a_core_that_comes_back_late_is_given_away_once_in_many_waits() {
        let (crowded, late) = (Cell::new(0), 2 * LATE);
        for _ in 0..2 {
            assert_eq!(until_it_sleeps(&crowded, late), (1, YIELD_ROUNDS - 1));
            for _ in 0..CROWDED {
                assert_eq!(until_it_sleeps(&crowded, late), (0, YIELD_ROUNDS - 1));
            }
        }
    }
}
