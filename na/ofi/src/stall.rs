//! A peer for which libfabric takes nothing: is it given up? And one that waits for others: for how long?
//!
//! It is when it makes progress itself, and takes nothing all the same: it has answered [`ANSWERS`] pings, one after the other, in the time that it is left,
//! a part of which follows each answer. One that stands still answers none, and that time does not count: when it goes on it takes what has waited, and is not
//! given up for its next answer, or its last.

use std::time::{Duration, Instant};

/// Answers after which it is given up.
const ANSWERS: u32 = 4;
/// Before it is asked at all: a share that is used up for a moment costs no ping.
pub(crate) const ASK_AFTER: Duration = Duration::from_millis(16);
/// Whoever waits for others tries more often than this, unless this side makes no progress.
const GAP_MIN: Duration = Duration::from_millis(100);

/// Since libfabric takes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stall {
    since: Instant,
    /// When it was asked last, or has answered since.
    asked: Option<Instant>,
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
    /// It begins.
    pub(crate) fn begin(now: Instant) -> Self {
        Self { since: now, asked: None, is_answered: false, answers: 0 }
    }

    /// How long it has lasted.
    pub(crate) fn lasted(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Nothing was taken again. `bound`: how long a peer that answers is left.
    pub(crate) fn goes_on(&mut self, now: Instant, bound: Duration) -> Next {
        let is_time = match self.asked {
            None => self.lasted(now) > ASK_AFTER,
            Some(asked) => {
                self.is_answered && now.saturating_duration_since(asked) > bound / ANSWERS
            }
        };
        match (is_time, self.answers >= ANSWERS) {
            (false, _) => Next::Wait,
            (true, true) => Next::GiveUp,
            (true, false) => {
                (self.asked, self.is_answered) = (Some(now), false);
                Next::Ask
            }
        }
    }

    /// The peer has answered.
    pub(crate) fn answered(&mut self, now: Instant) {
        if self.asked.is_some() && !self.is_answered {
            (self.asked, self.is_answered) = (Some(now), true);
            self.answers += 1;
        }
    }
}

/// Since somebody waits for others, and no frame is lent or comes back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Starvation {
    since: Instant,
    /// When somebody has tried last.
    last: Instant,
    /// Frames that were lent, or came back, until then.
    count: u64,
}

impl Starvation {
    /// It begins.
    pub(crate) fn begin(now: Instant, count: u64) -> Self {
        Self { since: now, last: now, count }
    }

    /// It goes on, or begins anew: a frame has moved meanwhile, or nobody has tried for a while. Answers how long it has lasted.
    pub(crate) fn goes_on(&mut self, now: Instant, count: u64, bound: Duration) -> Duration {
        let gap = now.saturating_duration_since(self.last);
        if self.count != count || gap > GAP_MIN.max(bound / 4) {
            *self = Self::begin(now, count);
        }
        self.last = now;
        now.saturating_duration_since(self.since)
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
        let (mut now, mut stall, mut asked) = (start, Stall::begin(start), 0);
        loop {
            match until_else(&mut stall, &mut now, BOUND) {
                Next::Ask => asked += 1,
                Next::GiveUp => break,
                Next::Wait => panic!("nothing is done"),
            }
            stall.answered(now);
        }
        let lasted = stall.lasted(now);
        assert!(lasted > BOUND && lasted < BOUND * 11 / 10, "{lasted:?}");
        assert_eq!(asked, ANSWERS);
    }

    #[test]
    fn what_lasts_for_a_moment_costs_no_ping() {
        let now = Instant::now();
        let mut stall = Stall::begin(now);
        assert_eq!(stall.goes_on(now, BOUND), Next::Wait);
        assert_eq!(stall.goes_on(now + ASK_AFTER, BOUND), Next::Wait);
        stall.answered(now + ASK_AFTER);
        assert_eq!(stall.goes_on(now + 2 * ASK_AFTER, BOUND), Next::Ask, "nobody was asked before");
    }

    #[test]
    fn one_that_stands_still_is_waited_for_and_has_time_when_it_goes_on() {
        for before in 0..ANSWERS {
            let start = Instant::now();
            let (mut now, mut stall) = (start, Stall::begin(start));
            for _ in 0..before {
                assert_eq!(until_else(&mut stall, &mut now, BOUND), Next::Ask);
                stall.answered(now);
            }
            assert_eq!(until_else(&mut stall, &mut now, BOUND), Next::Ask);
            // It stands still for hours.
            assert_eq!(until_else(&mut stall, &mut now, BOUND * 100), Next::Wait);
            stall.answered(now);
            stall.answered(now);
            let long = BOUND / ANSWERS - Duration::from_millis(100);
            assert_eq!(until_else(&mut stall, &mut now, long), Next::Wait, "not at once: {before}");
            let last = if before + 1 == ANSWERS { Next::GiveUp } else { Next::Ask };
            assert_eq!(until_else(&mut stall, &mut now, BOUND), last, "an answer counts once");
        }
    }

    #[test]
    fn who_waits_for_others_does_so_anew_once_a_frame_has_moved_or_nobody_has_tried() {
        let (start, step) = (Instant::now(), Duration::from_millis(16));
        let mut starvation = Starvation::begin(start, 7);
        let mut now = start;
        while starvation.goes_on(now, 7, BOUND) <= BOUND {
            now += step;
        }
        assert!(now - start <= BOUND + 2 * step);
        assert_eq!(starvation.goes_on(now, 8, BOUND), Duration::ZERO, "a frame has moved");
        assert_eq!(starvation.goes_on(now + step, 8, BOUND), step);
        let later = now + 2 * BOUND;
        assert_eq!(starvation.goes_on(later, 8, BOUND), Duration::ZERO, "nobody has tried");
        assert_eq!(starvation.goes_on(later + step, 8, BOUND), step);
    }
}
