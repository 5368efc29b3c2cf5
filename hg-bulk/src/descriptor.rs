//! What names memory of some process, to be sent in any RPC.
//!
//! # Layout (little-endian)
//! | offset | size | field |
//! |---:|---:|---|
//! | 0 | 1 | version, 1 |
//! | 1 | 1 | flags: 1 *bound* (the owner's address follows), 2 *eager* (the bytes themselves follow) |
//! | 2 | 1 | rights |
//! | 3 | 1 | length of the scheme, at most 16; 0 exactly when there are no regions |
//! | 4 | 4 | count of regions; 0 for memory without a byte, and for eager descriptors |
//! | 8 | 8 | size of the memory in bytes: the sum of the regions', or of the eager bytes |
//! | 16 | ... | scheme of the transport whose regions these are |
//! | | ... | each region: length `u16`, then an [`hg_na::Descriptor`] with the same rights |
//! | | ... | when bound: length `u16`, then the address |
//! | | ... | when eager: the bytes; read-only memory only |
//!
//! Nothing may follow. Every length and count is checked against the bytes that are there before anything is
//! allocated or copied. What is decoded stays a claim: the transport checks it, by the tokens of its regions.

use std::{fmt, num::NonZeroU32, sync::Arc};

use hg_na::{ADDRESS_MAX, Address, Descriptor as Region, Error, Rights};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{RemoteRange, recent, wire::Wire};

/// Longest scheme of a transport in bytes.
pub const SCHEME_MAX: usize = 16;

/// Longest descriptor of one region that a thread remembers.
const PLAIN_MAX: usize = 256;

const VERSION: u8 = 1;
const BOUND: u8 = 1;
const EAGER: u8 = 2;
const HEADER: usize = 16;
/// The shortest region: its length, and a descriptor without bytes of the transport's.
const REGION_MIN: usize = 2 + 12;

/// Names memory of some process: size, rights, regions with their unguessable tokens. A claim until the
/// transport has checked it.
///
/// It travels in any RPC, as bytes, and may be forwarded: a third process that is to find the owner needs a
/// *bound* one, which holds the owner's address. An *eager* one holds the bytes themselves, as they were
/// when it was made: pulling them asks nobody. Cheap to clone.
#[derive(Clone)]
pub struct Descriptor(Arc<Inner>);

struct Inner {
    /// The wire form.
    wire: Wire,
    rights: Rights,
    /// Bytes of the scheme, which stands behind the header.
    scheme_len: u8,
    /// Where the eager bytes begin in the wire form: behind header and address.
    eager: Option<NonZeroU32>,
    len: u64,
    regions: Parts,
    owner: Option<Address>,
}

/// The transport's parts; most memory is one.
enum Parts {
    None,
    One(Region),
    Many(Vec<Region>),
}

impl Parts {
    fn as_slice(&self) -> &[Region] {
        match self {
            Self::None => &[],
            Self::One(region) => std::slice::from_ref(region),
            Self::Many(regions) => regions,
        }
    }
}

impl Descriptor {
    /// For whoever registered the regions.
    ///
    /// # Panics
    /// When there are 2^32 of them, or more bytes than 2^64: no memory is.
    pub(crate) fn of_regions(
        rights: Rights,
        scheme: &str,
        owner: Option<&Address>,
        regions: Vec<Region>,
    ) -> Self {
        assert!(scheme.len() <= SCHEME_MAX, "a scheme has at most {SCHEME_MAX} bytes");
        let scheme = if regions.is_empty() { "" } else { scheme };
        let len = regions.iter().map(Region::len).sum();
        let mut wire = header(rights, scheme, regions.len(), len, owner, 0);
        for region in &regions {
            push_counted(&mut wire, &region.encode());
        }
        if let Some(owner) = owner {
            push_counted(&mut wire, owner.as_str().as_bytes());
        }
        let scheme_len = u8::try_from(scheme.len()).expect("SCHEME_MAX fits in a byte");
        let owner = owner.cloned();
        let (wire, regions) = (Wire::from(wire), Parts::Many(regions));
        Self(Arc::new(Inner { wire, rights, scheme_len, eager: None, len, regions, owner }))
    }

    /// Holds `len` bytes that `fill` gives.
    pub(crate) fn with_bytes(
        len: usize,
        owner: Option<&Address>,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let rights = Rights::READ;
        let mut wire = header(rights, "", 0, len as u64, owner, EAGER);
        if let Some(owner) = owner {
            push_counted(&mut wire, owner.as_str().as_bytes());
        }
        let start = wire.len();
        wire.resize(start + len, 0);
        fill(&mut wire[start..])?;
        Ok(Self(Arc::new(Inner {
            wire: Wire::from(wire),
            rights,
            len: len as u64,
            scheme_len: 0,
            regions: Parts::None,
            owner: owner.cloned(),
            eager: place(start),
        })))
    }

    /// Size of the memory in bytes, as claimed.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Whether the memory has no byte: a null descriptor.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// What others may do, as claimed.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.0.rights
    }

    /// The scheme of the transport that reaches the memory; empty when nothing needs to be reached.
    #[must_use]
    pub fn scheme(&self) -> &str {
        std::str::from_utf8(self.0.scheme()).unwrap_or_default()
    }

    /// Whether this is the transport that reaches the memory: [`Descriptor::scheme`], compared.
    #[inline]
    #[must_use]
    pub fn is_reached_by(&self, scheme: &str) -> bool {
        self.0.scheme() == scheme.as_bytes()
    }

    /// The owner's address, when it is bound.
    #[must_use]
    pub fn owner(&self) -> Option<&Address> {
        self.0.owner.as_ref()
    }

    /// The transport's part, one a region.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        self.0.regions.as_slice()
    }

    /// Whether the bytes ride in it.
    #[must_use]
    pub fn is_eager(&self) -> bool {
        self.0.eager.is_some()
    }

    /// The bytes, when they ride in it.
    #[must_use]
    pub fn eager(&self) -> Option<&[u8]> {
        let start = usize::try_from(self.0.eager?.get()).ok()?;
        self.0.wire.get(start..)
    }

    /// A range of the memory, for a transfer.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn range(&self, range: impl std::ops::RangeBounds<u64>) -> Result<RemoteRange, Error> {
        RemoteRange::new(self, range)
    }

    /// The wire form.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0.wire
    }

    /// Reads the wire form.
    ///
    /// # Errors
    /// [`Error::BadDescriptor`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        // Longer ones are rare, and hold bytes.
        let plain = if bytes.len() <= PLAIN_MAX {
            recent::read(bytes, Self::decode_plain)
        } else {
            Self::decode_plain(bytes)
        };
        plain.map_or_else(|| Self::decode_any(bytes), Ok)
    }

    /// Whether it is a clone of the other one.
    #[inline]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    #[cfg(test)]
    pub(crate) fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// A short way for what most are: one region, neither bound nor eager. `None`: it is another one, or wrong.
    fn decode_plain(bytes: &[u8]) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk::<HEADER>()?;
        let [VERSION, 0, rights, scheme_len, 1, 0, 0, 0, len @ ..] = *header else { return None };
        let (scheme, rest) = rest.split_at_checked(usize::from(scheme_len))?;
        let (region_len, region) = rest.split_first_chunk()?;
        let is_named = (1..=SCHEME_MAX).contains(&scheme.len());
        if !is_named || usize::from(u16::from_le_bytes(*region_len)) != region.len() {
            return None;
        }
        let region = Region::decode(region).ok()?;
        let (rights, len) = (Rights::from_bits(rights)?, u64::from_le_bytes(len));
        let is_one = (region.rights(), region.len()) == (rights, len);
        if !is_one || !scheme.iter().all(u8::is_ascii_graphic) {
            return None;
        }
        let (wire, regions) = (Wire::of(bytes), Parts::One(region));
        Some(Self(Arc::new(Inner {
            wire,
            rights,
            scheme_len,
            eager: None,
            len,
            regions,
            owner: None,
        })))
    }

    /// The way for all.
    pub(crate) fn decode_any(bytes: &[u8]) -> Result<Self, Error> {
        let bad = Error::BadDescriptor;
        let mut rest = Reader(bytes);
        let [version, flags, rights, scheme_len] = rest.array()?;
        if version != VERSION {
            return Err(bad("its version is unknown"));
        }
        if flags & !(BOUND | EAGER) != 0 {
            return Err(bad("it has unknown flags"));
        }
        let Some(rights) = Rights::from_bits(rights) else {
            return Err(bad("it claims unknown rights"));
        };
        let count = u32::from_le_bytes(rest.array()?);
        let len = u64::from_le_bytes(rest.array()?);
        let scheme = usize::from(scheme_len);
        if scheme > SCHEME_MAX || (scheme == 0) != (count == 0) {
            return Err(bad("its scheme is too long, or names nothing"));
        }
        if !rest.take(scheme)?.iter().all(u8::is_ascii_graphic) {
            return Err(bad("its scheme is no text"));
        }
        let regions = read_regions(&mut rest, count, rights)?;
        let owner = if flags & BOUND == 0 { None } else { Some(read_owner(&mut rest)?) };
        let rides = flags & EAGER != 0;
        if rides && (count > 0 || rights != Rights::READ) {
            return Err(bad("only read-only memory rides in a descriptor, and nothing beside it"));
        }
        let eager = if rides { place(bytes.len() - rest.0.len()) } else { None };
        match eager {
            None if !rest.0.is_empty() => return Err(bad("something follows it")),
            None if total(regions.as_slice()) != Some(len) => {
                return Err(bad("its regions are of another size"));
            }
            Some(_) if rest.0.len() as u64 != len || len == 0 => {
                return Err(bad("the bytes in it are fewer or more than it claims"));
            }
            _ => {}
        }
        let wire = Wire::of(bytes);
        Ok(Self(Arc::new(Inner { wire, rights, scheme_len, eager, len, regions, owner })))
    }
}

impl Inner {
    #[inline]
    fn scheme(&self) -> &[u8] {
        self.wire.get(HEADER..HEADER + usize::from(self.scheme_len)).unwrap_or_default()
    }
}

/// Where eager bytes begin: never at the start, nor beyond a header and an address.
fn place(start: usize) -> Option<NonZeroU32> {
    NonZeroU32::new(u32::try_from(start).expect("a header and an address are short"))
}

fn header(
    rights: Rights,
    scheme: &str,
    regions: usize,
    len: u64,
    owner: Option<&Address>,
    eager: u8,
) -> Vec<u8> {
    let flags = eager | if owner.is_some() { BOUND } else { 0 };
    let scheme_len = u8::try_from(scheme.len()).expect("SCHEME_MAX fits in a byte");
    let count = u32::try_from(regions).expect("fewer than 2^32 regions");
    let mut wire = vec![VERSION, flags, rights.bits(), scheme_len];
    wire.extend(count.to_le_bytes());
    wire.extend(len.to_le_bytes());
    wire.extend(scheme.as_bytes());
    wire
}

fn push_counted(wire: &mut Vec<u8>, bytes: &[u8]) {
    let len = u16::try_from(bytes.len()).expect("descriptors and addresses are short");
    wire.extend(len.to_le_bytes());
    wire.extend(bytes);
}

fn read_regions(rest: &mut Reader<'_>, count: u32, rights: Rights) -> Result<Parts, Error> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count > rest.0.len() / REGION_MIN {
        return Err(Error::BadDescriptor("it claims more regions than it has bytes"));
    }
    Ok(match count {
        0 => Parts::None,
        1 => Parts::One(read_region(rest, rights)?),
        _ => {
            let mut regions = Vec::with_capacity(count);
            for _ in 0..count {
                regions.push(read_region(rest, rights)?);
            }
            Parts::Many(regions)
        }
    })
}

fn read_region(rest: &mut Reader<'_>, rights: Rights) -> Result<Region, Error> {
    let region = Region::decode(rest.counted()?)?;
    if region.rights() != rights {
        return Err(Error::BadDescriptor("its regions grant other rights than it claims"));
    }
    Ok(region)
}

fn read_owner(rest: &mut Reader<'_>) -> Result<Address, Error> {
    let no_address = Error::BadDescriptor("its owner has no address");
    let bytes = rest.counted()?;
    if bytes.len() > ADDRESS_MAX {
        return Err(no_address);
    }
    let text = std::str::from_utf8(bytes).map_err(|_not_text| no_address.clone())?;
    Address::new(text).map_err(|_no_url| no_address)
}

/// `None` when the sum wraps.
fn total(regions: &[Region]) -> Option<u64> {
    regions.iter().try_fold(0_u64, |sum, region| sum.checked_add(region.len()))
}

#[cold]
fn cut_short() -> Error {
    Error::BadDescriptor("it is cut short")
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let Some((taken, rest)) = self.0.split_at_checked(len) else { return Err(cut_short()) };
        self.0 = rest;
        Ok(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let Some((taken, rest)) = self.0.split_first_chunk() else { return Err(cut_short()) };
        self.0 = rest;
        Ok(*taken)
    }

    #[inline]
    fn counted(&mut self) -> Result<&'a [u8], Error> {
        let len = u16::from_le_bytes(self.array()?);
        self.take(usize::from(len))
    }
}

impl PartialEq for Descriptor {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Descriptor {}

impl fmt::Debug for Descriptor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Descriptor({} bytes, {:?}", self.len(), self.rights())?;
        if let Some(owner) = self.owner() {
            write!(out, ", of {owner}")?;
        }
        out.write_str(if self.is_eager() { ", eager)" } else { ")" })
    }
}

impl Serialize for Descriptor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.as_bytes())
    }
}

impl<'de> Deserialize<'de> for Descriptor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(Bytes)
    }
}

struct Bytes;

impl<'de> de::Visitor<'de> for Bytes {
    type Value = Descriptor;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the bytes of a bulk descriptor")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Descriptor, E> {
        Descriptor::decode(bytes).map_err(E::custom)
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<Descriptor, A::Error> {
        // Formats without bytes (JSON) write them as a sequence.
        let mut bytes = Vec::new();
        while let Some(byte) = items.next_element()? {
            bytes.push(byte);
        }
        self.visit_bytes(&bytes)
    }
}

#[cfg(test)]
mod tests;
