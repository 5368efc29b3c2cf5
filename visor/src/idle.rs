//! Between polling and sleeping: what the daemon's thread does while nothing comes.
//!
//! It polls for [`SPIN`], and gives its core away after each look: whoever is to answer may wait for it. A core that comes back late is
//! wanted by others for long: then some sleeps begin at once, since who is woken has the core before those. Twice as many do each
//! time that the next polls end like this, too, and half as many each time that they do not: one interruption costs little, and a crowd
//! is not polled among.

use std::time::{Duration, Instant};

/// Polled in vain for so long, it sleeps: some wake-ups of a core that has fallen asleep.
const SPIN: Duration = Duration::from_micros(100);
/// A core that was given away and comes back so late is wanted by others for long.
const LATE: Duration = Duration::from_micros(400);
/// How many sleeps begin at once then, at first and at most.
const AT_ONCE: u32 = 16;
const AT_ONCE_MAX: u32 = 512;
/// Of so many looks in vain one asks the kernel, the first one among them.
const LOOKS_PER_ASK: u32 = 8;

/// What it has seen lately.
#[derive(Debug)]
pub(crate) struct Idle {
    moved_at: Instant,
    /// In vain since something moved.
    looks: u32,
    /// Sleeps to come that begin at once, and how many do when a core is late again.
    at_once: u32,
    next: u32,
}

impl Idle {
    pub(crate) fn new(now: Instant) -> Self {
        Self { moved_at: now, looks: 0, at_once: 0, next: AT_ONCE }
    }

    /// A round has moved something.
    pub(crate) fn moved(&mut self, now: Instant) {
        (self.moved_at, self.looks) = (now, 0);
    }

    /// Whether to poll on, after a round in vain; otherwise it is to sleep.
    pub(crate) fn polls(&self, now: Instant) -> bool {
        self.at_once == 0 && now.saturating_duration_since(self.moved_at) < SPIN
    }

    /// Whether this look asks the kernel.
    pub(crate) fn asks(&mut self) -> bool {
        let asks = self.looks.is_multiple_of(LOOKS_PER_ASK);
        self.looks = self.looks.wrapping_add(1);
        asks
    }

    /// The core has come back after so long.
    pub(crate) fn came_back(&mut self, after: Duration) {
        if after > LATE {
            self.at_once = self.next;
            self.next = (self.next * 2).min(AT_ONCE_MAX);
        } else {
            // Halved: beside a busy loop the yield that follows a sleep comes back in time, and the next one does not.
            self.next = (self.next / 2).max(AT_ONCE);
        }
    }

    /// It has slept.
    pub(crate) fn slept(&mut self) {
        self.at_once = self.at_once.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sleeps until it polls again.
    fn sleeps(idle: &mut Idle, now: Instant) -> u32 {
        (0..)
            .find(|_| {
                idle.polls(now) || {
                    idle.slept();
                    false
                }
            })
            .unwrap()
    }

    #[test]
    fn a_late_core_costs_few_sleeps_and_one_that_is_late_each_time_ever_more() {
        let now = Instant::now();
        let mut idle = Idle::new(now);
        assert!(idle.polls(now));
        for expected in [16, 32, 64, 128, 256, 512, 512] {
            idle.came_back(LATE * 2);
            assert_eq!(sleeps(&mut idle, now), expected);
        }
        for expected in [256, 256, 256] {
            idle.came_back(LATE);
            idle.came_back(LATE * 2);
            assert_eq!(
                sleeps(&mut idle, now),
                expected,
                "one that is late every other time is late"
            );
        }
        (0..6).for_each(|_| idle.came_back(LATE));
        idle.came_back(LATE * 2);
        assert_eq!(sleeps(&mut idle, now), AT_ONCE, "a core that comes back in time ends that");
    }

    #[test]
    fn it_polls_for_a_while_after_something_moved_and_asks_the_kernel_at_first_and_now_and_then() {
        let start = Instant::now();
        let mut idle = Idle::new(start);
        for begin in [start, start + SPIN * 5] {
            idle.moved(begin);
            let asked = (0..32).filter(|_| idle.polls(begin) && idle.asks()).count();
            assert_eq!(asked, 4);
            assert!(!idle.polls(begin + SPIN));
        }
    }
}
