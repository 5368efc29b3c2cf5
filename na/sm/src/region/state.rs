//! A registered region: owns its memory, stands in its domain's table, and gives the memory back when no
//! peer is in the middle of a transfer.
//!
//! # Unregistering
//! Retract (U1, U2), then wait for the pins (U3), at most [`PIN_WAIT_MAX`]. A peer that pins for longer
//! is stopped, or lies. Then the caller gets a copy, and the original is *retired*: it stays where it is,
//! with its slot, until the pin or the peer is gone ([`Regions::sweep`]), if need be for ever. Dropping a
//! region waits for nobody: what is pinned is retired at once.
//!
//! Memory that peers map ([`crate::shared`]) is left to them instead: who still maps it after the bound, or has a view,
//! keeps the pages, and the caller gets a fresh buffer. Nothing needs to stay here for that.
//!
//! A forked child has neither the table nor the segments of the peers (`MADV_DONTFORK`), and other things may be mapped in
//! their places: there, unregistering touches nothing but the memory itself.
//!
//! The bytes are reached through `hg_na_memory` only: peers write them (by the kernel) at any time. Against
//! a peer's transfer nothing is promised but that bytes are bytes.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use hg_na::{Descriptor, Error, Memory, RegionState, Rights, Segment};
use hg_na_memory::{ForkGuard, Held};

use super::{
    descriptor::RegionClaim,
    plan::{Run, cut},
    table::{OwnedTable, Published},
};
use crate::shared::{
    Sharing,
    buffer::{Pages, fresh_copy},
    exports::Exports,
    words::Mapped,
};

/// Longest time that unregistering waits for a peer in the middle of a transfer.
pub(crate) const PIN_WAIT_MAX: Duration = Duration::from_secs(1);

/// Longest time that unregistering waits for peers to unmap what they could write.
pub(crate) const UNMAP_WAIT_MAX: Duration = Duration::from_millis(250);

/// Longest pause between two looks at the pins.
const PIN_PAUSE_MAX: Duration = Duration::from_millis(5);

/// Who knows what the live peers have pinned.
pub(crate) trait PinBoard: Send + Sync + fmt::Debug {
    /// Whether the pin words of any peer that may still be in the middle of a transfer name this region.
    ///
    /// A peer stops being one when its process has ended, or when its connection was closed without a
    /// pin in it: closing a connection does not stop a transfer.
    fn pinned(&self, index: u32, generation: u32) -> bool;

    /// What the peers' map words, and those of peers that have left, say about this region.
    fn mapped(&self, _index: u32, _generation: u32) -> Mapped {
        Mapped::No
    }

    /// Asks those who map it to let go.
    fn ask_to_unmap(&self, _index: u32, _generation: u32) {}

    /// The region's place will be used again: what was noted about it is forgotten.
    fn forget(&self, _index: u32, _generation: u32) {}
}

/// What all regions of a domain share.
#[derive(Debug)]
pub(crate) struct Regions {
    table: OwnedTable,
    board: Arc<dyn PinBoard>,
    exports: Exports,
    guard: Arc<ForkGuard>,
    /// By their places in the table, for copies by this process's own progress ([`Regions::find`]).
    live: Mutex<Vec<Option<Live>>>,
    retired: Mutex<Vec<(Published, Arc<Memory>)>>,
}

/// A region as peers may ask for it.
#[derive(Debug)]
struct Live {
    claim: RegionClaim,
    rights: Rights,
    memory: Arc<Memory>,
}

impl Regions {
    /// No region yet.
    pub(crate) fn new(
        table: OwnedTable,
        board: Arc<dyn PinBoard>,
        guard: Arc<ForkGuard>,
    ) -> Arc<Self> {
        Arc::new(Self {
            table,
            board,
            exports: Exports::default(),
            guard,
            live: Mutex::default(),
            retired: Mutex::new(Vec::new()),
        })
    }

    /// The memory of a region that is registered, and what it grants. Whoever takes it back waits until the memory is dropped.
    pub(crate) fn find(
        &self,
        index: u32,
        generation: u32,
        token: [u8; 16],
    ) -> Option<(Held, Rights)> {
        let live = self.live();
        let found = live.get(index as usize)?.as_ref()?;
        let is_same = found.claim.generation == generation && found.claim.token == token;
        is_same.then(|| (Arc::clone(&found.memory).into(), found.rights))
    }

    fn live(&self) -> MutexGuard<'_, Vec<Option<Live>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, claim: RegionClaim, rights: Rights, memory: &Arc<Memory>) {
        let (mut live, at) = (self.live(), claim.index as usize);
        if live.len() <= at {
            live.resize_with(at + 1, || None);
        }
        live[at] = Some(Live { claim, rights, memory: Arc::clone(memory) });
    }

    /// What is sent to the peers.
    pub(crate) fn table(&self) -> &OwnedTable {
        &self.table
    }

    /// The memfds of regions that peers can map.
    pub(crate) fn exports(&self) -> &Exports {
        &self.exports
    }

    /// Frees retired memory that nobody pins any more: asked at every registration and unregistration,
    /// and by the domain after a peer has gone.
    pub(crate) fn sweep(&self) {
        if self.guard.is_child() {
            return;
        }
        let freed: Vec<_> = {
            let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
            retired.extract_if(.., |(published, _)| !self.is_pinned(published)).collect()
        };
        for (published, memory) in freed {
            drop(Held::from(memory)); // A round of progress may have asked.
            self.release(published);
        }
    }

    fn release(&self, published: Published) {
        self.board.forget(published.claim.index, published.claim.generation);
        self.table.release(published);
    }

    /// Ends the publication; nobody pins or maps it from now on.
    fn retract(&self, published: &Published, sharing: Sharing) {
        self.table.retract(published);
        let live = self.live().get_mut(published.claim.index as usize).and_then(Option::take);
        drop(live);
        if sharing != Sharing::No {
            self.exports.remove(&published.claim);
            self.board.ask_to_unmap(published.claim.index, published.claim.generation);
        }
    }

    /// In a forked child: lets go of memory, unless a thread that is not there holds the lock.
    fn leave(&self, published: &Published) {
        if let Ok(mut live) = self.live.try_lock()
            && let Some(place) = live.get_mut(published.claim.index as usize)
        {
            *place = None;
        }
    }

    fn is_pinned(&self, published: &Published) -> bool {
        self.board.pinned(published.claim.index, published.claim.generation)
    }

    fn retire(&self, published: Published, memory: Arc<Memory>) {
        tracing::warn!(
            bytes = memory.len(),
            "a peer is in the middle of a transfer: the memory of an unregistered region stays"
        );
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.push((published, memory));
    }

    /// Whether the last pin was given up in time. Polls: the pins are words in memory of other
    /// processes, which owe this side no wake-up.
    fn wait_for_pins(&self, published: &Published) -> bool {
        wait_while(PIN_WAIT_MAX, || self.is_pinned(published))
    }

    /// Whether nobody is left who could see what the owner writes from now on, or write it. Nobody pins the region any
    /// more, so that no view is being made.
    fn is_let_go(&self, published: &Published, sharing: Sharing) -> bool {
        let mapped = || self.board.mapped(published.claim.index, published.claim.generation);
        match sharing {
            Sharing::No | Sharing::Frozen => true,
            Sharing::Read => mapped() != Mapped::Held,
            Sharing::Write => {
                wait_while(UNMAP_WAIT_MAX, || mapped() == Mapped::Yes) && mapped() == Mapped::No
            }
        }
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        self.sweep();
        // Still pinned: a peer may touch it for as long as this process lives.
        let retired = self.retired.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(std::mem::take(retired));
    }
}

/// One region.
pub(crate) struct SmRegion {
    regions: Arc<Regions>,
    /// `None` once it was unregistered, for [`Drop`] to see.
    held: Option<(Published, Arc<Memory>)>,
    descriptor: Descriptor,
    sharing: Sharing,
}

impl SmRegion {
    /// Publishes memory to the peers.
    ///
    /// # Errors
    /// [`Error::Denied`] when it cannot be written but [`Rights::WRITE`] is asked for,
    /// [`Error::Limit`] when the table is full.
    pub(crate) fn register(
        regions: &Arc<Regions>,
        memory: Memory,
        rights: Rights,
    ) -> Result<Arc<Self>, Error> {
        if rights.contains(Rights::WRITE) && !memory.writable() {
            return Err(Error::Denied { granted: Rights::READ, needed: rights });
        }
        regions.sweep();
        let sharing = sharing_of(&memory, rights)?;
        let published = regions.table.publish(memory.segments(), rights, sharing)?;
        if sharing != Sharing::No
            && let Some(pages) = Pages::of(&memory)
        {
            regions.exports.insert(published.claim, Arc::clone(pages.fd()));
        }
        let descriptor = Descriptor::new(memory.len(), rights, &published.claim.encode());
        let memory = Arc::new(memory);
        regions.insert(published.claim, rights, &memory);
        let held = Some((published, memory));
        Ok(Arc::new(Self { regions: Arc::clone(regions), held, descriptor, sharing }))
    }

    /// Appends the runs of a range to `into`; `for_writing` when the kernel will write there.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Denied`].
    #[inline]
    pub(crate) fn runs(
        &self,
        offset: u64,
        len: u64,
        for_writing: bool,
        into: &mut Vec<Run>,
    ) -> Result<(), Error> {
        let size = self.len();
        let outside = || Error::OutOfRange { offset, len, size };
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(outside());
        }
        if for_writing && !self.memory().writable() {
            return Err(Error::Denied { granted: Rights::READ, needed: Rights::WRITE });
        }
        let segments = self.memory().segments().iter().map(run_of);
        if cut(segments, offset, len, into) { Ok(()) } else { Err(outside()) }
    }

    /// The memory, for copies.
    ///
    /// # Errors
    /// [`Error::Forked`] where it is not there.
    pub(crate) fn present(&self) -> Result<&Memory, Error> {
        let memory = self.memory();
        let is_gone =
            self.sharing != Sharing::No && Pages::of(memory).is_some_and(Pages::is_elsewhere);
        if is_gone { Err(Error::Forked) } else { Ok(memory) }
    }

    /// What a forked child gets back: its own copy of the memory, where it has one.
    fn leave(mut self) -> Result<Memory, Error> {
        self.present()?;
        let (published, memory) = self.held.take().expect("taken only by unregistering, once");
        self.regions.leave(&published);
        Ok(Arc::try_unwrap(memory).unwrap_or_else(|memory| Memory::from(copies_of(&memory))))
    }

    fn memory(&self) -> &Memory {
        let (_, memory) = self.held.as_ref().expect("taken only by unregister, which consumes it");
        memory
    }
}

impl RegionState for SmRegion {
    fn len(&self) -> u64 {
        self.descriptor.len()
    }

    fn rights(&self) -> Rights {
        self.descriptor.rights()
    }

    fn descriptor(&self) -> Descriptor {
        self.descriptor.clone()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        hg_na_memory::copy_out(self.present()?, offset, into)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        hg_na_memory::copy_in(self.present()?, offset, from)
    }

    fn unregister(self: Arc<Self>) -> Result<Memory, Error> {
        let mut region = Arc::try_unwrap(self).map_err(|_in_use| Error::RegionBusy)?;
        if region.regions.guard.is_child() {
            return region.leave();
        }
        let (published, memory) = region.held.take().expect("taken only here, once");
        let regions = &region.regions;
        regions.retract(&published, region.sharing);
        let memory = match alone(memory) {
            Ok(memory) => memory,
            Err(memory) => {
                let copy = Memory::from(copies_of(&memory));
                regions.retire(published, memory);
                return Ok(copy);
            }
        };
        if !regions.wait_for_pins(&published) {
            let (copy, original) = copy_and_original(memory);
            regions.retire(published, Arc::new(original));
            return Ok(copy);
        }
        let is_let_go = regions.is_let_go(&published, region.sharing);
        regions.release(published);
        regions.sweep();
        // The pages are left to those who map them; the caller gets others.
        Ok(if is_let_go { memory } else { copy_and_original(memory).0 })
    }
}

impl Drop for SmRegion {
    fn drop(&mut self) {
        let Some((published, memory)) = self.held.take() else { return };
        if self.regions.guard.is_child() {
            return self.regions.leave(&published);
        }
        self.regions.retract(&published, self.sharing);
        if self.regions.is_pinned(&published) {
            self.regions.retire(published, memory);
        } else {
            drop(memory);
            self.regions.release(published);
        }
        self.regions.sweep();
    }
}

impl fmt::Debug for SmRegion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "SmRegion({} bytes, {:?})", self.len(), self.rights())
    }
}

/// The memory, when nobody holds it any more that had found it: this process's own progress may be in the middle of a piece.
fn alone(memory: Arc<Memory>) -> Result<Memory, Arc<Memory>> {
    wait_while(PIN_WAIT_MAX, || Arc::strong_count(&memory) > 1);
    Arc::try_unwrap(memory)
}

/// Whether a condition ended in time. Polls, with longer and longer pauses.
fn wait_while(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    let mut pause = Duration::from_micros(10);
    while holds() {
        if start.elapsed() >= limit {
            return false;
        }
        thread::sleep(pause);
        pause = PIN_PAUSE_MAX.min(pause * 2);
    }
    true
}

/// How peers can map this memory. Without the right to write they get it sealed against that.
fn sharing_of(memory: &Memory, rights: Rights) -> Result<Sharing, Error> {
    let Some(pages) = Pages::of(memory) else { return Ok(Sharing::No) };
    if pages.is_elsewhere() {
        return Err(Error::Forked);
    }
    if rights.is_empty() {
        return Ok(Sharing::No); // Local memory, for this side's own transfers.
    }
    if pages.is_frozen() {
        return Ok(Sharing::Frozen);
    }
    if !rights.contains(Rights::WRITE) {
        pages.forbid_writers()?;
    }
    Ok(if pages.is_writable() { Sharing::Write } else { Sharing::Read })
}

/// A copy of the same kind, and the memory itself.
fn copy_and_original(memory: Memory) -> (Memory, Memory) {
    if let Some(copy) = fresh_copy(&memory) {
        return (copy, memory);
    }
    let mut copies = copies_of(&memory);
    let memory = match memory.into_shared() {
        // Read-only: both may have the same bytes.
        Ok(shared) => return (Memory::from(Arc::clone(&shared)), Memory::from(shared)),
        Err(memory) => memory,
    };
    match memory.into_vec() {
        Ok(original) => (Memory::from(copies.pop().unwrap_or_default()), Memory::from(original)),
        Err(memory) => (Memory::from(copies), memory),
    }
}

fn run_of(segment: &Segment) -> Run {
    Run { address: segment.address as u64, len: segment.len as u64 }
}

/// Copies of the same shape, for a caller who cannot have the original.
fn copies_of(memory: &Memory) -> Vec<Vec<u8>> {
    let mut offset = 0;
    let copy_of = |segment: &Segment| {
        let mut copy = vec![0; segment.len];
        hg_na_memory::copy_out(memory, offset, &mut copy).expect("a segment lies in its memory");
        offset += segment.len as u64;
        copy
    };
    memory.segments().iter().map(copy_of).collect()
}

#[cfg(test)]
mod tests;
