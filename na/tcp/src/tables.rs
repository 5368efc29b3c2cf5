//! The peers and the connections of a context, each in a table whose places are used again under a new
//! generation.

use hg_na::Peer;
use mio::net::TcpStream;

use crate::{
    address::Target,
    link::{Link, State},
    wire::{Role, Wire, WireKey},
};

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<Box<T>>,
}

/// Values by place and generation.
#[derive(Debug)]
struct Table<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    used: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new(), used: 0 }
    }
}

impl<T> Table<T> {
    /// A free place and its generation; [`Table::put`] fills it.
    fn reserve(&mut self) -> (u32, u32) {
        self.used += 1;
        if let Some(index) = self.free.pop() {
            return (index, self.places[index as usize].generation);
        }
        let index = u32::try_from(self.places.len()).expect("fewer than 2^32 at a time");
        self.places.push(Place { generation: 0, value: None });
        (index, 0)
    }

    fn place(&mut self, index: u32, generation: u32) -> Option<&mut Place<T>> {
        self.places.get_mut(index as usize).filter(|place| place.generation == generation)
    }

    fn put(&mut self, index: u32, generation: u32, value: Box<T>) {
        if let Some(place) = self.place(index, generation) {
            place.value = Some(value);
        }
    }

    fn release(&mut self, index: u32, generation: u32) {
        let Some(place) = self.place(index, generation) else { return };
        place.value = None;
        // A place that has seen every generation is not used again.
        if let Some(next) = generation.checked_add(1) {
            place.generation = next;
            self.free.push(index);
        }
        self.used -= 1;
    }
}

/// All links of a context.
#[derive(Debug)]
pub(crate) struct Links {
    table: Table<Link>,
    /// [`Peer::SECOND`], where it is set in the index of each of them.
    mark: u32,
}

impl Links {
    /// None, of a context whose handles have this mark, or none.
    pub(crate) fn new(mark: u32) -> Self {
        Self { table: Table::default(), mark }
    }

    /// One that was looked up.
    pub(crate) fn add(&mut self, target: Target) -> Peer {
        self.put(|peer| Link::new(peer, Some(target), State::Idle))
    }

    /// One that the other end has opened, on its side of a connection.
    pub(crate) fn accept(&mut self, wire: &Wire, side: usize) -> Peer {
        self.put(|peer| {
            let mut link = Link::new(peer, None, State::Idle);
            link.open(wire, side);
            link
        })
    }

    fn put(&mut self, make: impl FnOnce(Peer) -> Link) -> Peer {
        let (index, generation) = self.table.reserve();
        let peer = Peer::new(index ^ self.mark, generation);
        self.table.put(index, generation, Box::new(make(peer)));
        peer
    }

    /// A link, to be read.
    pub(crate) fn get(&self, peer: Peer) -> Option<&Link> {
        let place = self.table.places.get((peer.index() ^ self.mark) as usize)?;
        place.value.as_deref().filter(|link| link.peer == peer)
    }

    #[inline]
    pub(crate) fn find(&mut self, peer: Peer) -> Option<&mut Link> {
        // One without the mark is beyond the end then.
        self.table.place(peer.index() ^ self.mark, peer.generation())?.value.as_deref_mut()
    }

    /// The present link of a place, by its index.
    pub(crate) fn at(&mut self, index: u32) -> Option<&mut Link> {
        self.table.places.get_mut((index ^ self.mark) as usize)?.value.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, peer: Peer) {
        self.table.release(peer.index() ^ self.mark, peer.generation());
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Link> {
        self.table.places.iter().filter_map(|place| place.value.as_deref())
    }

    pub(crate) fn len(&self) -> usize {
        self.table.used
    }
}

/// All connections of a context. One is taken out while something is done with it.
#[derive(Debug, Default)]
pub(crate) struct Wires(Table<Wire>);

impl Wires {
    pub(crate) fn add(&mut self, stream: TcpStream, role: Role) -> Box<Wire> {
        let (index, generation) = self.0.reserve();
        Box::new(Wire::new(WireKey { index, generation }, stream, role))
    }

    #[inline]
    pub(crate) fn find(&mut self, key: WireKey) -> Option<&mut Wire> {
        self.0.place(key.index, key.generation)?.value.as_deref_mut()
    }

    #[inline]
    pub(crate) fn take(&mut self, key: WireKey) -> Option<Box<Wire>> {
        self.0.place(key.index, key.generation)?.value.take()
    }

    #[inline]
    pub(crate) fn put(&mut self, wire: Box<Wire>) {
        self.0.put(wire.key.index, wire.key.generation, wire);
    }

    /// Frees the place of one that was taken out.
    pub(crate) fn release(&mut self, key: WireKey) {
        self.0.release(key.index, key.generation);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Wire> {
        self.0.places.iter().filter_map(|place| place.value.as_deref())
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Wire> {
        self.0.places.iter_mut().filter_map(|place| place.value.as_deref_mut())
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Box<Wire>> {
        self.0.places.iter_mut().filter_map(|place| place.value.take())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_carry_their_tables_mark_and_are_not_found_without_it() {
        for mark in [0, Peer::SECOND] {
            let mut links = Links::new(mark);
            let target = || Target::parse(&"tcp://127.0.0.1:1/0".parse().unwrap()).unwrap();
            let all: Vec<_> = (0..3).map(|_| links.add(target())).collect();
            for (place, peer) in (0..).zip(&all) {
                assert_eq!(peer.index(), place | mark);
                assert!(links.find(*peer).is_some_and(|link| link.peer == *peer));
                assert!(links.at(peer.index()).is_some_and(|link| link.peer == *peer));
                let other = Peer::new(peer.index() ^ Peer::SECOND, peer.generation());
                assert!(links.find(other).is_none() && links.at(other.index()).is_none());
                assert!(links.get(other).is_none());
            }
            links.remove(all[1]);
            assert!(links.find(all[1]).is_none() && links.len() == 2);
            assert!(links.get(all[0]).is_some() && links.get(all[1]).is_none());
            let again = links.add(target());
            assert!(again.index() == all[1].index() && again != all[1]);
        }
    }
}
