//! Whether a port carries anything, as its card says. No I/O.
//!
//! ```text
//!  Up -down-> Down -bound-> Cut      Down: new peers are met elsewhere; what is under way waits, as the card repeats it
//!   ^          | up         | up     Cut: every connection over it was ended
//!   +----------+------------+
//!  any -removed, or in error-> Gone  for good
//! ```

use std::time::{Duration, Instant};

/// What a card says of one of its ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    Up,
    Down,
    Gone,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Every connection over the port ends.
    Connections,
    /// The same, and nothing of the card is used any more.
    Card,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Up,
    Down { until: Instant },
    Cut,
    Gone,
}

/// One port.
#[derive(Debug)]
pub(crate) struct Health {
    state: State,
    /// How long a port may be down.
    bound: Duration,
}

impl Health {
    /// Of a port that is up.
    pub(crate) fn new(bound: Duration) -> Self {
        Self { state: State::Up, bound }
    }

    pub(crate) fn hear(&mut self, word: Word, now: Instant) -> Option<Cut> {
        match (self.state, word) {
            (State::Gone, _) | (State::Down { .. } | State::Cut, Word::Down) => None,
            (State::Up | State::Down { .. } | State::Cut, Word::Up) => {
                self.state = State::Up;
                None
            }
            (State::Up, Word::Down) => {
                self.state = State::Down { until: now + self.bound };
                None
            }
            (State::Up | State::Down { .. } | State::Cut, Word::Gone) => {
                self.state = State::Gone;
                Some(Cut::Card)
            }
        }
    }

    /// Time has passed.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Option<Cut> {
        match self.state {
            State::Down { until } if until <= now => {
                self.state = State::Cut;
                Some(Cut::Connections)
            }
            State::Up | State::Down { .. } | State::Cut | State::Gone => None,
        }
    }

    /// When it is to be told of the time.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Down { until } => Some(until),
            State::Up | State::Cut | State::Gone => None,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.state == State::Gone
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

    use super::*;

    const BOUND: Duration = Duration::from_secs(10);

    #[test]
    fn a_port_that_comes_back_in_time_costs_nobody_his_connection() {
        let (mut health, start) = (Health::new(BOUND), Instant::now());
        assert_eq!(health.hear(Word::Down, start), None);
        assert!(!health.is_up());
        assert_eq!(health.handle_timeout(start + BOUND / 2), None);
        assert_eq!(health.hear(Word::Up, start + BOUND / 2), None);
        assert!(health.is_up() && health.deadline().is_none());
        assert_eq!(health.handle_timeout(start + BOUND), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Beside a naive record of what was said.
        #[test]
        fn connections_are_cut_once_for_each_time_that_a_port_is_down_for_long(
            steps in proptest::collection::vec((0_u8..8, 1_u64..8), 1..200),
        ) {
            let mut health = Health::new(BOUND);
            let (mut now, mut down_since, mut was_cut, mut is_gone) = (Instant::now(), None, false, false);
            for (kind, seconds) in steps {
                now += Duration::from_secs(seconds);
                let due = down_since.is_some_and(|since| now >= since + BOUND) && !was_cut && !is_gone;
                prop_assert_eq!(health.handle_timeout(now), due.then_some(Cut::Connections));
                was_cut |= due;
                let word = match kind { 0..3 => Word::Up, 3..7 => Word::Down, _ => Word::Gone };
                let cut = health.hear(word, now);
                prop_assert_eq!(cut, (word == Word::Gone && !is_gone).then_some(Cut::Card));
                match word {
                    Word::Up => (down_since, was_cut) = (None, false),
                    Word::Down => down_since = down_since.or(Some(now)),
                    Word::Gone => is_gone = true,
                }
                prop_assert_eq!(health.is_up(), down_since.is_none() && !is_gone);
                prop_assert_eq!(health.is_gone(), is_gone);
                prop_assert!(health.deadline().is_none() || !health.is_up());
            }
        }
    }
}
