//! Fair shares of a limit: nobody holds more than is left for all others.
//!
//! Whoever holds nothing finds room until all is taken, whatever one of the others does: one that takes all that it
//! can gets a half, a second one a quarter, and what is left never depends on how long they hold it. Source: dynamic
//! thresholds with a factor of one, A. K. Choudhury and E. L. Hahne, "Dynamic queue length thresholds for
//! shared-memory packet switches", IEEE/ACM Transactions on Networking 6 (2), 1998.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// Who holds how much of a limit.
#[derive(Debug)]
pub struct Shares<K> {
    max: u64,
    total: u64,
    of: FxHashMap<K, u64>,
}

impl<K: Copy + Eq + Hash> Shares<K> {
    /// Nobody holds anything of `max`.
    #[must_use]
    pub fn new(max: u64) -> Self {
        Self { max, total: 0, of: FxHashMap::default() }
    }

    /// What all hold together.
    #[inline]
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// What one holds.
    #[must_use]
    pub fn of(&self, who: K) -> u64 {
        self.of.get(&who).copied().unwrap_or(0)
    }

    /// Whether one may take so much more: with that it holds no more than is left now. Whoever is alone may take all
    /// in one piece, also one that is larger than the limit.
    #[must_use]
    pub fn admits(&self, who: K, amount: u64) -> bool {
        let left = self.max.saturating_sub(self.total);
        self.total == 0 || self.of(who).saturating_add(amount) <= left
    }

    /// Takes, whether it is admitted or not.
    pub fn take(&mut self, who: K, amount: u64) {
        if amount > 0 {
            *self.of.entry(who).or_default() += amount;
            self.total += amount;
        }
    }

    /// Gives back.
    ///
    /// # Panics
    /// When it holds less: the caller's own bug, which would let others take more than there is.
    pub fn give(&mut self, who: K, amount: u64) {
        if amount == 0 {
            return;
        }
        let held = self.of.get_mut(&who).expect("who gives back has taken");
        *held = held.checked_sub(amount).expect("no more is given back than was taken");
        if *held == 0 {
            self.of.remove(&who);
        }
        self.total -= amount;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_gets_a_half_the_next_a_quarter_and_there_is_room_for_another() {
        let mut shares = Shares::new(64);
        let mut fill = |who: u32| {
            while shares.admits(who, 1) {
                shares.take(who, 1);
            }
            shares.of(who)
        };
        assert_eq!((fill(1), fill(2), fill(3)), (32, 16, 8));
        assert!(shares.admits(4, 1) && !shares.admits(1, 1));
    }

    #[test]
    fn a_limit_of_one_is_for_one() {
        let mut shares = Shares::new(1);
        assert!(shares.admits(1, 1));
        shares.take(1, 1);
        assert!(!shares.admits(1, 1) && !shares.admits(2, 1));
        shares.give(1, 1);
        assert!(shares.admits(2, 1));
    }

    #[test]
    fn more_than_there_is_goes_alone() {
        let mut shares = Shares::new(10);
        assert!(shares.admits(1, 100));
        shares.take(2, 1);
        assert!(!shares.admits(1, 100));
    }

    proptest! {
        #[test]
        fn the_total_is_the_sum_and_returns_to_zero(takes in prop::collection::vec((0_u8..5, 0_u64..50), 0..60)) {
            let mut shares = Shares::new(100);
            let mut held = Vec::new();
            for (who, amount) in takes {
                if shares.admits(who, amount) {
                    let before = shares.total();
                    shares.take(who, amount);
                    prop_assert!(before == 0 || shares.of(who) <= 100 - before);
                    held.push((who, amount));
                }
                prop_assert_eq!(shares.total(), (0..5).map(|it| shares.of(it)).sum::<u64>());
            }
            for (who, amount) in held {
                shares.give(who, amount);
            }
            prop_assert_eq!((shares.total(), shares.of.len()), (0, 0));
        }
    }
}
