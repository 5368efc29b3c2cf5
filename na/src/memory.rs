//! Memory that takes part in one-sided transfers: owned, registered, described to others.

use std::{
    any::Any,
    fmt,
    sync::{Arc, RwLock},
};

use crate::{Frozen, SharedBytes};

bitflags::bitflags! {
    /// What peers may do with a region.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Rights: u8 {
        /// Peers may get.
        const READ = 1;
        /// Peers may put.
        const WRITE = 2;
    }
}

/// The names of what is granted: `READ | WRITE`, or `nothing`.
impl fmt::Display for Rights {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            out.write_str("nothing")
        } else {
            bitflags::parser::to_writer(self, out)
        }
    }
}

/// One run of bytes in this process's address space.
///
/// The address is exposed provenance ([`std::ptr::with_exposed_provenance`]): plugins turn it into a
/// pointer only while they hold the [`Memory`] that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Address of the first byte.
    pub address: usize,
    /// Length in bytes.
    pub len: usize,
}

/// Where bytes lie that cards may reach and processors may not: memory of an accelerator (`FI_HMEM` of libfabric).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// CUDA's, of the device with this number (`cudaMalloc`).
    Cuda(i32),
    /// ROCm's (`hipMalloc`).
    Rocm,
    /// Level Zero's, of the device with this number (`zeMemAllocDevice`).
    LevelZero(i32),
}

/// Any owner of stable bytes.
///
/// Nobody can reach the bytes through this value, so that a region may be written by others while
/// it is registered; unregistering gives the owner back ([`Memory::into_vec`]).
pub struct Memory {
    segments: Vec<Segment>,
    writable: bool,
    device: Option<Device>,
    exclusion: Arc<RwLock<()>>,
    owner: Owner,
}

enum Owner {
    One(Vec<u8>),
    Many(Vec<Vec<u8>>),
    Shared(Arc<[u8]>),
    Frozen(SharedBytes),
    Kept(Keeper),
    Alias(Arc<Memory>),
}

/// What keeps memory alive that is neither a vector nor a shared slice: a mapping, an array of C's.
pub type Keeper = Arc<dyn Any + Send + Sync>;

impl Memory {
    /// Its pieces, in order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Sum of the segments' lengths in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.segments.iter().map(|segment| segment.len as u64).sum()
    }

    /// Whether it holds no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether [`Rights::WRITE`] may be granted and a get may land here.
    #[must_use]
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// The vector that it was made of.
    ///
    /// # Errors
    /// The memory itself when it was made of something else.
    pub fn into_vec(self) -> Result<Vec<u8>, Self> {
        match self.owner {
            Owner::One(bytes) => Ok(bytes),
            owner => Err(Self { owner, ..self }),
        }
    }

    /// The vectors that it was made of, one a segment.
    ///
    /// # Errors
    /// The memory itself when it was made of something else.
    pub fn into_vecs(self) -> Result<Vec<Vec<u8>>, Self> {
        match self.owner {
            Owner::Many(pieces) => Ok(pieces),
            owner => Err(Self { owner, ..self }),
        }
    }

    /// The shared slice that it was made of.
    ///
    /// # Errors
    /// The memory itself when it was made of something else.
    pub fn into_shared(self) -> Result<Arc<[u8]>, Self> {
        match self.owner {
            Owner::Shared(bytes) => Ok(bytes),
            owner => Err(Self { owner, ..self }),
        }
    }

    /// A vector without its first bytes: what lies in front of them is nobody's to transfer, and nothing is copied.
    ///
    /// # Panics
    /// When it has no such byte.
    #[must_use]
    pub fn tail(mut bytes: Vec<u8>, start: usize) -> Self {
        let rest = &mut bytes[start..];
        let segment = Segment { address: rest.as_mut_ptr().expose_provenance(), len: rest.len() };
        Self { segments: vec![segment], ..Self::from(bytes) }
    }

    /// Memory of any other kind: a mapping, an array of C's or Fortran's.
    ///
    /// # Safety
    /// Until `keeper` is dropped, each segment is one run of initialised bytes that stays where it is;
    /// its address is exposed provenance, from a mutable pointer if `writable`; and nobody holds a
    /// reference to a byte of it, nor accesses one without [`Memory::exclusion`] in this process.
    #[expect(
        unsafe_code,
        reason = "declares what only the caller can promise; does nothing unsafe"
    )]
    #[must_use]
    pub unsafe fn from_raw_parts(segments: Vec<Segment>, writable: bool, keeper: Keeper) -> Self {
        let owner = Owner::Kept(keeper);
        Self { segments, writable, device: None, exclusion: Arc::default(), owner }
    }

    /// Memory of a device. Nothing here reads or writes it: transports that reach it by a card move it
    /// ([`crate::Caps::device_memory`]), everything else refuses it by name.
    ///
    /// # Safety
    /// Until `keeper` is dropped, each segment is one run of that device's memory, which stays where it is, and which a card may read,
    /// and write if `writable`.
    #[expect(
        unsafe_code,
        reason = "declares what only the caller can promise; does nothing unsafe"
    )]
    #[must_use]
    pub unsafe fn on_device(
        device: Device,
        segments: Vec<Segment>,
        writable: bool,
        keeper: Keeper,
    ) -> Self {
        let owner = Owner::Kept(keeper);
        Self { segments, writable, device: Some(device), exclusion: Arc::default(), owner }
    }

    /// The device whose memory it is; `None`: the processor's.
    #[must_use]
    pub fn device(&self) -> Option<Device> {
        self.device
    }

    /// The same bytes once more, for a second plugin: `original` stays alive with it, and copies by
    /// either exclude one another.
    #[must_use]
    pub fn alias(original: &Arc<Self>) -> Self {
        Self {
            segments: original.segments.clone(),
            writable: original.writable,
            device: original.device,
            exclusion: Arc::clone(&original.exclusion),
            owner: Owner::Alias(Arc::clone(original)),
        }
    }

    /// The same for a run of its segments: a transport that takes fewer at a time gets them in parts.
    ///
    /// # Panics
    /// When it has no such segments.
    #[must_use]
    pub fn alias_part(original: &Arc<Self>, segments: std::ops::Range<usize>) -> Self {
        Self { segments: original.segments[segments].to_vec(), ..Self::alias(original) }
    }

    /// The memory that this is an alias of.
    ///
    /// # Errors
    /// The memory itself when it is none.
    pub fn into_original(self) -> Result<Arc<Self>, Self> {
        match self.owner {
            Owner::Alias(original) => Ok(original),
            owner => Err(Self { owner, ..self }),
        }
    }

    /// What keeps it alive, when it was made by [`Memory::from_raw_parts`]; also through aliases.
    #[must_use]
    pub fn keeper(&self) -> Option<&Keeper> {
        match &self.owner {
            Owner::Kept(keeper) => Some(keeper),
            Owner::Alias(original) => original.keeper(),
            Owner::One(_) | Owner::Many(_) | Owner::Shared(_) | Owner::Frozen(_) => None,
        }
    }

    /// The shared slice that it was made of, which nobody can write; also through aliases of all of it.
    #[must_use]
    pub fn shared(&self) -> Option<&Arc<[u8]>> {
        match &self.owner {
            Owner::Shared(bytes) => Some(bytes),
            Owner::Alias(original) if original.segments == self.segments => original.shared(),
            Owner::Alias(_)
            | Owner::One(_)
            | Owner::Many(_)
            | Owner::Frozen(_)
            | Owner::Kept(_) => None,
        }
    }

    /// The frozen bytes that it was made of; also through aliases of all of it.
    #[must_use]
    pub fn frozen(&self) -> Option<&SharedBytes> {
        match &self.owner {
            Owner::Frozen(bytes) => Some(bytes),
            Owner::Alias(original) if original.segments == self.segments => original.frozen(),
            Owner::Alias(_)
            | Owner::One(_)
            | Owner::Many(_)
            | Owner::Shared(_)
            | Owner::Kept(_) => None,
        }
    }

    /// Whether it was made of a list of vectors, be it of one; also through aliases.
    #[must_use]
    pub fn is_list(&self) -> bool {
        match &self.owner {
            Owner::Many(_) => true,
            Owner::Alias(original) => original.is_list(),
            Owner::One(_) | Owner::Shared(_) | Owner::Frozen(_) | Owner::Kept(_) => false,
        }
    }

    /// Whether something of another kind than vectors and a shared slice keeps it alive: whose `Drop` may be anybody's, and
    /// which a forked child may lack.
    #[must_use]
    pub fn is_kept_by_others(&self) -> bool {
        match &self.owner {
            Owner::Kept(_) | Owner::Frozen(_) => true,
            Owner::Alias(original) => original.is_kept_by_others(),
            Owner::One(_) | Owner::Many(_) | Owner::Shared(_) => false,
        }
    }

    /// What kept it alive, when it was made by [`Memory::from_raw_parts`].
    ///
    /// # Errors
    /// The memory itself when it was made of something else.
    pub fn into_keeper(self) -> Result<Keeper, Self> {
        match self.owner {
            Owner::Kept(keeper) => Ok(keeper),
            owner => Err(Self { owner, ..self }),
        }
    }

    /// Held by whoever copies in this process: shared to read the bytes, exclusively to write them.
    #[must_use]
    pub fn exclusion(&self) -> &RwLock<()> {
        &self.exclusion
    }
}

fn segment_of(bytes: &mut Vec<u8>) -> Segment {
    Segment { address: bytes.as_mut_ptr().expose_provenance(), len: bytes.len() }
}

impl From<Vec<u8>> for Memory {
    fn from(mut bytes: Vec<u8>) -> Self {
        let segments = vec![segment_of(&mut bytes)];
        let owner = Owner::One(bytes);
        Self { segments, writable: true, device: None, exclusion: Arc::default(), owner }
    }
}

impl From<Vec<Vec<u8>>> for Memory {
    fn from(mut pieces: Vec<Vec<u8>>) -> Self {
        let segments = pieces.iter_mut().map(segment_of).collect();
        let owner = Owner::Many(pieces);
        Self { segments, writable: true, device: None, exclusion: Arc::default(), owner }
    }
}

impl From<Arc<[u8]>> for Memory {
    fn from(bytes: Arc<[u8]>) -> Self {
        let segments =
            vec![Segment { address: bytes.as_ptr().expose_provenance(), len: bytes.len() }];
        let owner = Owner::Shared(bytes);
        Self { segments, writable: false, device: None, exclusion: Arc::default(), owner }
    }
}

/// Of the bytes, not of what is kept beside them ([`Frozen::made_for`]), which may hold this memory.
impl From<&Frozen> for Memory {
    fn from(frozen: &Frozen) -> Self {
        let bytes = frozen.bytes().clone();
        // As long as `bytes` lives its slice does, and stays where it is: a borrow of `bytes` could last as long.
        let slice = bytes.as_slice().unwrap_or_default();
        let segment = Segment { address: slice.as_ptr().expose_provenance(), len: slice.len() };
        let (segments, owner) = (vec![segment], Owner::Frozen(bytes));
        Self { segments, writable: false, device: None, exclusion: Arc::default(), owner }
    }
}

impl From<Frozen> for Memory {
    fn from(frozen: Frozen) -> Self {
        Self::from(&frozen)
    }
}

impl TryFrom<Memory> for Frozen {
    type Error = Memory;

    /// Back from [`Memory`]; which comes back when it was made of something else.
    fn try_from(memory: Memory) -> Result<Self, Memory> {
        let bytes = match &memory.owner {
            Owner::Frozen(bytes) => bytes.clone(),
            _ => return Err(memory),
        };
        Self::try_from(bytes).map_err(|_in_a_child| memory)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Memory({} bytes in {} segments)", self.len(), self.segments.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_written_by_their_names() {
        let all = [Rights::empty(), Rights::READ, Rights::WRITE, Rights::all()];
        let said = all.map(|rights| rights.to_string());
        assert_eq!(said, ["nothing", "READ", "WRITE", "READ | WRITE"]);
    }

    #[test]
    fn memory_gives_its_owner_back() {
        assert_eq!(Memory::from(vec![1, 2]).into_vec().unwrap(), [1, 2]);
        let shared: Arc<[u8]> = Arc::from([3u8].as_slice());
        let memory = Arc::new(Memory::from(Arc::clone(&shared)));
        assert!(!memory.writable());
        assert!(Arc::ptr_eq(Memory::alias(&memory).shared().unwrap(), &shared));
        assert!(Memory::alias_part(&memory, 0..0).shared().is_none());
        assert!(Memory::from(shared).into_vec().is_err());
    }

    #[test]
    fn aliases_keep_the_original_alive_and_share_its_exclusion() {
        let original = Arc::new(Memory::from(vec![1, 2]));
        let alias = Memory::alias(&original);
        assert_eq!(alias.segments(), original.segments());
        let held = original.exclusion().write().unwrap();
        assert!(alias.exclusion().try_read().is_err());
        drop(held);
        drop(original);
        let original = Arc::try_unwrap(alias.into_original().unwrap()).unwrap();
        assert_eq!(original.into_vec().unwrap(), [1, 2]);
    }

    #[test]
    fn a_tail_lies_where_it_lay_and_gives_all_back() {
        let bytes = vec![1, 2, 3, 4];
        let place = bytes.as_ptr().addr();
        let tail = Memory::tail(bytes, 1);
        assert_eq!(tail.segments(), [Segment { address: place + 1, len: 3 }]);
        assert_eq!(tail.into_vec().unwrap(), [1, 2, 3, 4]);
        assert!(Memory::tail(vec![1], 1).is_empty());
    }

    #[test]
    fn a_part_has_its_segments_only() {
        let original = Arc::new(Memory::from(vec![vec![1], vec![2, 3], vec![4]]));
        let part = Memory::alias_part(&original, 1..3);
        assert_eq!(part.segments(), &original.segments()[1..]);
        assert_eq!((part.len(), part.writable()), (3, true));
    }
}
