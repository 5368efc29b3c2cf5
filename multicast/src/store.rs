//! Where an object is at a member, and how its blocks are had.

use std::sync::Arc;

use hg::bulk::{Bulk, Descriptor, Frozen, Rights};

use crate::{
    checksum::{self, Sum},
    disk::Disk,
    error::Error,
    machine::{Header, INLINE_MAX},
    object::{Blocks, Data, Destination, Object},
    wire::Place,
};

/// Bytes that are copied out to be summed up at a time: they stay in the nearest cache.
const CHUNK: usize = 8 << 10;
/// Bytes that are pulled inside a node before they are summed up: with those that they are copied from they stay in a core's own cache.
pub(crate) const HOT: u64 = 256 << 10;

/// Where an object is.
pub(crate) enum Store {
    /// A small one, whose blocks ride in their offers.
    Bytes(Vec<u8>),
    /// In registered memory; whether it is given to the user as one's own.
    Memory { bulk: Arc<Bulk>, descriptor: Descriptor, is_own: bool },
    /// In memory that nobody can change, of this process's own or mapped.
    Frozen { bytes: Frozen, bulk: Arc<Bulk>, descriptor: Descriptor },
    /// So many bytes, of which the first block will show whether they can be seen where they lie.
    Unseen(u64),
    /// Behind a thread that reads and writes it.
    Disk(Disk),
}

impl Store {
    fn memory(bulk: Arc<Bulk>, is_own: bool) -> Self {
        Self::Memory { descriptor: bulk.descriptor(), bulk, is_own }
    }

    /// Of memory that nobody can change.
    pub(crate) fn frozen(engine: &hg::Engine, bytes: Frozen) -> Result<Self, hg::Error> {
        let bulk = Arc::new(engine.expose(bytes.clone(), Rights::READ)?);
        Ok(Self::Frozen { bytes, descriptor: bulk.descriptor(), bulk })
    }

    /// Of memory that is allocated now.
    pub(crate) fn allocate(engine: &hg::Engine, size: u64) -> Result<Self, String> {
        let text = |error: hg::Error| error.to_string();
        if size <= INLINE_MAX {
            return hg_bulk::zeroed(size).map(Self::Bytes).map_err(text);
        }
        let memory = hg_bulk::zeroed(size).map_err(text)?;
        let bulk = engine.expose(memory, Rights::READ).map_err(text)?;
        Ok(Self::memory(Arc::new(bulk), true))
    }

    /// Of what the root sends, and how long that is; `disk` makes the thread of one that is read.
    pub(crate) fn of_object(
        engine: &hg::Engine,
        object: Object,
        disk: impl FnOnce(Box<dyn Blocks>, u64) -> Result<Disk, Error>,
    ) -> Result<(Self, u64), Error> {
        Ok(match object {
            Object::Memory(memory) => {
                let size = memory.len();
                let small = if size <= INLINE_MAX { memory.into_vec() } else { Err(memory) };
                match small {
                    Ok(bytes) => (Self::Bytes(bytes), size),
                    Err(memory) => {
                        let bulk = engine.expose(memory, Rights::READ)?;
                        (Self::memory(Arc::new(bulk), true), size)
                    }
                }
            }
            Object::Frozen(bytes) => {
                let size = bytes.len() as u64;
                let is_small = size <= INLINE_MAX;
                (
                    if is_small {
                        Self::Bytes(bytes.to_vec())
                    } else {
                        Self::frozen(engine, bytes)?
                    },
                    size,
                )
            }
            Object::Registered(bulk) => {
                let size = bulk.len();
                (Self::memory(bulk, false), size)
            }
            Object::Blocks { from, size } => (Self::Disk(disk(from, size)?), size),
        })
    }

    /// Of what a receiver was told.
    pub(crate) fn of_destination(
        engine: &hg::Engine,
        destination: Destination,
        size: u64,
        disk: impl FnOnce(Box<dyn Blocks>) -> Result<Disk, Error>,
    ) -> Result<Self, String> {
        let text = |error: hg::Error| error.to_string();
        let long_enough = |len: u64| {
            let why = || format!("{size} bytes come, and there is room for {len}");
            (len >= size).then_some(()).ok_or_else(why)
        };
        match destination {
            Destination::Mapped if size > INLINE_MAX => Ok(Self::Unseen(size)),
            Destination::Allocate | Destination::Mapped => Self::allocate(engine, size),
            Destination::Memory(memory) => {
                long_enough(memory.len())?;
                let bulk = engine.expose(memory, Rights::READ).map_err(text)?;
                Ok(Self::memory(Arc::new(bulk), true))
            }
            Destination::Registered(bulk) => {
                long_enough(bulk.len())?;
                Ok(Self::memory(bulk, false))
            }
            Destination::Blocks(blocks) => {
                disk(blocks).map(Self::Disk).map_err(|error| error.to_string())
            }
        }
    }

    /// Bytes of memory that nobody has received yet.
    pub(crate) fn allocated(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Memory { bulk, is_own: true, .. } | Self::Frozen { bulk, .. } => bulk.len(),
            Self::Unseen(size) => *size,
            Self::Memory { .. } | Self::Disk(_) => 0,
        }
    }

    /// Where a block of memory is.
    pub(crate) fn place(&self, (offset, len): (u64, u64)) -> Result<Place, hg::Error> {
        match self {
            Self::Bytes(bytes) => Ok(Place::Inline(part(bytes, offset, len).to_vec())),
            Self::Memory { bulk, .. } if len <= INLINE_MAX => {
                let mut bytes = hg_bulk::zeroed(len)?;
                bulk.read(offset, &mut bytes)?;
                Ok(Place::Inline(bytes))
            }
            Self::Frozen { bytes, .. } if len <= INLINE_MAX => {
                Ok(Place::Inline(part(bytes, offset, len).to_vec()))
            }
            Self::Memory { descriptor, .. } | Self::Frozen { descriptor, .. } => {
                Ok(Place::At { memory: descriptor.clone(), offset })
            }
            Self::Unseen(_) | Self::Disk(_) => {
                Err(hg::Error::Unsupported("a place of what is not in memory"))
            }
        }
    }

    /// The checksum of a block of memory.
    pub(crate) fn checksum(&self, range: (u64, u64)) -> Result<u64, hg::Error> {
        let mut sum = Sum::default();
        self.add_to(&mut sum, range)?;
        Ok(sum.total())
    }

    /// Sums up bytes of memory that follow others.
    pub(crate) fn add_to(&self, sum: &mut Sum, (offset, len): (u64, u64)) -> Result<(), hg::Error> {
        match self {
            Self::Bytes(bytes) => sum.add(part(bytes, offset, len)),
            Self::Memory { bulk, .. } => return add_copied(sum, bulk, (offset, len)),
            Self::Frozen { bytes, .. } => sum.add(part(bytes, offset, len)),
            Self::Unseen(_) | Self::Disk(_) => {
                return Err(hg::Error::Unsupported("a checksum of what is not in memory"));
            }
        }
        Ok(())
    }

    /// A small block has come.
    pub(crate) fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), hg::Error> {
        match self {
            Self::Bytes(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                bytes[start..start + from.len()].copy_from_slice(from);
                Ok(())
            }
            Self::Memory { bulk, .. } => bulk.write(offset, from),
            Self::Frozen { .. } | Self::Unseen(_) | Self::Disk(_) => {
                Err(hg::Error::Unsupported("writing to what is not in memory"))
            }
        }
    }

    /// For the user.
    pub(crate) fn into_data(self) -> Option<Data> {
        match self {
            Self::Bytes(bytes) => Some(Data::Bytes(bytes)),
            Self::Memory { bulk, is_own: true, .. } => Arc::into_inner(bulk).map(Data::Memory),
            Self::Memory { bulk, .. } => Some(Data::Registered(bulk)),
            Self::Frozen { bytes, .. } => Some(Data::Frozen(bytes)),
            Self::Unseen(_) => None,
            Self::Disk(disk) => disk.into_blocks().map(Data::Blocks),
        }
    }

    pub(crate) fn disk(&mut self) -> Option<&mut Disk> {
        match self {
            Self::Disk(disk) => Some(disk),
            Self::Bytes(_) | Self::Memory { .. } | Self::Frozen { .. } | Self::Unseen(_) => None,
        }
    }
}

fn part(bytes: &[u8], offset: u64, len: u64) -> &[u8] {
    let [start, len] = [offset, len].map(|it| usize::try_from(it).unwrap_or(usize::MAX));
    &bytes[start..start + len]
}

/// Sums up bytes that peers may read, which are copied out to be seen.
fn add_copied(sum: &mut Sum, bulk: &Bulk, (offset, len): (u64, u64)) -> Result<(), hg::Error> {
    let (mut done, mut chunk) = (0, [0; CHUNK]);
    while done < len {
        let now = usize::try_from(len - done).map_or(CHUNK, |it| it.min(CHUNK));
        bulk.read(offset + done, &mut chunk[..now])?;
        sum.add(&chunk[..now]);
        done += now as u64;
    }
    Ok(())
}

/// Whether a small block is what it should be.
pub(crate) fn is_right(bytes: &[u8], header: &Header, block: u64, checksum: Option<u64>) -> bool {
    bytes.len() as u64 == header.range(block).1
        && checksum.is_none_or(|it| it == checksum::of(bytes))
}
