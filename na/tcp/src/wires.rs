//! The connections of a context, in a table whose places are used again under a new generation.

use hg_na_link::Table;
use mio::net::TcpStream;

use crate::wire::{Role, Wire, WireKey};

/// All connections of a context. One is taken out while something is done with it.
#[derive(Debug, Default)]
pub(crate) struct Wires(Table<Wire>);

impl Wires {
    pub(crate) fn add(&mut self, stream: TcpStream, role: Role) -> Box<Wire> {
        let (index, generation) = self.0.reserve();
        Box::new(Wire::new(WireKey { index, generation }, stream, role))
    }

    /// Gives one of another context's a place here.
    pub(crate) fn adopt(&mut self, wire: Wire) -> Box<Wire> {
        let (index, generation) = self.0.reserve();
        Box::new(wire.moved(WireKey { index, generation }))
    }

    pub(crate) fn get(&self, key: WireKey) -> Option<&Wire> {
        self.0.get(key.index, key.generation)
    }

    #[inline]
    pub(crate) fn find(&mut self, key: WireKey) -> Option<&mut Wire> {
        self.0.find(key.index, key.generation)
    }

    #[inline]
    pub(crate) fn take(&mut self, key: WireKey) -> Option<Box<Wire>> {
        self.0.take(key.index, key.generation)
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
        self.0.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Wire> {
        self.0.iter_mut()
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Box<Wire>> {
        self.0.drain()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
