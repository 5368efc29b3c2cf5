//! Deadlines of calls. Cancelled ones are dropped when they come up.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, binary_heap::PeekMut},
    time::Instant,
};

use crate::table::Key;

/// Instants with the calls that end then, earliest first.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, Key)>>,
    /// Armed last, and not among those until another one is armed, or it comes up: of calls one after the other, each is over before
    /// that. So what is put among those is alive, or about to be taken.
    latest: Option<(Instant, Key)>,
    live: usize,
}

/// A heap with more entries than this, most of them dead, is swept.
const SWEEP_ABOVE: usize = 64;

impl Timers {
    /// Arms a timer. `alive` tells of others whether they still count.
    #[inline(always)]
    pub(crate) fn arm(&mut self, at: Instant, key: Key, alive: impl Fn(Key) -> bool) {
        self.live += 1;
        if self.live == 1 {
            self.latest = Some((at, key)); // In place of a dead one, if any.
        } else if let Some((at, key)) = self.latest.replace((at, key))
            && alive(key)
        {
            self.push(at, key, alive);
        }
    }

    #[inline(never)]
    fn push(&mut self, at: Instant, key: Key, alive: impl Fn(Key) -> bool) {
        if self.heap.len() > SWEEP_ABOVE && self.heap.len() > 2 * self.live {
            self.heap.retain(|Reverse((_, key))| alive(*key));
        }
        self.heap.push(Reverse((at, key)));
    }

    /// Counts a timer as dead; it is swept out when the dead outnumber the living.
    #[inline]
    pub(crate) fn disarm(&mut self) {
        debug_assert!(self.live > 0, "each timer is armed before");
        self.live = self.live.saturating_sub(1);
    }

    /// Whether any counts.
    #[cfg(test)]
    pub(crate) fn any(&self) -> bool {
        self.live > 0
    }

    /// When the earliest comes up that counts.
    #[must_use]
    pub(crate) fn next(&mut self, alive: impl Fn(Key) -> bool) -> Option<Instant> {
        while self.heap.peek().is_some_and(|first| !alive(first.0.1)) {
            self.heap.pop();
        }
        self.latest = self.latest.filter(|(_, key)| alive(*key));
        let first = self.heap.peek().map(|first| first.0.0);
        first.into_iter().chain(self.latest.map(|(at, _)| at)).min()
    }

    /// Takes one that has come up; may be one that is dead.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Key> {
        if let Some(due) = self.latest.take_if(|(at, _)| *at <= now) {
            self.heap.push(Reverse(due)); // In turn with others.
        }
        let first = self.heap.peek_mut()?;
        (first.0.0 <= now).then(|| PeekMut::pop(first).0.1)
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
            timers.arm(zero + Duration::from_millis(ms), Key::from_bits(ms), |_| true);
        }
        assert_eq!(timers.pop_due(zero), None);
        let due = zero + Duration::from_millis(2);
        assert_eq!(timers.pop_due(due), Some(Key::from_bits(1)));
        assert_eq!(timers.pop_due(due), Some(Key::from_bits(2)));
        assert_eq!(timers.pop_due(due), None);
    }

    #[test]
    fn dead_timers_do_not_pile_up_whatever_else_is_armed_and_whoever_looks() {
        for (others, sleeps) in [0, 1, 2].into_iter().flat_map(|it| [(it, false), (it, true)]) {
            let zero = test_instant();
            let [sooner, later] = [9, 60].map(|secs| zero + Duration::from_secs(secs));
            let mut timers = Timers::default();
            for key in 0..others {
                timers.arm(sooner, Key::from_bits(key), |_| true);
            }
            for key in others..10_000 {
                let alive = |other: Key| other.to_bits() < others || other.to_bits() == key;
                timers.arm(later, Key::from_bits(key), alive);
                assert_eq!(timers.pop_due(zero), None);
                if sleeps {
                    let next = if others > 0 { sooner } else { later };
                    assert_eq!(timers.next(alive), Some(next));
                }
                timers.disarm();
                assert_eq!(timers.pop_due(zero), None);
            }
            assert!(timers.heap.len() <= SWEEP_ABOVE + 1, "{} timers", timers.heap.len());
            assert_eq!(timers.next(|_| false), None);
            let due = std::iter::from_fn(|| timers.pop_due(later)).count();
            assert!(due <= 1, "the last one, which is dead");
        }
    }

    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    fn test_instant() -> Instant {
        Instant::now()
    }
}
