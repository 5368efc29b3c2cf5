//! How many operations of a kind may be under way, and whose: moves, and frames.
//!
//! A peer that has stopped never completes what is on its way to it. So each peer may have one operation under way whatever others have, and more as
//! long as those are no more than are free: one that has stopped takes half of the places, a second one half of the rest.

use rustc_hash::FxHashMap;

/// Operations under way.
#[derive(Debug)]
pub(super) struct Shares {
    /// Of all peers together, but for the first one of each.
    most: usize,
    all: usize,
    /// By address; nobody without any.
    of: FxHashMap<u64, usize>,
}

impl Shares {
    /// None under way.
    pub(super) fn new(most: usize) -> Self {
        Self { most, all: 0, of: FxHashMap::default() }
    }

    /// Whether a peer may have another one.
    pub(super) fn may_add(&self, peer: u64) -> bool {
        let own = self.own(peer);
        own == 0 || own < self.most.saturating_sub(self.all)
    }

    /// How many a peer has.
    pub(super) fn own(&self, peer: u64) -> usize {
        self.of.get(&peer).copied().unwrap_or(0)
    }

    /// How many all have.
    pub(super) fn all(&self) -> usize {
        self.all
    }

    /// It is under way.
    pub(super) fn add(&mut self, peer: u64) {
        self.all += 1;
        *self.of.entry(peer).or_default() += 1;
    }

    /// One is over.
    pub(super) fn remove(&mut self, peer: u64) {
        let Some(own) = self.of.get_mut(&peer) else { return };
        (*own, self.all) = (*own - 1, self.all - 1);
        if *own == 0 {
            self.of.remove(&peer);
        }
    }

    /// None of a peer's counts any more.
    pub(super) fn forget(&mut self, peer: u64) {
        self.all -= self.of.remove(&peer).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_completes_nothing_leaves_half_of_what_is_free_to_the_next_one_and_one_to_all() {
        let mut shares = Shares::new(64);
        let mut taken = Vec::new();
        for peer in 0..10 {
            let mut own = 0;
            while shares.may_add(peer) {
                shares.add(peer);
                own += 1;
            }
            taken.push(own);
        }
        assert_eq!(taken, [32, 16, 8, 4, 2, 1, 1, 1, 1, 1]);
        shares.forget(0);
        assert!(shares.may_add(9), "what is lost is free");
        for (peer, own) in (1..).zip(&taken[1..]) {
            (0..*own).for_each(|_| shares.remove(peer));
        }
        shares.remove(0);
        assert!(shares.all == 0 && shares.of.is_empty());
    }
}
