//! The segment of one side of a connection: its rings, as references, and the bytes of its arena behind them.

use std::{
    collections::TryReserveError,
    ops::{Deref, Range},
    os::fd::OwnedFd,
    ptr::NonNull,
    sync::Arc,
};

use hg_na::{Error, Keeper, Memory, Segment as Run};

use crate::{
    arena::{ARENA_BYTES, FERRY_OFFSET},
    layout::{REQUESTS, RINGS_BYTES, Segment},
    os::mapping::{Access, Mapping, SEGMENT_SEALS, Shared, read_only},
    sync::Ordering,
};

// SAFETY:
// - all of it is atomics of fixed width (`crate::layout`), any bit pattern is a value, no pointers.
unsafe impl Shared for Segment {}

/// Bytes of a segment: the rings, then the arena.
const SEGMENT_BYTES: usize = RINGS_BYTES + ARENA_BYTES as usize;

/// A mapped segment: its rings, and the arena behind them.
#[derive(Debug)]
pub(crate) struct Rings {
    /// Where [`Mapping::view`] found it; spares its checks on the fast path.
    at: NonNull<Segment>,
    mapping: Arc<Mapping>,
}

impl Rings {
    /// A new segment, writable here alone, and its descriptor for the peer.
    pub(crate) fn create() -> Result<(Self, OwnedFd), Error> {
        let (mapping, fd) =
            Mapping::create(c"hg-sm-segment", SEGMENT_BYTES, SEGMENT_SEALS, RINGS_BYTES)?;
        let own = Self::of(mapping);
        // Each page lies on the NUMA node of whoever touches it first, and the peer reads before anything is written.
        own.heed.0.store(0, Ordering::Relaxed);
        own.ring(REQUESTS)[0].sequence.store(0, Ordering::Relaxed);
        Ok((own, read_only(&fd)?))
    }

    /// The peer's, read-only. Its version was in the greeting, and whatever it holds is a claim.
    pub(crate) fn open(fd: &OwnedFd) -> Result<Self, Error> {
        Mapping::open(fd, SEGMENT_BYTES, SEGMENT_SEALS, Access::Read).map(Self::of)
    }

    fn of(mapping: Mapping) -> Self {
        Self { at: NonNull::from(mapping.view::<Segment>(0)), mapping: Arc::new(mapping) }
    }

    /// Tells a forked child, where they are not mapped.
    pub(crate) fn are_elsewhere(&self) -> bool {
        self.mapping.is_elsewhere()
    }

    /// The same mapping once more, for those who outlive the connection.
    pub(crate) fn share(&self) -> Self {
        Self { at: self.at, mapping: Arc::clone(&self.mapping) }
    }
}

impl Deref for Rings {
    type Target = Segment;

    #[inline(always)]
    fn deref(&self) -> &Segment {
        // SAFETY:
        // - `Mapping::view` checked bounds and alignment and made this pointer.
        // - alive: the mapping is a field of `self`, which is borrowed.
        // - shared: no `&mut` into it is ever made.
        unsafe { self.at.as_ref() }
    }
}

// SAFETY:
// - keeps its mapping alive, and what `at` points to is atomics.
unsafe impl Send for Rings {}
// SAFETY:
// - as above.
unsafe impl Sync for Rings {}

/// The arena behind the rings: bytes that its creator writes.
impl Rings {
    /// Gives pages back; the range was reserved by nobody.
    pub(crate) fn discard(&self, offset: u32, len: u32) -> Result<(), Error> {
        let start = RINGS_BYTES + offset as usize;
        let len = (len as usize).next_multiple_of(4096);
        self.mapping.discard(start..start + len)
    }

    /// Has the pages of a range made.
    ///
    /// # Errors
    /// [`Error::Limit`].
    pub(crate) fn make_pages(&self, range: Range<u32>) -> Result<(), Error> {
        let [start, end] = [range.start, range.end].map(|at| RINGS_BYTES + at as usize);
        self.mapping.make_pages(start - start % 4096..end)
    }

    /// The first byte of a range.
    ///
    /// # Panics
    /// Outside of the arena: what a peer claims is checked before.
    pub(crate) fn range(&self, offset: u32, len: u32) -> NonNull<u8> {
        let end = offset.checked_add(len).expect("a range in the arena does not wrap");
        assert!(end <= ARENA_BYTES, "{end} is outside of the arena");
        // SAFETY:
        // - in bounds: checked above; the mapping has ARENA_BYTES behind the rings.
        unsafe { self.mapping.base().add(RINGS_BYTES + offset as usize) }
    }

    /// The places for transfers, as memory that is copied to and from.
    pub(crate) fn places(&self) -> Memory {
        let len = (ARENA_BYTES - FERRY_OFFSET) as usize;
        let first = self.range(FERRY_OFFSET, ARENA_BYTES - FERRY_OFFSET);
        let segment = Run { address: first.as_ptr().expose_provenance(), len };
        let (writable, keeper) = (self.mapping.writable(), Arc::clone(&self.mapping) as Keeper);
        // SAFETY:
        // - in bounds: `range` checked it; a fresh mapping is zeroes; the keeper holds the mapping.
        // - mapped for writing if `writable` says so; the pointer is a mapping's, which has no other provenance.
        // - no reference into this part is ever made: bodies lie in the lanes before it. A peer that writes its own
        //   arena meanwhile makes the bytes some mix, as any peer's memory.
        unsafe { Memory::from_raw_parts(vec![segment], writable, keeper) }
    }

    /// Copies bytes out of the peer's arena. The caller has checked that the range is inside.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(crate) fn copy_out(&self, offset: u32, len: u32) -> Result<Vec<u8>, TryReserveError> {
        let (from, len) = (self.range(offset, len), len as usize);
        let mut into = Vec::new();
        into.try_reserve_exact(len)?;
        // SAFETY:
        // - in bounds: `range` checked it; `into` has that capacity, and is private memory, so they do not overlap.
        // - a peer that keeps the protocol has published these bytes and leaves them alone; one that
        //   does not can change them meanwhile. They are copied as opaque bytes through a raw pointer,
        //   once, and no reference to them is ever made.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), len) };
        // SAFETY:
        // - so many bytes were just written.
        unsafe { into.set_len(len) };
        Ok(into)
    }

    /// Copies bytes into the own arena, to a range that the caller has reserved.
    pub(crate) fn copy_in(&self, offset: u32, from: &[u8]) {
        assert!(self.mapping.writable(), "the peer's arena is read-only");
        let len = u32::try_from(from.len()).expect("a message is shorter than 2^32");
        let into = self.range(offset, len);
        // SAFETY:
        // - in bounds: `range` checked it; writable: checked above.
        // - exclusive: the caller holds the reservation, and the peer only reads, after publication.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_ptr(), from.len()) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use nix::sys::stat::fstat;

    use super::*;

    #[test]
    fn the_pages_of_any_range_are_made_before_they_are_touched() {
        let (rings, fd) = Rings::create().unwrap();
        let before = fstat(&fd).unwrap().st_blocks;
        rings.make_pages(4160..8200).unwrap();
        // An older kernel knows no such advice.
        assert!([0, 16].contains(&(fstat(&fd).unwrap().st_blocks - before)));
    }
}
