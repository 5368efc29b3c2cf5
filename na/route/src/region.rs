//! Memory that stands in both plugins at once: two aliases of it are registered, one in each.

use std::sync::Arc;

use hg_na::{Descriptor, Domain, Error, Memory, Region, RegionState, Rights};

use crate::Way;

/// What the memory was made of, so that a copy of it can be made of the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Vector,
    Vectors,
    Shared,
    Other,
}

/// A region of both.
#[derive(Debug)]
pub(crate) struct RouteRegion {
    local: Region,
    network: Region,
    descriptor: Descriptor,
    kind: Kind,
}

impl RouteRegion {
    /// Registers with both, or with neither.
    ///
    /// # Errors
    /// Those of either.
    pub(crate) fn register(
        (local, local_scheme): (&dyn Domain, &str),
        (network, network_scheme): (&dyn Domain, &str),
        memory: Memory,
        rights: Rights,
    ) -> Result<Arc<Self>, Error> {
        let (memory, kind) = kind_of(memory);
        let len = memory.len();
        let memory = Arc::new(memory);
        let local = local.register(Memory::alias(&memory), rights)?;
        // Dropping the first one, when the second fails, unregisters it.
        let network = network.register(Memory::alias(&memory), rights)?;
        let parts = [(local_scheme, &local.descriptor()), (network_scheme, &network.descriptor())];
        let descriptor = Descriptor::joint(len, rights, &parts)?;
        Ok(Arc::new(Self { local, network, descriptor, kind }))
    }

    /// One plugin's side.
    pub(crate) fn part(&self, way: Way) -> &Region {
        match way {
            Way::Local => &self.local,
            Way::Network => &self.network,
        }
    }
}

impl RegionState for RouteRegion {
    fn len(&self) -> u64 {
        self.descriptor.len()
    }

    fn rights(&self) -> Rights {
        self.descriptor.rights()
    }

    fn descriptor(&self) -> Descriptor {
        self.descriptor.clone()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.local.read(offset, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.local.write(offset, from)
    }

    fn unregister(self: Arc<Self>) -> Result<Memory, Error> {
        // Transfers hold the whole region, not only a plugin's side of it.
        let region = Arc::try_unwrap(self).map_err(|_in_use| Error::RegionBusy)?;
        let local = region.local.unregister();
        // In any case: no side is left registered alone.
        let network = region.network.unregister();
        match (local?.into_original(), network?.into_original()) {
            (Ok(one), Ok(other)) => {
                drop(one);
                match Arc::try_unwrap(other) {
                    Ok(memory) => Ok(memory),
                    Err(shared) => Ok(copy_of(&shared, region.kind)),
                }
            }
            // A peer is in the middle of a transfer: one plugin keeps the original and gives a copy.
            (_, Err(copy)) | (Err(copy), Ok(_)) => Ok(of_kind(copy, region.kind)),
        }
    }
}

fn kind_of(memory: Memory) -> (Memory, Kind) {
    let len = memory.len();
    let memory = match memory.into_vec() {
        // What lies in front of a tail is not part of it.
        Ok(bytes) => {
            let start = bytes.len() - usize::try_from(len).unwrap_or(bytes.len());
            return (Memory::tail(bytes, start), Kind::Vector);
        }
        Err(memory) => memory,
    };
    let memory = match memory.into_vecs() {
        Ok(pieces) => return (Memory::from(pieces), Kind::Vectors),
        Err(memory) => memory,
    };
    match memory.into_shared() {
        Ok(bytes) => (Memory::from(bytes), Kind::Shared),
        Err(memory) => (memory, Kind::Other),
    }
}

fn copy_of(memory: &Memory, kind: Kind) -> Memory {
    let mut offset = 0;
    let mut pieces = Vec::new();
    for segment in memory.segments() {
        let mut piece = vec![0; segment.len];
        hg_na_memory::copy_out(memory, offset, &mut piece).expect("a segment lies in its memory");
        offset += segment.len as u64;
        pieces.push(piece);
    }
    of_kind(Memory::from(pieces), kind)
}

/// A copy, made of the same as the original where that can be copied.
fn of_kind(copy: Memory, kind: Kind) -> Memory {
    if !matches!(kind, Kind::Vector | Kind::Shared) {
        return copy;
    }
    match copy.into_vecs() {
        Ok(pieces) if kind == Kind::Shared => {
            Memory::from(Arc::<[u8]>::from(pieces.concat().as_slice()))
        }
        Ok(mut pieces) if pieces.len() == 1 => Memory::from(pieces.swap_remove(0)),
        Ok(pieces) => Memory::from(pieces.concat()),
        Err(copy) => copy,
    }
}
