//! Fair shares of a limit: nobody holds more than is left for all others.
//!
//! Whoever holds nothing finds room until all is taken, whatever one of the others does: one that takes all that it
//! can gets a half, a second one a quarter, and what is left never depends on how long they hold it. An amount is taken in
//! one piece or not at all, by the same rule as if each unit of it came by itself: so it is a half of the limit at most
//! ([`Shares::piece_max`]), and one of a quarter finds room beside whatever one other holds. Source: dynamic
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

    /// What nobody holds.
    #[inline]
    #[must_use]
    pub fn left(&self) -> u64 {
        self.max.saturating_sub(self.total)
    }

    /// The largest amount that anybody is ever admitted with: a half, rounded up.
    #[must_use]
    pub fn piece_max(&self) -> u64 {
        self.max.div_ceil(2)
    }

    /// Whether one may take so much more: before the last unit of it is taken, it holds less than is left.
    #[must_use]
    pub fn admits(&self, who: K, amount: u64) -> bool {
        let Some(before_last) = amount.checked_sub(1) else { return true };
        let left_then = self.left().checked_sub(before_last);
        left_then.is_some_and(|left| self.of(who).saturating_add(amount) <= left)
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
    fn one_piece_is_a_half_at_most_and_one_of_a_quarter_fits_beside_whatever_another_one_holds() {
        let mut shares = Shares::new(100);
        assert_eq!(shares.piece_max(), 50);
        assert!(!shares.admits(1, 51) && !shares.admits(1, 100) && !shares.admits(1, u64::MAX));
        assert!(shares.admits(1, 50));
        shares.take(1, 50);
        assert!(!shares.admits(1, 1) && !shares.admits(2, 26));
        assert!(shares.admits(2, 25));
        shares.take(2, 25);
        assert!(shares.admits(3, 13) && !shares.admits(3, 14));
    }

    proptest! {
        #[test]
        fn an_amount_is_admitted_if_each_unit_of_it_is(
            max in 1_u64..40,
            steps in prop::collection::vec((0_u8..4, 0_u64..25), 0..20),
        ) {
            let (mut shares, mut by_units) = (Shares::new(max), Shares::new(max));
            for (who, amount) in steps {
                let before = by_units.of(who);
                while by_units.of(who) < before + amount && by_units.admits(who, 1) {
                    by_units.take(who, 1);
                }
                let has_all = by_units.of(who) == before + amount;
                prop_assert_eq!(shares.admits(who, amount), has_all);
                if has_all {
                    shares.take(who, amount);
                } else {
                    by_units.give(who, by_units.of(who) - before);
                }
            }
        }

        #[test]
        fn the_total_is_the_sum_and_returns_to_zero(takes in prop::collection::vec((0_u8..5, 0_u64..50), 0..60)) {
            let mut shares = Shares::new(100);
            let mut held = Vec::new();
            for (who, amount) in takes {
                if shares.admits(who, amount) {
                    let before = shares.total();
                    shares.take(who, amount);
                    let is_fair = shares.of(who) <= 100 - before && shares.total() <= 100;
                    prop_assert!(is_fair || amount == 0);
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
