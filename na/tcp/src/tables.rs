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
#[derive(Debug, Default)]
pub(crate) struct Links(Table<Link>);

impl Links {
    pub(crate) fn add(&mut self, target: Option<Target>, state: State) -> Peer {
        let (index, generation) = self.0.reserve();
        let peer = Peer::new(index, generation);
        self.0.put(index, generation, Box::new(Link::new(peer, target, state)));
        peer
    }

    #[inline]
    pub(crate) fn find(&mut self, peer: Peer) -> Option<&mut Link> {
        self.0.place(peer.index(), peer.generation())?.value.as_deref_mut()
    }

    /// The present link of a place.
    pub(crate) fn at(&mut self, index: u32) -> Option<&mut Link> {
        self.0.places.get_mut(index as usize)?.value.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, peer: Peer) {
        self.0.release(peer.index(), peer.generation());
    }

    pub(crate) fn len(&self) -> usize {
        self.0.used
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

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Box<Wire>> {
        self.0.places.iter_mut().filter_map(|place| place.value.take())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.used
    }
}
