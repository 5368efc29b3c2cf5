//! The connections of one context, found by handle in one step.

use hg_na::Peer;

use crate::{
    connection::{Connection, Phase},
    link::Link,
};

#[derive(Debug, Default)]
struct Place {
    generation: u32,
    connection: Option<Box<Connection>>,
}

/// A table of connections with reused places; a place's generation tells old handles from new ones.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    places: Vec<Place>,
    free: Vec<u32>,
    live: usize,
}

impl Peers {
    /// Adds a connection in its first phase.
    pub(crate) fn add(&mut self, phase: Phase) -> &mut Connection {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            u32::try_from(self.places.len() - 1).expect("fewer than 2^32 peers at a time")
        });
        self.live += 1;
        let place = &mut self.places[index as usize];
        let peer = Peer::new(index, place.generation);
        place.connection.insert(Box::new(Connection::new(peer, phase)))
    }

    /// The connection of a handle, if it still is the same.
    #[inline]
    pub(crate) fn find(&mut self, peer: Peer) -> Option<&mut Connection> {
        self.place(peer)?.connection.as_deref_mut()
    }

    #[inline]
    fn place(&mut self, peer: Peer) -> Option<&mut Place> {
        let place = self.places.get_mut(peer.index() as usize)?;
        (place.generation == peer.generation()).then_some(place)
    }

    /// The same, to be read.
    pub(crate) fn get(&self, peer: Peer) -> Option<&Connection> {
        let place = self.places.get(peer.index() as usize)?;
        place.connection.as_deref().filter(|connection| connection.peer == peer)
    }

    /// The connection at a place, whichever it is now.
    pub(crate) fn at(&mut self, index: u32) -> Option<&mut Connection> {
        self.places.get_mut(index as usize)?.connection.as_deref_mut()
    }

    /// Takes a connection out; its handle is never good again.
    pub(crate) fn remove(&mut self, peer: Peer) -> Option<Box<Connection>> {
        let place = self.place(peer)?;
        let connection = place.connection.take()?;
        // A place whose generations are used up is never used again.
        if let Some(next) = place.generation.checked_add(1) {
            place.generation = next;
            self.free.push(peer.index());
        }
        self.live -= 1;
        Some(connection)
    }

    /// Does something with the links of some of them.
    pub(crate) fn each_link(&mut self, of: &[Peer], act: impl Fn(&mut Link)) {
        for peer in of {
            if let Some(link) = self.find(*peer).and_then(|it| it.link.as_mut()) {
                act(link);
            }
        }
    }

    /// Connections at present.
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    /// All connections; for what is rare only.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.places.iter().filter_map(|place| place.connection.as_deref())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_old_handle_is_never_good_for_the_next_peer_at_its_place() {
        let mut peers = Peers::default();
        let first = peers.add(Phase::Idle).peer;
        assert!(peers.remove(first).is_some());
        let second = peers.add(Phase::Idle).peer;
        assert_eq!(first.index(), second.index());
        assert!(peers.find(first).is_none() && peers.get(first).is_none());
        assert!(peers.remove(first).is_none() && peers.get(second).is_some());
        assert!(peers.find(second).is_some());
        assert!(peers.len() == 1 && peers.iter().all(|it| it.peer == second));
    }
}
