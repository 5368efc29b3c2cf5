//! Memory that takes part in one-sided transfers: owned, registered, described to others.

use std::{any::Any, fmt, sync::Arc};

use crate::Error;

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

/// Any owner of stable bytes.
///
/// Nobody can reach the bytes through this value, so that a region may be written by others while
/// it is registered; unregistering gives the owner back ([`Memory::into_vec`]).
pub struct Memory {
    segments: Vec<Segment>,
    writable: bool,
    owner: Owner,
}

enum Owner {
    One(Vec<u8>),
    Many(Vec<Vec<u8>>),
    Shared(Arc<[u8]>),
}

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
            owner @ (Owner::Many(_) | Owner::Shared(_)) => Err(Self { owner, ..self }),
        }
    }

    /// The vectors that it was made of, one a segment.
    ///
    /// # Errors
    /// The memory itself when it was made of something else.
    pub fn into_vecs(self) -> Result<Vec<Vec<u8>>, Self> {
        match self.owner {
            Owner::Many(pieces) => Ok(pieces),
            owner @ (Owner::One(_) | Owner::Shared(_)) => Err(Self { owner, ..self }),
        }
    }

    /// The shared slice that it was made of.
    ///
    /// # Errors
    /// The memory itself when it was made of something else.
    pub fn into_shared(self) -> Result<Arc<[u8]>, Self> {
        match self.owner {
            Owner::Shared(bytes) => Ok(bytes),
            owner @ (Owner::One(_) | Owner::Many(_)) => Err(Self { owner, ..self }),
        }
    }
}

fn segment_of(bytes: &mut Vec<u8>) -> Segment {
    Segment { address: bytes.as_mut_ptr().expose_provenance(), len: bytes.len() }
}

impl From<Vec<u8>> for Memory {
    fn from(mut bytes: Vec<u8>) -> Self {
        Self { segments: vec![segment_of(&mut bytes)], writable: true, owner: Owner::One(bytes) }
    }
}

impl From<Vec<Vec<u8>>> for Memory {
    fn from(mut pieces: Vec<Vec<u8>>) -> Self {
        let segments = pieces.iter_mut().map(segment_of).collect();
        Self { segments, writable: true, owner: Owner::Many(pieces) }
    }
}

impl From<Arc<[u8]>> for Memory {
    fn from(bytes: Arc<[u8]>) -> Self {
        let segment = Segment { address: bytes.as_ptr().expose_provenance(), len: bytes.len() };
        Self { segments: vec![segment], writable: false, owner: Owner::Shared(bytes) }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Memory({} bytes in {} segments)", self.len(), self.segments.len())
    }
}

/// A plugin's side of a registered region.
pub trait RegionState: Any + Send + Sync + fmt::Debug {
    /// Size in bytes.
    fn len(&self) -> u64;
    /// Whether it has no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// What peers may do.
    fn rights(&self) -> Rights;
    /// What a peer needs to reach it.
    fn descriptor(&self) -> Descriptor;
    /// Copies bytes out, in one go; peers may be writing them.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error>;
    /// Copies bytes in.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], or [`Error::Denied`] when the memory is not writable.
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error>;
    /// Ends all access by peers, waiting (bounded) for those in the middle of one.
    ///
    /// # Errors
    /// [`Error::RegionBusy`] while an own operation uses it.
    fn unregister(self: Arc<Self>) -> Result<Memory, Error>;
}

/// Registered memory, usable by every context of the domain that made it.
///
/// Dropping it unregisters it as soon as the operations that use it are done.
#[derive(Debug)]
pub struct Region(Arc<dyn RegionState>);

impl Region {
    /// For plugins.
    #[must_use]
    pub fn new(state: Arc<dyn RegionState>) -> Self {
        Self(state)
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Whether it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What peers may do.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.0.rights()
    }

    /// What a peer needs to reach it.
    #[must_use]
    pub fn descriptor(&self) -> Descriptor {
        self.0.descriptor()
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.0.read(offset, into)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Denied`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.0.write(offset, from)
    }

    /// A range of it, for an operation.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice(&self, offset: u64, len: u64) -> Result<LocalSlice, Error> {
        check_range(offset, len, self.len())?;
        Ok(LocalSlice { region: Arc::clone(&self.0), offset, len })
    }

    /// Ends all access and gives the memory back.
    ///
    /// # Errors
    /// [`Error::RegionBusy`] while an operation in flight uses it; it is then unregistered when
    /// that operation is dropped, and its memory freed.
    pub fn unregister(self) -> Result<Memory, Error> {
        self.0.unregister()
    }
}

fn check_range(offset: u64, len: u64, size: u64) -> Result<(), Error> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(Error::OutOfRange { offset, len, size }),
    }
}

/// A range of a registered region of this process.
#[derive(Debug, Clone)]
pub struct LocalSlice {
    region: Arc<dyn RegionState>,
    offset: u64,
    len: u64,
}

impl LocalSlice {
    /// The plugin's side; plugins find their own type through `Any`.
    #[must_use]
    pub fn region(&self) -> &Arc<dyn RegionState> {
        &self.region
    }

    /// First byte.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Longest plugin part of a descriptor in bytes.
pub const DESCRIPTOR_MAX: usize = 128;

/// What names a region of another process: size, rights, and the plugin's own bytes with an
/// unguessable token. A claim until the plugin has checked it.
///
/// # Layout (little-endian)
/// | offset | size | field |
/// |---:|---:|---|
/// | 0 | 1 | version, 1 |
/// | 1 | 1 | rights |
/// | 2 | 2 | length of the plugin's bytes |
/// | 4 | 8 | size of the region in bytes |
/// | 12 | ... | the plugin's bytes |
#[derive(Clone, PartialEq, Eq)]
pub struct Descriptor {
    len: u64,
    rights: Rights,
    opaque: Arc<[u8]>,
}

const DESCRIPTOR_VERSION: u8 = 1;
const DESCRIPTOR_HEADER: usize = 12;

impl Descriptor {
    /// For plugins.
    ///
    /// # Panics
    /// When `opaque` is over [`DESCRIPTOR_MAX`]: the plugin's own bug.
    #[must_use]
    pub fn new(len: u64, rights: Rights, opaque: &[u8]) -> Self {
        assert!(opaque.len() <= DESCRIPTOR_MAX, "a descriptor holds {DESCRIPTOR_MAX} bytes");
        Self { len, rights, opaque: Arc::from(opaque) }
    }

    /// Size of the region in bytes, as claimed.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the region has no byte, as claimed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Rights, as claimed.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The plugin's bytes.
    #[must_use]
    pub fn opaque(&self) -> &[u8] {
        &self.opaque
    }

    /// A range of it, for an operation.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice(&self, offset: u64, len: u64) -> Result<RemoteSlice, Error> {
        check_range(offset, len, self.len)?;
        Ok(RemoteSlice { descriptor: self.clone(), offset, len })
    }

    /// The wire form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let opaque_len = u16::try_from(self.opaque.len()).expect("DESCRIPTOR_MAX fits in a u16");
        let mut bytes = Vec::with_capacity(DESCRIPTOR_HEADER + self.opaque.len());
        bytes.extend([DESCRIPTOR_VERSION, self.rights.bits()]);
        bytes.extend(opaque_len.to_le_bytes());
        bytes.extend(self.len.to_le_bytes());
        bytes.extend(&*self.opaque);
        bytes
    }

    /// Reads the wire form; nothing may follow it.
    ///
    /// # Errors
    /// [`Error::BadDescriptor`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let Some((header, opaque)) = bytes.split_first_chunk::<DESCRIPTOR_HEADER>() else {
            return Err(Error::BadDescriptor("it is cut short"));
        };
        let [version, rights, len_0, len_1, size @ ..] = *header;
        if version != DESCRIPTOR_VERSION {
            return Err(Error::BadDescriptor("its version is unknown"));
        }
        let rights =
            Rights::from_bits(rights).ok_or(Error::BadDescriptor("it claims unknown rights"))?;
        let opaque_len = usize::from(u16::from_le_bytes([len_0, len_1]));
        if opaque_len > DESCRIPTOR_MAX || opaque_len != opaque.len() {
            return Err(Error::BadDescriptor("its length is wrong"));
        }
        Ok(Self { len: u64::from_le_bytes(size), rights, opaque: Arc::from(opaque) })
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Descriptor({} bytes, {:?})", self.len, self.rights)
    }
}

/// A range of a peer's region.
#[derive(Debug, Clone)]
pub struct RemoteSlice {
    descriptor: Descriptor,
    offset: u64,
    len: u64,
}

impl RemoteSlice {
    /// The region.
    #[must_use]
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// First byte.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_survives_its_wire_form() {
        let descriptor = Descriptor::new(77, Rights::READ, b"token");
        assert_eq!(Descriptor::decode(&descriptor.encode()).unwrap(), descriptor);
    }

    #[test]
    fn truncated_and_lengthened_descriptors_are_refused() {
        let bytes = Descriptor::new(77, Rights::all(), &[9; DESCRIPTOR_MAX]).encode();
        for len in 0..bytes.len() {
            assert!(Descriptor::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        assert!(Descriptor::decode(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn ranges_that_wrap_are_outside() {
        let descriptor = Descriptor::new(16, Rights::READ, b"");
        assert!(descriptor.slice(8, 8).is_ok());
        assert!(descriptor.slice(9, 8).is_err());
        assert!(descriptor.slice(u64::MAX, 2).is_err());
    }

    #[test]
    fn memory_gives_its_owner_back() {
        assert_eq!(Memory::from(vec![1, 2]).into_vec().unwrap(), [1, 2]);
        let shared: Arc<[u8]> = Arc::from([3u8].as_slice());
        assert!(!Memory::from(Arc::clone(&shared)).writable());
        assert!(Memory::from(shared).into_vec().is_err());
    }
}
