//! Ranges of memory, checked once: cutting outside is refused at once.

use std::{
    fmt,
    ops::{Bound, RangeBounds},
    sync::Arc,
};

use hg_na::{Error, LocalSlice, Region, RemoteSlice};

use crate::{Descriptor, Local, Place, recent};

/// A range of a list of regions, for a [`crate::Plan`].
pub trait Regions {
    /// First byte of the range, counted over all regions, and its length in bytes.
    fn span(&self) -> (u64, u64);
    /// Size of a region in bytes; `None` behind the last one.
    fn region_len(&self, region: usize) -> Option<u64>;
}

/// A range of this process's memory. Keeps it registered.
#[derive(Clone)]
pub struct Range {
    memory: Arc<Local>,
    offset: u64,
    len: u64,
}

impl Range {
    pub(crate) fn new(memory: &Arc<Local>, range: impl RangeBounds<u64>) -> Result<Self, Error> {
        let (offset, len) = resolve(&range, memory.len())?;
        Ok(Self { memory: Arc::clone(memory), offset, len })
    }

    pub(crate) fn all(memory: &Arc<Local>) -> Self {
        Self { memory: Arc::clone(memory), offset: 0, len: memory.len() }
    }

    /// The memory that it is a range of.
    #[must_use]
    pub fn memory(&self) -> &Arc<Local> {
        &self.memory
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

    /// A part of it; bounds count from its first byte.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn range(&self, range: impl RangeBounds<u64>) -> Result<Self, Error> {
        let (offset, len) = resolve(&range, self.len)?;
        Ok(Self { memory: Arc::clone(&self.memory), offset: self.offset + offset, len })
    }

    /// One piece of it, for the transport.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice(&self, place: Place, len: u64) -> Result<LocalSlice, Error> {
        self.memory.slice(place, len)
    }
}

/// A range of this process's memory, borrowed: enough for what is over at once.
#[derive(Clone, Copy)]
pub struct RangeRef<'a> {
    memory: &'a Arc<Local>,
    offset: u64,
    len: u64,
}

impl<'a> RangeRef<'a> {
    /// The memory that it is a range of.
    #[must_use]
    pub fn memory(&self) -> &'a Arc<Local> {
        self.memory
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

    /// The regions that it is a range of.
    #[must_use]
    pub fn regions(&self) -> &'a [Region] {
        self.memory.regions()
    }

    /// The same, to be kept.
    #[must_use]
    pub fn to_range(self) -> Range {
        Range { memory: Arc::clone(self.memory), offset: self.offset, len: self.len }
    }

    /// Copies bytes in: what stands in for a transfer of bytes that are here already.
    ///
    /// # Errors
    /// [`Error::Denied`] for read-only memory.
    ///
    /// # Panics
    /// When it is not as long as the range.
    pub fn fill(&self, bytes: &[u8]) -> Result<(), Error> {
        assert_eq!(bytes.len() as u64, self.len, "as many bytes as the range has");
        self.memory.write(self.offset, bytes)
    }
}

impl<'a> From<&'a Arc<Local>> for RangeRef<'a> {
    fn from(memory: &'a Arc<Local>) -> Self {
        Self { memory, offset: 0, len: memory.len() }
    }
}

impl Regions for RangeRef<'_> {
    fn span(&self) -> (u64, u64) {
        (self.offset, self.len)
    }

    fn region_len(&self, region: usize) -> Option<u64> {
        self.memory.region_len(region)
    }
}

impl fmt::Debug for RangeRef<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_range().fmt(out)
    }
}

/// What a transfer can begin or end in: a [`Range`], or memory as a whole.
#[diagnostic::on_unimplemented(note = "register the memory first: `engine.expose(memory, rights)`")]
pub trait AsRange {
    /// The range, borrowed: a transfer that is over at once counts nothing.
    fn as_range(&self) -> RangeRef<'_>;
}

impl AsRange for Range {
    fn as_range(&self) -> RangeRef<'_> {
        RangeRef { memory: &self.memory, offset: self.offset, len: self.len }
    }
}

impl<T: AsRange + ?Sized> AsRange for &T {
    fn as_range(&self) -> RangeRef<'_> {
        T::as_range(self)
    }
}

impl Regions for Range {
    fn span(&self) -> (u64, u64) {
        (self.offset, self.len)
    }

    fn region_len(&self, region: usize) -> Option<u64> {
        self.memory.region_len(region)
    }
}

impl fmt::Debug for Range {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Range({} bytes at {} of {})", self.len, self.offset, self.memory.len())
    }
}

/// A range of some process's memory, as a descriptor names it.
#[derive(Clone, PartialEq, Eq)]
pub struct RemoteRange {
    descriptor: Descriptor,
    offset: u64,
    len: u64,
}

impl RemoteRange {
    pub(crate) fn new(
        descriptor: &Descriptor,
        range: impl RangeBounds<u64>,
    ) -> Result<Self, Error> {
        let (offset, len) = resolve(&range, descriptor.len())?;
        Ok(Self { descriptor: descriptor.clone(), offset, len })
    }

    /// Drops it after a transfer: who reads the same descriptor next has it for less.
    #[inline]
    pub fn give_back(self) {
        recent::give_back(self.descriptor);
    }

    /// The descriptor that it is a range of.
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

    /// A part of it; bounds count from its first byte.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn range(&self, range: impl RangeBounds<u64>) -> Result<Self, Error> {
        let (offset, len) = resolve(&range, self.len)?;
        Ok(Self { descriptor: self.descriptor.clone(), offset: self.offset + offset, len })
    }

    /// One piece of it, for the transport.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn slice(&self, place: Place, len: u64) -> Result<RemoteSlice, Error> {
        match self.descriptor.regions().get(place.region) {
            Some(region) => region.slice(place.offset, len),
            None => {
                let (offset, size) = (place.offset, self.descriptor.len());
                Err(Error::OutOfRange { offset, len, size })
            }
        }
    }

    /// The region that holds all of it, and where it begins there.
    #[must_use]
    pub fn only_region(&self) -> Option<Place> {
        let mut offset = self.offset;
        for (region, descriptor) in self.descriptor.regions().iter().enumerate() {
            if offset < descriptor.len() {
                let fits = self.len <= descriptor.len() - offset;
                return fits.then_some(Place { region, offset });
            }
            offset -= descriptor.len();
        }
        None
    }

    /// The bytes themselves, when they ride in the descriptor.
    #[must_use]
    pub fn eager(&self) -> Option<&[u8]> {
        let start = usize::try_from(self.offset).ok()?;
        let len = usize::try_from(self.len).ok()?;
        self.descriptor.eager()?.get(start..start.checked_add(len)?)
    }
}

impl Regions for RemoteRange {
    fn span(&self) -> (u64, u64) {
        (self.offset, self.len)
    }

    fn region_len(&self, region: usize) -> Option<u64> {
        self.descriptor.regions().get(region).map(hg_na::Descriptor::len)
    }
}

impl From<&Descriptor> for RemoteRange {
    fn from(descriptor: &Descriptor) -> Self {
        Self { offset: 0, len: descriptor.len(), descriptor: descriptor.clone() }
    }
}

impl From<Descriptor> for RemoteRange {
    fn from(descriptor: Descriptor) -> Self {
        Self { offset: 0, len: descriptor.len(), descriptor }
    }
}

impl fmt::Debug for RemoteRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "RemoteRange({} bytes at {} of {})",
            self.len,
            self.offset,
            self.descriptor.len()
        )
    }
}

/// First byte and length.
fn resolve(range: &impl RangeBounds<u64>, size: u64) -> Result<(u64, u64), Error> {
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(size),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= size => Ok((start, end - start)),
        _ => {
            let offset = start.unwrap_or(u64::MAX);
            let len = end.unwrap_or(u64::MAX).saturating_sub(offset);
            Err(Error::OutOfRange { offset, len, size })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_every_kind_are_resolved() {
        assert_eq!(resolve(&(..), 8).unwrap(), (0, 8));
        assert_eq!(resolve(&(2..), 8).unwrap(), (2, 6));
        assert_eq!(resolve(&(2..=5), 8).unwrap(), (2, 4));
        assert_eq!(resolve(&(8..8), 8).unwrap(), (8, 0));
        assert_eq!(resolve(&(Bound::Excluded(2), Bound::Excluded(4)), 8).unwrap(), (3, 1));
    }

    #[test]
    fn ranges_outside_reversed_or_wrapping_are_refused() {
        assert!(resolve(&(0..9), 8).is_err());
        assert!(resolve(&(9..), 8).is_err());
        assert!(resolve(&(0..=u64::MAX), u64::MAX).is_err());
        assert!(resolve(&(Bound::Excluded(u64::MAX), Bound::Unbounded), u64::MAX).is_err());
        let (high, low) = (5, 3);
        assert!(resolve(&(high..low), 8).is_err());
    }
}
