//! Deadlines of calls. Cancelled ones are dropped when they come up.

use std::{cmp::Reverse, collections::BinaryHeap, time::Instant};

use crate::table::Key;

/// Instants with the calls that end then, earliest first.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, Key)>>,
    live: usize,
}

/// A heap with more entries than this, most of them dead, is swept.
const SWEEP_ABOVE: usize = 64;

impl Timers {
    /// Arms a timer.
    pub(crate) fn arm(&mut self, at: Instant, key: Key) {
        self.heap.push(Reverse((at, key)));
        self.live += 1;
    }

    /// Counts a timer as dead; it is swept out when the dead outnumber the living.
    pub(crate) fn disarm(&mut self, alive: impl Fn(Key) -> bool) {
        self.live = self.live.saturating_sub(1);
        if self.heap.len() > SWEEP_ABOVE && self.heap.len() > 2 * self.live {
            self.heap.retain(|Reverse((_, key))| alive(*key));
        }
    }

    /// When a timer that is armed comes up. Looks at all of them.
    pub(crate) fn of(&self, key: Key) -> Option<Instant> {
        self.heap.iter().find_map(|Reverse((at, other))| (*other == key).then_some(*at))
    }

    /// Whether none is armed.
    #[inline]
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// When the earliest comes up; may be one that is dead.
    #[must_use]
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes one that has come up.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Key> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, key))| key)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timers_come_up_in_order_and_not_early() {
        let zero = test_instant();
        let mut timers = Timers::default();
        for ms in [3, 1, 2] {
            timers.arm(zero + Duration::from_millis(ms), Key::from_bits(ms));
        }
        assert_eq!(timers.pop_due(zero), None);
        let due = zero + Duration::from_millis(2);
        assert_eq!(timers.pop_due(due), Some(Key::from_bits(1)));
        assert_eq!(timers.pop_due(due), Some(Key::from_bits(2)));
        assert_eq!(timers.pop_due(due), None);
    }

    #[test]
    fn dead_timers_do_not_pile_up() {
        let zero = test_instant();
        let mut timers = Timers::default();
        for count in 0..10_000 {
            timers.arm(zero + Duration::from_secs(60), Key::from_bits(count));
            timers.disarm(|_| false);
        }
        assert!(timers.heap.len() <= SWEEP_ABOVE + 1, "{} timers", timers.heap.len());
    }

    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    fn test_instant() -> Instant {
        Instant::now()
    }
}
