//! How many moves may be under way, and whose.
//!
//! A peer that has stopped never completes what is moved to it. So each peer may have one move under way whatever others have, and more as long as
//! those are no more than are free: one that has stopped takes half of the places, a second one half of the rest.

use rustc_hash::FxHashMap;

/// Moves of all peers together, but for the first one of each.
const MOVES_MAX: usize = 64;

/// Moves under way.
#[derive(Debug, Default)]
pub(super) struct Shares {
    all: usize,
    /// By address; nobody without any.
    of: FxHashMap<u64, usize>,
}

impl Shares {
    /// Whether another one may be made to a peer's memory, or from it.
    pub(super) fn may_add(&self, peer: u64) -> bool {
        let own = self.of.get(&peer).copied().unwrap_or(0);
        own == 0 || own < MOVES_MAX.saturating_sub(self.all)
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
        let mut shares = Shares::default();
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
