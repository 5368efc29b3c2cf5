//! What an initiator has mapped of one peer: a bounded cache, published by *map words* in its own segment, which the
//! owner reads when it takes a region back.
//!
//! A word names a region from before the memfd is mapped until after it is unmapped, under the protocol of
//! [`crate::region::pins`]: name, fence, re-check the generation, map. So an owner that has retracted a region and
//! finds no word knows that nobody maps it, and that nobody will. Bit 31 says that a view holds on: set under a pin of
//! the region, so that an owner which has waited for the pins sees it.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use hg_na::{Error, Memory, Rights};
use hg_na_memory::ForkGuard;
use rustc_hash::FxHashMap;

use super::{
    Sharing,
    buffer::memory_of_bytes,
    bytes::{Access, Bytes, Refused},
    wire::Name,
    words::HELD,
};
use crate::{
    layout::MAPS,
    os::misbehaved,
    region::{
        descriptor::RegionClaim,
        pins::pin_word,
        table::{Admitted, PeerTable},
    },
    segment::Rings,
};

/// Address space that the mappings of one connection take.
const MAPPED_BYTES_MAX: u64 = 1 << 40;
/// Regions of one peer that are remembered, mapped or not.
const PLACES_MAX: usize = 4 * MAPS;
/// A transfer of so many bytes asks for a mapping at once; shorter ones when the region is used again.
///
/// Asking and mapping cost some 35 us, and the first copy its page faults. Measured against one transfer by CMA, cold: at
/// 64 KiB 43 us against 3, at 1 MiB 250 against 105, at 4 MiB 840 against 620, at 16 MiB 3.4 ms against 10. Used again,
/// 64 KiB cost 1.7 us, 1 MiB 50.
const MAP_AT_ONCE: u64 = 4 << 20;

/// What is known of a peer's regions.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    places: FxHashMap<u32, Place>,
    /// Answers that are owed; a place may have been used for another region since.
    asked: Vec<Name>,
    /// Counts uses, to find the least recent one.
    clock: u64,
}

#[derive(Debug)]
struct Place {
    claim: RegionClaim,
    state: State,
    used: u64,
}

#[derive(Debug)]
enum State {
    /// Used once, by other means.
    Seen,
    /// The owner was asked.
    Asked,
    /// There it is.
    Mapped(Arc<PeerPages>),
    /// It cannot be had.
    Refused,
}

impl Maps {
    /// The mapping of a region, when it is there.
    pub(crate) fn find(&mut self, claim: &RegionClaim) -> Option<&Arc<PeerPages>> {
        let place = self.places.get_mut(&claim.index)?;
        if place.claim.generation != claim.generation {
            return None;
        }
        let State::Mapped(pages) = &place.state else { return None };
        self.clock += 1;
        place.used = self.clock;
        Some(pages)
    }

    /// Whether one more question may be open.
    pub(crate) fn may_ask(&self) -> bool {
        self.asked.len() < MAPS
    }

    /// An answer has come; whether it was owed.
    pub(crate) fn answered(&mut self, name: Name) -> bool {
        let at = self.asked.iter().position(|asked| *asked == name);
        at.map(|at| self.asked.swap_remove(at)).is_some()
    }

    fn place(&self, name: Name) -> Option<&Place> {
        self.places.get(&name.index).filter(|place| place.claim.generation == name.generation)
    }

    /// A transfer of `len` bytes goes to a region that could be mapped: whether the owner is to be asked now. `None` for
    /// `len`: a view, which cannot do without.
    pub(crate) fn is_worth_asking(&mut self, claim: &RegionClaim, len: Option<u64>) -> bool {
        let name = name_of(claim);
        if self.place(name).is_none() && self.places.contains_key(&name.index) {
            self.places.remove(&name.index); // The place was used for another region since.
        }
        self.clock += 1;
        let used = self.clock;
        if !self.places.contains_key(&name.index) {
            self.make_place();
            self.places.insert(name.index, Place { claim: *claim, state: State::Seen, used });
            return len.is_none_or(|len| len >= MAP_AT_ONCE);
        }
        let Some(place) = self.places.get_mut(&name.index) else { return false };
        place.used = used;
        match place.state {
            State::Seen => true,
            State::Refused => len.is_none(),
            State::Asked | State::Mapped(_) => false,
        }
    }

    /// The owner was asked.
    pub(crate) fn asked(&mut self, name: Name) {
        self.asked.push(name);
        if let Some(place) = self.places.get_mut(&name.index) {
            place.state = State::Asked;
        }
    }

    /// The owner, or the system, says no. Transfers go on without; the next view asks again.
    pub(crate) fn refused(&mut self, name: Name) {
        if self.place(name).is_some()
            && let Some(place) = self.places.get_mut(&name.index)
        {
            place.state = State::Refused;
        }
    }

    /// The owner takes the region back: this side's mapping goes, if no view holds on.
    pub(crate) fn unmap(&mut self, name: Name) {
        // An answer that is on its way finds the region stale.
        if self.place(name).is_some_and(|place| !matches!(place.state, State::Asked)) {
            self.places.remove(&name.index);
        }
    }

    /// Maps what the owner has sent.
    ///
    /// # Errors
    /// `PeerGone(Misbehaved)` when it is not what was published; otherwise why it is not mapped, and the place says so.
    pub(crate) fn map(
        &mut self,
        own: &Own<'_>,
        table: &PeerTable,
        name: Name,
        fd: &OwnedFd,
    ) -> Result<(), Error> {
        let Some(claim) = self.place(name).map(|place| place.claim) else {
            return Err(Error::StaleDescriptor);
        };
        let mapped = self.try_map(own, table, &claim, fd);
        let Some(place) = self.places.get_mut(&name.index) else { return Ok(()) };
        match mapped {
            Ok(pages) => {
                place.state = State::Mapped(Arc::new(pages));
                Ok(())
            }
            Err(error) => {
                place.state = State::Refused;
                Err(error)
            }
        }
    }

    fn try_map(
        &mut self,
        own: &Own<'_>,
        table: &PeerTable,
        claim: &RegionClaim,
        fd: &OwnedFd,
    ) -> Result<PeerPages, Error> {
        let at = self.free_word(own)?;
        let word = MapWord { rings: own.rings.share(), guard: Arc::clone(own.guard), at };
        // Named, fenced, re-checked; the name stays until `word` is dropped.
        let named = std::slice::from_ref(word.word());
        let Admitted { pin, size, sharing } = table.admit(claim, Rights::empty(), (0, 0), named)?;
        std::mem::forget(pin); // The word is cleared by `word`.
        while self.mapped_bytes().saturating_add(size) > MAPPED_BYTES_MAX {
            self.evict()?;
        }
        let access = match sharing {
            Sharing::No => return Err(misbehaved("it gives memory that it does not share")),
            Sharing::Read => Access::Read,
            Sharing::Write => Access::Write,
            Sharing::Frozen => Access::Frozen,
        };
        let len = usize::try_from(size).map_err(|_| Error::Unsupported("memory of this size"))?;
        let bytes = Bytes::open(fd, len, access).map_err(|refused| match refused {
            Refused::Lie(why) => misbehaved(why),
            Refused::System(error) => error,
        })?;
        let bytes = Arc::new(bytes);
        let memory = memory_of_bytes(Arc::clone(&bytes));
        Ok(PeerPages {
            memory,
            bytes,
            views: Mutex::new(0),
            word,
            name: pin_word(claim.index, claim.generation),
        })
    }

    fn free_word(&mut self, own: &Own<'_>) -> Result<usize, Error> {
        // Relaxed: set by this thread alone; one that a view clears meanwhile is found the next time.
        let free = || own.rings.maps.0.iter().position(|word| word.load(Ordering::Relaxed) == 0);
        if let Some(at) = free() {
            return Ok(at);
        }
        self.evict()?;
        free().ok_or_else(all_held)
    }

    /// Unmaps what was used least recently and no view holds.
    fn evict(&mut self) -> Result<(), Error> {
        let idle = |place: &&Place| match &place.state {
            State::Mapped(pages) => Arc::strong_count(pages) == 1,
            State::Seen | State::Asked | State::Refused => false,
        };
        let oldest = self.places.values().filter(idle).min_by_key(|place| place.used);
        let index = oldest.map(|place| place.claim.index).ok_or_else(all_held)?;
        self.places.remove(&index);
        Ok(())
    }

    /// Forgets a region that is not mapped, when too many are known.
    fn make_place(&mut self) {
        if self.places.len() < PLACES_MAX {
            return;
        }
        let is_idle = |place: &&Place| matches!(place.state, State::Seen | State::Refused);
        let oldest = self.places.values().filter(is_idle).min_by_key(|place| place.used);
        if let Some(index) = oldest.map(|place| place.claim.index) {
            self.places.remove(&index);
        }
    }

    fn mapped_bytes(&self) -> u64 {
        let bytes = |place: &Place| match &place.state {
            State::Mapped(pages) => pages.memory.len(),
            State::Seen | State::Asked | State::Refused => 0,
        };
        self.places.values().map(bytes).sum()
    }

    /// Regions that are mapped and remembered.
    #[cfg(test)]
    pub(crate) fn mapped_count(&self) -> usize {
        let is_mapped = |place: &&Place| matches!(place.state, State::Mapped(_));
        self.places.values().filter(is_mapped).count()
    }

    /// Unmaps everything; what views hold stays until they are dropped.
    pub(crate) fn clear(&mut self) {
        self.places.clear();
    }
}

fn all_held() -> Error {
    Error::Limit {
        what: "mappings of one peer's memory that views hold",
        limit: MAPS as u64,
        remedy: "drop some views, or get the bytes instead",
    }
}

/// A claim's name.
pub(crate) fn name_of(claim: &RegionClaim) -> Name {
    Name { index: claim.index, generation: claim.generation }
}

/// This side's part of a connection, as far as mappings need it.
#[derive(Debug)]
pub(crate) struct Own<'a> {
    pub(crate) rings: &'a Rings,
    pub(crate) guard: &'a Arc<ForkGuard>,
}

/// A region of a peer, mapped. Unmapped, then unnamed, when nobody holds it any more.
#[derive(Debug)]
pub(crate) struct PeerPages {
    /// The mapping as memory, for copies; before `word`, so that it goes first.
    memory: Memory,
    bytes: Arc<Bytes>,
    views: Mutex<u32>,
    word: MapWord,
    name: u64,
}

impl PeerPages {
    /// The mapping, for copies.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The bytes, when nobody can write them any more; the seals were verified before they were mapped.
    pub(crate) fn frozen(&self) -> Option<&[u8]> {
        if self.is_elsewhere() { None } else { self.bytes.frozen() }
    }

    /// Whether this is a forked child, which lacks the mapping.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.word.guard.is_child()
    }

    /// One more view. The caller has the region pinned.
    pub(crate) fn hold(&self) {
        let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        *views += 1;
        // Relaxed: the pin's release orders it.
        self.word.word().store(self.name | HELD, Ordering::Relaxed);
    }

    /// One less.
    pub(crate) fn let_go(&self) {
        if self.is_elsewhere() {
            return;
        }
        let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        *views -= 1;
        if *views == 0 {
            // Release: the view's reads are over.
            self.word.word().store(self.name, Ordering::Release);
        }
    }
}

/// A word of this side's segment that is spoken for.
#[derive(Debug)]
struct MapWord {
    rings: Rings,
    guard: Arc<ForkGuard>,
    at: usize,
}

impl MapWord {
    fn word(&self) -> &AtomicU64 {
        &self.rings.maps.0[self.at]
    }
}

impl Drop for MapWord {
    fn drop(&mut self) {
        if !self.guard.is_child() {
            // Release: what was mapped is unmapped.
            self.word().store(0, Ordering::Release);
        }
    }
}
