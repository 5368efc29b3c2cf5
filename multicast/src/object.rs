//! What is sent, where it goes, what comes of it.

use std::{fmt, fs::File, io, os::unix::fs::FileExt as _, sync::Arc};

use hg::bulk::{Bulk, Frozen, Memory};

/// What the root sends. Memory and vectors become one by themselves ([`From`]).
pub enum Object {
    /// Memory, registered now and as long as it is sent.
    Memory(Memory),
    /// Memory that was registered with [`Multicast::engine`](crate::Multicast::engine) before, readable by others. It may be used by others
    /// at the same time, and must not change until it was sent.
    Registered(Arc<Bulk>),
    /// Memory that nobody can change: receivers of this node may map it ([`Destination::Mapped`]).
    Frozen(Frozen),
    /// Read by blocks as it goes, on a thread of its own; never in memory as a whole.
    Blocks {
        /// Where it is read from.
        from: Box<dyn Blocks>,
        /// Its size in bytes.
        size: u64,
    },
}

impl Object {
    /// A file as long as it is now.
    ///
    /// # Errors
    /// Its length cannot be had.
    pub fn file(file: File) -> io::Result<Self> {
        let size = file.metadata()?.len();
        Ok(Self::Blocks { from: Box::new(file), size })
    }
}

impl From<Vec<u8>> for Object {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Memory(bytes.into())
    }
}

impl From<Memory> for Object {
    fn from(memory: Memory) -> Self {
        Self::Memory(memory)
    }
}

impl From<Frozen> for Object {
    fn from(memory: Frozen) -> Self {
        Self::Frozen(memory)
    }
}

impl From<Arc<Bulk>> for Object {
    fn from(memory: Arc<Bulk>) -> Self {
        Self::Registered(memory)
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(memory) => write!(out, "Object({} bytes of memory)", memory.len()),
            Self::Registered(memory) => write!(out, "Object({} registered bytes)", memory.len()),
            Self::Frozen(memory) => write!(out, "Object({} frozen bytes)", memory.len()),
            Self::Blocks { size, .. } => write!(out, "Object({size} bytes to be read)"),
        }
    }
}

/// Where an object is read and written by blocks: a file, mostly. Used by one thread, which may block.
pub trait Blocks: Send {
    /// Reads bytes that are there: of the root's object, or that were written.
    ///
    /// # Errors
    /// They cannot be read: the group fails, and says why.
    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes a block that has come, in any order of offsets, each once.
    ///
    /// # Errors
    /// It cannot be written: the group fails, and says why.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Whether a block is here already, from an earlier attempt, so that it need not come: asked once for each block.
    /// `checksum` is the XXH3-64 (seed 0) of its `len` bytes.
    ///
    /// # Errors
    /// It cannot be known: the block comes.
    fn holds(&mut self, _offset: u64, _len: u64, _checksum: u64) -> io::Result<bool> {
        Ok(false)
    }

    /// The object is whole and verified; called before it is said to be so.
    ///
    /// # Errors
    /// It is not: the group fails, and says why.
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Blocks for File {
    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(into, offset)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }
}

/// An object that begins to come.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// The root's number of it, from 0. A root that follows a dead one begins at 2^32 for each group before: at 2^32 in the second group, at
    /// 2^33 in the third.
    pub number: u64,
    /// In bytes.
    pub size: u64,
    /// Of all blocks but the last.
    pub block_size: u64,
    /// What the root has put in front of it.
    pub metadata: &'a [u8],
}

/// Where an object goes.
#[non_exhaustive]
pub enum Destination {
    /// Into memory that is allocated now: [`Data::Memory`], or [`Data::Bytes`] where it is small.
    Allocate,
    /// Not copied where that can be: memory of a process of this node that nobody can change ([`Object::Frozen`]), and no other, is mapped,
    /// with the same bytes for all its receivers here ([`Data::Frozen`]). All else is copied, and comes as [`Data::Memory`], or as
    /// [`Data::Frozen`] where memory of this node was copied as a whole; small objects, empty ones among them, as [`Data::Bytes`]. What
    /// comes over a network is allocated, as by [`Allocate`](Self::Allocate).
    Mapped,
    /// Into this memory, writable and at least as long as the object: [`Data::Memory`].
    Memory(Memory),
    /// Into memory that was registered with [`Multicast::engine`](crate::Multicast::engine) before, readable by others, and at least as
    /// long: [`Data::Registered`]. Where a group has failed meanwhile, nothing more comes to its memory while [`Bulk::is_in_use`], nor should
    /// anything else be done with it.
    Registered(Arc<Bulk>),
    /// By blocks into this, on a thread of its own: [`Data::Blocks`]. It is read, too, when a block is passed on.
    Blocks(Box<dyn Blocks>),
}

impl fmt::Debug for Destination {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Allocate => "Allocate",
            Self::Mapped => "Mapped",
            Self::Memory(_) => "Memory",
            Self::Registered(_) => "Registered",
            Self::Blocks(_) => "Blocks",
        })
    }
}

/// An object that has come whole.
#[derive(Debug)]
pub struct Received {
    /// The root's number of it, from 0. A root that follows a dead one begins at 2^32 for each group before: at 2^32 in the second group, at
    /// 2^33 in the third.
    pub number: u64,
    /// In bytes.
    pub size: u64,
    /// What the root has put in front of it.
    pub metadata: Vec<u8>,
    /// Itself.
    pub data: Data,
}

/// Where it is.
pub enum Data {
    /// In memory that this process alone has; [`Bulk::into_vec`] makes a vector of it, without a copy where it was one.
    Memory(Bulk),
    /// It is small, and was allocated here.
    Bytes(Vec<u8>),
    /// In the memory that was given.
    Registered(Arc<Bulk>),
    /// In memory that nobody can change: mapped, where that can be.
    Frozen(Frozen),
    /// Where it was written. After a failure a block of it may be read for somebody still: its first use waits for that.
    Blocks(Box<dyn Blocks>),
}

impl fmt::Debug for Data {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(memory) => write!(out, "Memory({memory:?})"),
            Self::Bytes(bytes) => write!(out, "Bytes({})", bytes.len()),
            Self::Registered(memory) => write!(out, "Registered({memory:?})"),
            Self::Frozen(memory) => write!(out, "{memory:?}"),
            Self::Blocks(_) => out.write_str("Blocks"),
        }
    }
}

impl Data {
    /// All of it as a vector, without a copy where it was allocated here; `None` where it is in no memory.
    ///
    /// # Errors
    /// The transport holds on to the memory.
    pub fn into_vec(self) -> Result<Option<Vec<u8>>, hg::Error> {
        match self {
            Self::Bytes(bytes) => Ok(Some(bytes)),
            Self::Memory(memory) => match memory.into_vec() {
                Ok(bytes) => Ok(Some(bytes)),
                Err(busy) => match busy.into_bulk() {
                    Some(memory) => memory.to_vec().map(Some),
                    None => Err(hg::Error::RegionBusy),
                },
            },
            Self::Registered(memory) => memory.to_vec().map(Some),
            Self::Frozen(memory) => Ok(Some(memory.to_vec())),
            Self::Blocks(_) => Ok(None),
        }
    }
}
