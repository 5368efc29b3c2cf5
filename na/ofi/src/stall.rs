//! A peer for which libfabric takes nothing: is it given up?
//!
//! It is when it makes progress itself, and takes nothing all the same: it has answered [`ANSWERS`] pings, one after the other, in the time that it is left.
//! One that stands still answers none, and that time does not count: when it goes on it takes what has waited, and is not given up for its first answer.

use std::time::{Duration, Instant};

/// Answers after which it is given up.
const ANSWERS: u32 = 4;

/// Since libfabric takes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stall {
    since: Instant,
    /// When it was asked last.
    asked: Instant,
    is_answered: bool,
    answers: u32,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Sending is tried again.
    Wait,
    /// So it is, and the peer is asked whether it makes progress.
    Ask,
    GiveUp,
}

impl Stall {
    /// It begins, and the peer is asked.
    pub(crate) fn begin(now: Instant) -> Self {
        Self { since: now, asked: now, is_answered: false, answers: 0 }
    }

    /// How long it has lasted.
    pub(crate) fn lasted(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Nothing was taken again. `bound`: how long a peer that answers is left.
    pub(crate) fn goes_on(&mut self, now: Instant, bound: Duration) -> Next {
        let is_time = now.saturating_duration_since(self.asked) > bound / ANSWERS;
        match (self.is_answered && is_time, self.answers >= ANSWERS) {
            (false, _) => Next::Wait,
            (true, true) => Next::GiveUp,
            (true, false) => {
                (self.asked, self.is_answered) = (now, false);
                Next::Ask
            }
        }
    }

    /// The peer has answered.
    pub(crate) fn answered(&mut self) {
        if !self.is_answered {
            (self.is_answered, self.answers) = (true, self.answers + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Duration = Duration::from_secs(60);

    /// Tries every 16 ms until something else is to be done than that, for so long at most.
    fn until_else(stall: &mut Stall, now: &mut Instant, most: Duration) -> Next {
        let end = *now + most;
        while *now < end {
            *now += Duration::from_millis(16);
            match stall.goes_on(*now, BOUND) {
                Next::Wait => {}
                other => return other,
            }
        }
        Next::Wait
    }

    #[test]
    fn one_that_answers_and_takes_nothing_is_given_up_after_its_time() {
        let start = Instant::now();
        let (mut now, mut stall) = (start, Stall::begin(start));
        let mut asked = 1;
        loop {
            stall.answered();
            match until_else(&mut stall, &mut now, BOUND) {
                Next::Ask => asked += 1,
                Next::GiveUp => break,
                Next::Wait => panic!("nothing is done"),
            }
        }
        let lasted = stall.lasted(now);
        assert!(lasted > BOUND && lasted < BOUND * 11 / 10, "{lasted:?}");
        assert_eq!(asked, ANSWERS);
    }

    #[test]
    fn one_that_stands_still_is_waited_for_and_has_time_when_it_goes_on() {
        let start = Instant::now();
        let (mut now, mut stall) = (start, Stall::begin(start));
        stall.answered();
        assert_eq!(until_else(&mut stall, &mut now, BOUND), Next::Ask);
        // It stands still for hours.
        assert_eq!(until_else(&mut stall, &mut now, BOUND * 100), Next::Wait);
        stall.answered();
        assert_eq!(until_else(&mut stall, &mut now, BOUND), Next::Ask, "not at once");
        stall.answered();
        stall.answered();
        assert_eq!(until_else(&mut stall, &mut now, BOUND), Next::Ask, "an answer counts once");
    }
}
