//! The table of regions that a domain publishes to its peers, in memory that only the owner writes.
//!
//! # Layout   (sparse: a page comes into being when its first entry is used)
//! | offset | size | field | meaning |
//! |---:|---:|---|---|
//! | 0 | 64 x 4096 | entries | one a region |
//! | 262144 | 16 x 65536 | segments | `address: u64, len: u64`; an entry names consecutive ones |
//!
//! An entry, one cache line:
//! | offset | size | field | meaning |
//! |---:|---:|---|---|
//! | 0 | 4 | `generation` | odd while published; its store publishes the rest (`pins.rs`, T1, T2) |
//! | 4 | 4 | `rights` | bits of [`Rights`] |
//! | 8 | 4 | `first_segment` | index of its first segment |
//! | 12 | 4 | `segment_count` | how many |
//! | 16 | 8 | `size` | sum of their lengths in bytes |
//! | 24 | 16 | `token` | random, the same as in the descriptor |
//! | 40 | 8 | `sharing` | whether peers can map it (0 not at all, or an [`Access`]) |
//!
//! The addresses are the owner's; a peer hands them to the kernel (`process_vm_readv`) and does nothing else
//! with them. Everything that a peer reads here is copied out once and checked: a table that lies costs
//! its owner an error, or its own memory.

use std::{
    mem::offset_of,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError},
};

use hg_na::{Direction, Error, Rights, Segment};
use hg_na_parts::regions::random;

use super::{
    extents::Extents,
    pins::{self, Pin},
    plan::{Run, cut, total},
};
use crate::{
    descriptor::{RegionClaim, halves, joined},
    os::{
        mapping::{Access, Mapping, Shared, TABLE_SEALS},
        misbehaved,
    },
    sync::{AtomicU32, AtomicU64, Ordering, Plain32, Plain64},
};

/// Regions that a domain can have registered at a time.
pub(crate) const REGIONS_MAX: u32 = 4096;

/// Segments that all regions of a domain together can have.
pub(crate) const SEGMENTS_MAX: u32 = 65_536;

/// Bytes of a table.
pub(crate) const TABLE_LEN: usize = SEGMENTS + SEGMENTS_MAX as usize * size_of::<SharedSegment>();

/// Why nothing of an owner's is pinned that has closed the connection, or has not opened it yet.
const UNHEEDED: &str = "a transfer from or to who does not look at pins";

const SEGMENTS: usize = REGIONS_MAX as usize * size_of::<Entry>();

#[repr(C, align(64))]
struct Entry {
    generation: AtomicU32,
    rights: Plain32,
    first_segment: Plain32,
    segment_count: Plain32,
    size: Plain64,
    token: [Plain64; 2],
    sharing: Plain64,
    reserved: [Plain64; 2],
}

#[repr(C)]
struct SharedSegment {
    address: Plain64,
    len: Plain64,
}

const _: () = {
    assert!(size_of::<Entry>() == 64 && size_of::<SharedSegment>() == 16);
    assert!(offset_of!(Entry, size) == 16 && offset_of!(Entry, token) == 24);
    assert!(offset_of!(Entry, sharing) == 40);
    assert!(SEGMENTS == 262_144 && TABLE_LEN.is_multiple_of(4096));
};

// SAFETY:
// - atomics of fixed width without gaps (sizes asserted above), no pointer.
unsafe impl Shared for Entry {}
// SAFETY:
// - as above.
unsafe impl Shared for SharedSegment {}

#[inline]
fn entry(mapping: &Mapping, index: u32) -> &Entry {
    mapping.view(index as usize * size_of::<Entry>())
}

#[inline]
fn segment(mapping: &Mapping, index: u32) -> &SharedSegment {
    mapping.view(SEGMENTS + index as usize * size_of::<SharedSegment>())
}

/// The table of this process's domain.
#[derive(Debug)]
pub(crate) struct OwnedTable {
    mapping: Mapping,
    /// `None` where nothing is ever registered.
    pub(crate) fd: Option<OwnedFd>,
    domain: [u8; 16],
    free: Mutex<Free>,
}

/// A region's place in its table. Taken back by [`OwnedTable::retract`], then [`OwnedTable::release`].
#[derive(Debug)]
pub(crate) struct Published {
    /// What names it.
    pub(crate) claim: RegionClaim,
    first_segment: u32,
    segment_count: u32,
}

#[derive(Debug)]
struct Free {
    slots: Extents,
    segments: Extents,
}

/// A table without regions, for a peer of a domain that registers none.
///
/// # Errors
/// [`Error::Limit`], [`Error::Os`].
pub(crate) fn empty() -> Result<OwnedFd, Error> {
    Ok(Mapping::create(c"hydrargyrum-table", TABLE_LEN, TABLE_SEALS, 0)?.1)
}

impl OwnedTable {
    /// An empty table.
    ///
    /// # Errors
    /// [`Error::Limit`], [`Error::Os`].
    pub(crate) fn create(domain: [u8; 16]) -> Result<Self, Error> {
        let (mapping, fd) =
            Mapping::create(c"hydrargyrum-table", TABLE_LEN, TABLE_SEALS, TABLE_LEN)?;
        let free = Free { slots: Extents::new(REGIONS_MAX), segments: Extents::new(SEGMENTS_MAX) };
        Ok(Self { mapping, fd: Some(fd), domain, free: Mutex::new(free) })
    }

    /// For the peers; `None` where nothing is ever registered, which is told by [`empty`].
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Tells a forked child, which has none.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.mapping.is_elsewhere()
    }

    /// Publishes a region. Empty segments are left out.
    ///
    /// # Errors
    /// [`Error::Limit`] when the table is full.
    pub(crate) fn publish(
        &self,
        memory: &[Segment],
        rights: Rights,
        sharing: Option<Access>,
    ) -> Result<Published, Error> {
        let token = random()?;
        let runs: Vec<Run> = memory.iter().filter(|run| run.len > 0).copied().collect();
        let segment_count = u32::try_from(runs.len()).map_err(|_| segments_limit())?;

        let (index, first_segment) = self.reserve(segment_count)?;
        let entry = entry(&self.mapping, index);
        // T1. Nobody reads these fields: the generation is even, and no pin names the slot.
        for (at, run) in (first_segment..).zip(&runs) {
            let place = segment(&self.mapping, at);
            place.address.store(run.address as u64);
            place.len.store(run.len as u64);
        }
        entry.rights.store(u32::from(rights.bits()));
        entry.first_segment.store(first_segment);
        entry.segment_count.store(segment_count);
        entry.size.store(total(&runs) as u64);
        entry.token.iter().zip(halves(token)).for_each(|(place, half)| place.store(half));
        entry.sharing.store(sharing.map_or(0, |access| access as u64));
        // Relaxed: only this process writes it, and the slot is reserved for this thread.
        let generation = entry.generation.load(Ordering::Relaxed).wrapping_add(1);
        pins::publish(&entry.generation, generation);

        let claim = RegionClaim { domain: self.domain, index, generation, token };
        Ok(Published { claim, first_segment, segment_count })
    }

    fn reserve(&self, segment_count: u32) -> Result<(u32, u32), Error> {
        let mut free = self.lock();
        let first_segment = free.segments.take(segment_count).ok_or_else(segments_limit)?;
        let Some(index) = free.slots.take(1) else {
            free.segments.give_back(first_segment, segment_count);
            return Err(Error::Limit {
                what: "registered regions of a domain",
                limit: u64::from(REGIONS_MAX),
                remedy: "unregister some, or register several pieces as one region",
            });
        };
        Ok((index, first_segment))
    }

    /// No peer can pin it from now on; those who have may still be at it.
    pub(crate) fn retract(&self, published: &Published) {
        let even = published.claim.generation.wrapping_add(1);
        pins::retract(&entry(&self.mapping, published.claim.index).generation, even);
    }

    /// The slot may be used again: nobody pins it (U3), and it was retracted.
    pub(crate) fn release(&self, published: Published) {
        let mut free = self.lock();
        free.segments.give_back(published.first_segment, published.segment_count);
        free.slots.give_back(published.claim.index, 1);
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        // A thread that panicked in between has at most lost a slot.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A peer's table, read-only.
#[derive(Debug)]
pub(crate) struct PeerTable {
    mapping: Mapping,
    domain: [u8; 16],
}

impl PeerTable {
    /// Maps what a peer of `domain` has sent, after seals and size were verified. No page of it is touched: what no
    /// transfer needs costs no memory.
    ///
    /// # Errors
    /// `PeerGone(Misbehaved)`, [`Error::Limit`].
    pub(crate) fn open(domain: [u8; 16], fd: &OwnedFd) -> Result<Self, Error> {
        Ok(Self { mapping: Mapping::open(fd, TABLE_LEN, TABLE_SEALS, Access::Read)?, domain })
    }

    /// Pins a region in `words` (this side's own), if the owner looks at them (its `heed`), and token, rights and range are right;
    /// says, too, whether it can be mapped, as claimed.
    ///
    /// # Errors
    /// [`Error::Again`] when all words are in use; [`UNHEEDED`]; [`Error::StaleDescriptor`], [`Error::Denied`],
    /// [`Error::OutOfRange`].
    #[inline(always)]
    pub(crate) fn admit<'a>(
        &self,
        claim: &RegionClaim,
        needed: Rights,
        range: (u64, u64),
        (words, heed): (&'a [AtomicU64], &AtomicU32),
    ) -> Result<(Pin<'a>, Option<Access>), Error> {
        self.is_of(claim).then_some(()).ok_or(Error::StaleDescriptor)?;
        let pin = pins::announce(words, claim.index, claim.generation).ok_or(Error::Again)?;
        pins::order();
        pins::is_heeded(heed).then_some(()).ok_or(Error::Unsupported(UNHEEDED))?;
        let said = self.read(claim)?;
        said.grants(needed, range)?;
        Ok((pin, said.sharing))
    }

    /// What the entry says: of the region, as long as that is pinned.
    #[inline(always)]
    fn read(&self, claim: &RegionClaim) -> Result<Said, Error> {
        let entry = entry(&self.mapping, claim.index);
        // R4: each field is copied out once, then checked.
        if !pins::is_published(claim.generation, &entry.generation)
            || joined([entry.token[0].load(), entry.token[1].load()]) != claim.token
        {
            return Err(Error::StaleDescriptor);
        }
        let (rights, size) = (rights_of(entry.rights.load()), entry.size.load());
        Ok(Said { rights, size, sharing: Access::of_word(entry.sharing.load()) })
    }

    /// What is published of a region, which may be taken back at once.
    ///
    /// # Errors
    /// [`Error::StaleDescriptor`].
    pub(crate) fn look(&self, claim: &RegionClaim) -> Result<Said, Error> {
        self.is_of(claim).then_some(()).ok_or(Error::StaleDescriptor)?;
        let said = self.read(claim)?;
        let generation = &entry(&self.mapping, claim.index).generation;
        let is_it = pins::is_unchanged(claim.generation, generation);
        if is_it { Ok(said) } else { Err(Error::StaleDescriptor) }
    }

    /// Whether a descriptor names a region of this domain.
    #[inline(always)]
    fn is_of(&self, claim: &RegionClaim) -> bool {
        claim.domain == self.domain && claim.index < REGIONS_MAX
    }

    /// Appends the runs of a range of a region that is pinned, and has that range ([`PeerTable::admit`]).
    ///
    /// The runs are addresses in the peer's memory, good until the pin is dropped.
    ///
    /// # Errors
    /// `PeerGone(Misbehaved)` when the table contradicts itself.
    #[inline(always)]
    pub(crate) fn append_runs(
        &self,
        index: u32,
        (offset, len): (u64, u64),
        into: &mut Vec<Run>,
    ) -> Result<(), Error> {
        let entry = entry(&self.mapping, index);
        let segments = self.segments(entry.first_segment.load(), entry.segment_count.load())?;
        let start = into.len();
        let [offset, len] = [offset, len].map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        into.extend(cut(segments, offset, len));
        if total(&into[start..]) != len {
            into.truncate(start);
            return Err(misbehaved("its region table contradicts itself"));
        }
        Ok(())
    }

    /// The segments of an entry, as claimed; one that wraps around has no bytes, so that a range
    /// over it does not fit.
    #[inline(always)]
    fn segments(&self, first: u32, count: u32) -> Result<impl Iterator<Item = Run>, Error> {
        let end = first.checked_add(count).filter(|&end| end <= SEGMENTS_MAX);
        let end = end.ok_or_else(|| misbehaved("its region table names segments outside of it"))?;
        Ok((first..end).map(|at| {
            let place = segment(&self.mapping, at);
            match [&place.address, &place.len].map(|word| usize::try_from(word.load())) {
                [Ok(address), Ok(len)] if address.checked_add(len).is_some() => {
                    Run { address, len }
                }
                _ => Run { address: 0, len: 0 },
            }
        }))
    }
}

/// What an entry claims.
#[derive(Debug)]
pub(crate) struct Said {
    rights: Rights,
    /// Bytes.
    pub(crate) size: u64,
    /// Whether it can be mapped.
    pub(crate) sharing: Option<Access>,
}

impl Said {
    /// Checks an access.
    ///
    /// # Errors
    /// [`Error::Denied`], [`Error::OutOfRange`].
    #[inline(always)]
    pub(crate) fn grants(&self, needed: Rights, (offset, len): (u64, u64)) -> Result<(), Error> {
        let Self { rights: granted, size, .. } = *self;
        if !granted.contains(needed) {
            return Err(Error::Denied { granted, needed });
        }
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(Error::OutOfRange { offset, len, size });
        }
        Ok(())
    }
}

/// The right that a transfer needs at the peer.
#[inline(always)]
pub(crate) fn needed_for(direction: Direction) -> Rights {
    match direction {
        Direction::Get => Rights::READ,
        Direction::Put => Rights::WRITE,
    }
}

/// Unknown bits grant nothing.
fn rights_of(word: u32) -> Rights {
    u8::try_from(word).map_or(Rights::empty(), Rights::from_bits_truncate)
}

fn segments_limit() -> Error {
    Error::Limit {
        what: "segments of all registered regions of a domain",
        limit: u64::from(SEGMENTS_MAX),
        remedy: "unregister some regions, or register memory in fewer pieces",
    }
}

#[cfg(any(test, feature = "fuzzing"))]
mod testing;
#[cfg(test)]
mod tests;
