//! What names a region of another process, and ranges of it.

use std::{fmt, ops::Range, sync::Arc};

use crate::{Error, Rights, region::check_range};

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
#[derive(Clone)]
pub struct Descriptor {
    len: u64,
    rights: Rights,
    opaque: Opaque,
}

/// The plugin's bytes.
#[derive(Clone)]
enum Opaque {
    /// A few, as most are: no memory of their own, no counting.
    Here { len: u8, bytes: [u8; HERE_MAX] },
    /// More, shared by all clones; these of them.
    Shared(Arc<[u8]>, Range<u32>),
}

/// Bytes that stand in the descriptor itself.
const HERE_MAX: usize = 46;

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
        Self::of(len, rights, opaque)
    }

    #[inline]
    fn of(len: u64, rights: Rights, opaque: &[u8]) -> Self {
        let opaque = Opaque::here(opaque).unwrap_or_else(|| {
            let end = u32::try_from(opaque.len()).expect("DESCRIPTOR_MAX fits in a u32");
            Opaque::Shared(Arc::from(opaque), 0..end)
        });
        Self { len, rights, opaque }
    }

    /// The same region with a part of the plugin's bytes, which are shared: for a plugin that is made of
    /// others. `None` when the range is outside.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Option<Self> {
        let part = self.opaque().get(range.clone())?;
        let opaque = match (&self.opaque, Opaque::here(part)) {
            (_, Some(here)) => here,
            (Opaque::Shared(bytes, all), None) => {
                let place = |at: usize| Some(all.start + u32::try_from(at).ok()?);
                Opaque::Shared(Arc::clone(bytes), place(range.start)?..place(range.end)?)
            }
            (Opaque::Here { .. }, None) => return None, // A part is not longer.
        };
        Some(Self { opaque, ..*self })
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
    #[inline]
    pub fn opaque(&self) -> &[u8] {
        match &self.opaque {
            Opaque::Here { len, bytes } => &bytes[..usize::from(*len)],
            Opaque::Shared(bytes, range) => &bytes[range.start as usize..range.end as usize],
        }
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
        let opaque_len = u16::try_from(self.opaque().len()).expect("DESCRIPTOR_MAX fits in a u16");
        let mut bytes = Vec::with_capacity(DESCRIPTOR_HEADER + self.opaque().len());
        bytes.extend([DESCRIPTOR_VERSION, self.rights.bits()]);
        bytes.extend(opaque_len.to_le_bytes());
        bytes.extend(self.len.to_le_bytes());
        bytes.extend(self.opaque());
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
        let Some(rights) = Rights::from_bits(rights) else {
            return Err(Error::BadDescriptor("it claims unknown rights"));
        };
        let opaque_len = usize::from(u16::from_le_bytes([len_0, len_1]));
        if opaque_len > DESCRIPTOR_MAX || opaque_len != opaque.len() {
            return Err(Error::BadDescriptor("its length is wrong"));
        }
        Ok(Self::of(u64::from_le_bytes(size), rights, opaque))
    }
}

impl Opaque {
    /// `None` when they are too many.
    #[inline]
    fn here(opaque: &[u8]) -> Option<Self> {
        let mut bytes = [0; HERE_MAX];
        bytes.get_mut(..opaque.len())?.copy_from_slice(opaque);
        Some(Self::Here { len: u8::try_from(opaque.len()).ok()?, bytes })
    }
}

impl PartialEq for Descriptor {
    fn eq(&self, other: &Self) -> bool {
        (self.len, self.rights, self.opaque()) == (other.len, other.rights, other.opaque())
    }
}

impl Eq for Descriptor {}

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
    fn a_part_is_a_descriptor_of_its_own() {
        let whole = Descriptor::new(77, Rights::READ, b"one+two");
        let part = whole.part(4..7).unwrap();
        assert_eq!(part, Descriptor::new(77, Rights::READ, b"two"));
        assert_eq!(Descriptor::decode(&part.encode()).unwrap(), part);
        assert_eq!(part.part(1..2).unwrap().opaque(), b"w");
        assert!(whole.part(4..8).is_none() && part.part(0..4).is_none());
    }

    #[test]
    fn parts_of_any_length_are_the_bytes_of_their_range() {
        let bytes: Vec<u8> = (0..128).collect();
        let whole = Descriptor::new(77, Rights::READ, &bytes);
        let end = whole.part(20..128).unwrap();
        for (start, len) in [(0, 108), (8, 100), (8, HERE_MAX), (8, HERE_MAX + 1), (108, 0)] {
            let part = end.part(start..start + len).unwrap();
            assert_eq!(part.opaque(), &bytes[20 + start..][..len]);
        }
        assert!(end.part(8..109).is_none());
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
}
