//! What became of the peers of the local plugin's table.

use hg_na::Peer;
use rustc_hash::FxHashSet;

/// What became of a peer of the local plugin's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Mark {
    /// It was never looked up: it has connected by itself.
    #[default]
    None,
    /// It is reached locally.
    Settled,
    /// It is tried locally.
    Candidate,
    /// It is reached by the network.
    Moved,
}

/// Marks by place; of another generation, they mean nothing.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    places: Vec<(u32, Mark)>,
    /// Peers that took the network, and whose places the local plugin has given to others since.
    moved: FxHashSet<Peer>,
}

impl Marks {
    /// The mark of a peer.
    #[inline]
    pub(crate) fn of(&self, peer: Peer) -> Mark {
        match self.places.get(peer.index() as usize) {
            Some((generation, mark)) if *generation == peer.generation() => *mark,
            _ if self.moved.contains(&peer) => Mark::Moved,
            _ => Mark::None,
        }
    }

    /// Whether the local plugin takes its operations as they are.
    #[inline]
    pub(crate) fn is_direct(&self, peer: Peer) -> bool {
        self.is_free(peer) && (self.moved.is_empty() || self.of(peer) != Mark::Moved)
    }

    /// The same where no search is needed to say so, as mostly none is: a short cut that has one in its way saves and
    /// restores all registers for it, at each message.
    #[inline(always)]
    pub(crate) fn is_plainly_direct(&self, peer: Peer) -> bool {
        self.is_free(peer) && self.moved.is_empty()
    }

    /// Whether its place has no mark of its own that sends it elsewhere.
    #[inline(always)]
    fn is_free(&self, peer: Peer) -> bool {
        match self.places.get(peer.index() as usize) {
            Some((_, Mark::None | Mark::Settled)) | None => true,
            Some((generation, _)) => *generation != peer.generation(),
        }
    }

    /// Marks a peer.
    pub(crate) fn set(&mut self, peer: Peer, mark: Mark) {
        let place = peer.index() as usize;
        if self.places.len() <= place {
            self.places.resize(place + 1, (0, Mark::None));
        }
        let (generation, before) =
            std::mem::replace(&mut self.places[place], (peer.generation(), mark));
        if before == Mark::Moved && generation != peer.generation() {
            self.moved.insert(Peer::new(peer.index(), generation));
        }
    }

    /// A peer that took the network is gone.
    pub(crate) fn end(&mut self, peer: Peer) {
        if !self.moved.remove(&peer) && self.of(peer) == Mark::Moved {
            self.set(peer, Mark::None);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn what_is_plainly_direct_is_direct_and_only_what_is_tried_or_has_moved_is_not(
            steps in proptest::collection::vec((0_u32..4, 0_u32..3, 0_usize..4, any::<bool>()), 0..60)
        ) {
            let mut marks = Marks::default();
            for (index, generation, mark, ends) in steps {
                let peer = Peer::new(index, generation);
                if ends {
                    marks.end(peer);
                } else {
                    let all = [Mark::None, Mark::Settled, Mark::Candidate, Mark::Moved];
                    marks.set(peer, all[mark]);
                }
                for (index, generation) in (0..5).flat_map(|at| (0..4).map(move |by| (at, by))) {
                    let peer = Peer::new(index, generation);
                    let goes_elsewhere = matches!(marks.of(peer), Mark::Candidate | Mark::Moved);
                    prop_assert_eq!(marks.is_direct(peer), !goes_elsewhere);
                    prop_assert!(marks.is_direct(peer) || !marks.is_plainly_direct(peer));
                }
            }
        }
    }
}
