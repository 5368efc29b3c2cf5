//! Who took the network, by the handles of either plugin.

use hg_na::{Address, Peer};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::names::outer;

/// A peer that took the network.
#[derive(Debug)]
pub(crate) struct Moved {
    pub(crate) inner: Peer,
    pub(crate) local: Address,
    pub(crate) network: Address,
    /// The network has refused something of the user's.
    pub(crate) is_refused: bool,
}

/// What is known about one place of the network's table.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    generation: u32,
    /// The user knows the peer by the network's own handle.
    shown: bool,
    /// The user knows it by the local plugin's.
    moved: Option<Peer>,
}

/// All of one context.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    pub(crate) peers: FxHashMap<Peer, Moved>,
    by_local: FxHashMap<Address, Peer>,
    places: Vec<Place>,
    /// Who has sent something last, by the network's handle and by the user's.
    last: Option<(Peer, Peer)>,
    pub(crate) reasons: FxHashSet<String>,
}

impl Moves {
    /// The peer that was looked up by this local address, and by which one of the network.
    pub(crate) fn find(&self, local: &Address) -> Option<(Peer, &Address)> {
        let peer = self.by_local.get(local)?;
        Some((*peer, &self.peers.get(peer)?.network))
    }

    /// A peer is known by the network's handle `inner` from now on.
    pub(crate) fn add(&mut self, peer: Peer, moved: Moved) {
        self.last = None;
        self.place(moved.inner).moved = Some(peer);
        self.by_local.insert(moved.local.clone(), peer);
        self.peers.insert(peer, moved);
    }

    /// The network's handle of it.
    pub(crate) fn inner(&self, peer: Peer) -> Option<Peer> {
        self.peers.get(&peer).map(|moved| moved.inner)
    }

    /// What is known of it, unless its place is another's by now.
    fn known(&mut self, inner: Peer) -> Option<&mut Place> {
        let place = self.places.get_mut((inner.index() & !Peer::SECOND) as usize)?;
        (place.generation == inner.generation()).then_some(place)
    }

    /// The same of one that is there now: who was at its place before is forgotten.
    fn place(&mut self, inner: Peer) -> &mut Place {
        let at = (inner.index() & !Peer::SECOND) as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, Place::default());
        }
        let place = &mut self.places[at];
        if place.generation != inner.generation() {
            *place = Place { generation: inner.generation(), ..Place::default() };
        }
        place
    }

    /// The user learns the network's handle of a peer.
    pub(crate) fn show(&mut self, inner: Peer) {
        self.place(inner).shown = true;
    }

    /// The user's handle of whoever has sent something.
    #[inline(always)]
    pub(crate) fn sender(&mut self, inner: Peer) -> Peer {
        match self.last {
            Some((last, peer)) if last == inner => peer,
            _ => self.another_sender(inner),
        }
    }

    #[inline(never)]
    fn another_sender(&mut self, inner: Peer) -> Peer {
        let place = self.place(inner);
        let peer = match place.moved {
            Some(peer) => peer,
            None => {
                place.shown = true;
                outer(inner)
            }
        };
        self.last = Some((inner, peer));
        peer
    }

    /// As whom the user knows a peer of the network: by the local plugin's handles (one for each local address
    /// that led here), and whether by the network's own.
    pub(crate) fn known_as(&mut self, inner: Peer) -> (Vec<Peer>, bool) {
        let shown = self.known(inner).is_some_and(|place| place.shown);
        let is_it = |(peer, moved): (&Peer, &Moved)| (moved.inner == inner).then_some(*peer);
        (self.peers.iter().filter_map(is_it).collect(), shown)
    }

    /// The peer has hung up: who is looked up at its address is another one.
    pub(crate) fn hang_up(&mut self, peer: Peer) {
        let local = self.peers.get(&peer).map(|moved| &moved.local);
        if let Some(local) = local.filter(|local| self.by_local.get(*local) == Some(&peer)) {
            self.by_local.remove(local);
        }
    }

    /// The peer is gone.
    pub(crate) fn remove(&mut self, peer: Peer) {
        let Some(moved) = self.peers.remove(&peer) else { return };
        self.last = None;
        if let Some(place) = self.known(moved.inner) {
            place.moved = place.moved.filter(|other| *other != peer);
        }
    }

    /// The network has refused something that was posted by this handle; says whether it was so.
    pub(crate) fn take_refused(&mut self, peer: Peer) -> bool {
        self.peers.get_mut(&peer).is_some_and(|moved| std::mem::take(&mut moved.is_refused))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(name: &str) -> [Address; 2] {
        ["sm", "net"].map(|scheme| Address::new(&format!("{scheme}://{name}")).unwrap())
    }

    #[test]
    fn what_is_asked_of_a_peer_that_has_ended_does_not_touch_the_next_at_its_place() {
        let mut moves = Moves::default();
        let (known, inner) = (Peer::new(5, 0), Peer::new(0, 1));
        let [local, network] = addresses("a");
        moves.add(known, Moved { inner, local, network, is_refused: false });
        assert_eq!(moves.known_as(Peer::new(0, 0)), (Vec::new(), false));
        assert_eq!(moves.sender(inner), known);
        // The same of one that was moved before, and goes last.
        let (before, gone) = (Peer::new(6, 0), Peer::new(0, 0));
        let [local, network] = addresses("b");
        moves.add(before, Moved { inner: gone, local, network, is_refused: false });
        let [local, network] = addresses("a");
        moves.add(known, Moved { inner, local, network, is_refused: false });
        moves.remove(before);
        assert_eq!(moves.sender(inner), known);
    }
}
