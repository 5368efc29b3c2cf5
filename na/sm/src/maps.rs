//! What an initiator has mapped of one peer: a bounded cache. Its owner need not know: memory whose memfd was given away
//! once is never its own again ([`crate::region::state`]).

use std::{os::fd::OwnedFd, sync::Arc};

use hg_na::{Completion, Error, Memory, OpId, Reached, Returned, SharedBytes, Token, ViewState};
use rustc_hash::FxHashMap;

use crate::{
    completion::{done, failed},
    descriptor::{RegionClaim, RegionName},
    os::{mapping::Mapping, misbehaved},
    region::table::PeerTable,
    shared::buffer::memory_of_bytes,
};

/// Regions that one connection has mapped at a time, beside those that only views hold.
pub(crate) const MAPS: usize = 64;
/// Address space that the mappings of one connection take.
const MAPPED_BYTES_MAX: u64 = 1 << 40;
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
    asked: Vec<RegionName>,
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

impl Place {
    #[inline]
    fn pages(&self) -> Option<&Arc<PeerPages>> {
        if let State::Mapped(pages) = &self.state { Some(pages) } else { None }
    }
}

impl Maps {
    /// The mapping of a region, when it is there.
    #[inline(always)]
    pub(crate) fn find(&mut self, claim: &RegionClaim) -> Option<&Arc<PeerPages>> {
        self.clock += 1;
        let used = self.clock;
        let place = self.place(claim.name())?;
        place.used = used;
        place.pages()
    }

    /// Whether anything is mapped.
    pub(crate) fn any(&self) -> bool {
        self.places.values().any(|place| place.pages().is_some())
    }

    /// Whether one more question may be open.
    pub(crate) fn may_ask(&self) -> bool {
        self.asked.len() < MAPS
    }

    /// An answer has come; whether it was owed.
    pub(crate) fn answered(&mut self, name: RegionName) -> bool {
        let at = self.asked.iter().position(|asked| *asked == name);
        at.map(|at| self.asked.swap_remove(at)).is_some()
    }

    #[inline]
    fn place(&mut self, name: RegionName) -> Option<&mut Place> {
        self.places.get_mut(&name.index).filter(|place| place.claim.generation == name.generation)
    }

    /// A transfer of `len` bytes goes to a region that could be mapped: whether the owner is to be asked now. `None` for
    /// `len`: a view, which cannot do without.
    pub(crate) fn is_worth_asking(&mut self, claim: &RegionClaim, len: Option<u64>) -> bool {
        let name = claim.name();
        self.clock += 1;
        let used = self.clock;
        let Some(place) = self.place(name) else {
            // The place may have been used for another region before.
            self.places.insert(name.index, Place { claim: *claim, state: State::Seen, used });
            return len.is_none_or(|len| len >= MAP_AT_ONCE);
        };
        place.used = used;
        match place.state {
            State::Seen => true,
            State::Refused => len.is_none(),
            State::Asked | State::Mapped(_) => false,
        }
    }

    /// The owner was asked.
    pub(crate) fn asked(&mut self, name: RegionName) {
        self.asked.push(name);
        if let Some(place) = self.places.get_mut(&name.index) {
            place.state = State::Asked;
        }
    }

    /// The owner, or the system, says no. Transfers go on without; the next view asks again.
    pub(crate) fn refused(&mut self, name: RegionName) {
        if let Some(place) = self.place(name) {
            place.state = State::Refused;
        }
    }

    /// The owner takes the region back: this side's mapping goes, if no view holds on.
    pub(crate) fn unmap(&mut self, name: RegionName) {
        // An answer that is on its way finds the region stale.
        if self.place(name).is_some_and(|place| !matches!(place.state, State::Asked)) {
            self.places.remove(&name.index);
        }
    }

    /// Maps what the owner has sent.
    ///
    /// # Errors
    /// `PeerGone(Misbehaved)` when it is not what was published; otherwise why it is not mapped.
    pub(crate) fn map(
        &mut self,
        table: &PeerTable,
        name: RegionName,
        fd: &OwnedFd,
    ) -> Result<(), Error> {
        let claim = self.place(name).map(|place| place.claim).ok_or(Error::StaleDescriptor)?;
        let said = table.look(&claim)?;
        self.make_room(said.size)?;
        let unshared = || misbehaved("it gives memory that it does not share");
        let access = said.sharing.ok_or_else(unshared)?;
        let len =
            usize::try_from(said.size).map_err(|_| Error::Unsupported("memory of this size"))?;
        let bytes = Arc::new(Mapping::open(fd, len, access.seals(), access)?);
        let memory = memory_of_bytes(Arc::clone(&bytes));
        let pages = PeerPages { memory, bytes };
        if let Some(place) = self.place(name) {
            place.state = State::Mapped(Arc::new(pages));
        }
        Ok(())
    }

    /// Unmaps what was used least recently, until there is room for so many bytes more. What views hold stays theirs.
    fn make_room(&mut self, size: u64) -> Result<(), Error> {
        loop {
            let mapped = || self.places.values().filter_map(|place| Some((place, place.pages()?)));
            let bytes: u64 = mapped().map(|(_, pages)| pages.memory.len()).sum();
            if mapped().count() < MAPS && bytes.saturating_add(size) <= MAPPED_BYTES_MAX {
                return Ok(());
            }
            let oldest = mapped().min_by_key(|(place, _)| place.used);
            let index = oldest.map(|(place, _)| place.claim.index).ok_or(Error::Limit {
                what: "bytes of one region that are mapped",
                limit: MAPPED_BYTES_MAX,
                remedy: "register several regions, or get the bytes instead",
            })?;
            self.places.remove(&index);
        }
    }

    /// Regions that are mapped and remembered.
    #[cfg(test)]
    pub(crate) fn mapped_count(&self) -> usize {
        self.places.values().filter_map(Place::pages).count()
    }

    /// Unmaps everything; what views hold stays until they are dropped.
    pub(crate) fn clear(&mut self) {
        self.places.clear();
    }
}

/// A region of a peer, mapped; unmapped when nobody holds it any more.
#[derive(Debug)]
pub(crate) struct PeerPages {
    /// The mapping as memory, for copies.
    pub(crate) memory: Memory,
    bytes: Arc<Mapping>,
}

/// What a view of a region holds, whatever becomes of connection, context and owner. A forked child lacks the mapping.
impl ViewState for PeerPages {
    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        if self.bytes.is_elsewhere() {
            return Err(Error::Forked);
        }
        hg_na_memory::copy_out(&self.memory, offset, into)
    }

    /// When nobody can write them any more; the seals were verified before they were mapped.
    fn as_slice(&self) -> Option<&[u8]> {
        if self.bytes.is_elsewhere() { None } else { self.bytes.frozen() }
    }
}

/// Views of one peer's memory that wait.
pub(crate) const VIEWS_MAX: usize = 1024;

/// A view that waits for its connection, or for the owner's answer.
#[derive(Debug)]
pub(crate) struct Viewing {
    pub(crate) id: OpId,
    pub(crate) token: Token,
    pub(crate) claim: RegionClaim,
    pub(crate) range: (u64, u64),
}

impl Viewing {
    pub(crate) fn ended(self, result: Result<SharedBytes, Error>) -> Completion {
        let Self { id, token, .. } = self;
        match result {
            Ok(bytes) => done(id, token, Returned::View(bytes)),
            Err(error) => failed(id, token, error, Reached::Never, Returned::Nothing),
        }
    }
}
