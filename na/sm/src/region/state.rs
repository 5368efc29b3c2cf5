//! A registered region: owns its memory, stands in its domain's table, and gives the memory back when no
//! peer is in the middle of a transfer.
//!
//! # Unregistering
//! Retract (U1, U2), then look at the pins (U3). No peer is waited for: it may be stopped, or lie. Where one is in the
//! middle of a transfer, the caller gets a copy, and the original is *retired*: it stays where it is, with its slot, until the pin or
//! the peer is gone ([`Regions::sweep`]), if need be for ever. Whoever has heard that a transfer has ended finds no pin of it.
//!
//! Memory whose memfd was given to a peer ([`Regions::give`]) is left to those who map it, unless nobody can write it: the
//! caller gets a fresh buffer. Who has it mapped is not asked: a peer that lies would write what its owner has again.
//!
//! A forked child has neither the table nor the segments of the peers (`MADV_DONTFORK`), and other things may be mapped in
//! their places: there, unregistering touches nothing but the memory itself.
//!
//! The bytes are reached through `hg_na_memory` only: peers write them (by the kernel) at any time. Against
//! a peer's transfer nothing is promised but that bytes are bytes.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

use hg_na::{Descriptor, Error, Memory, RegionState, Rights};
use hg_na_memory::Held;
use hg_na_parts::regions;
use rustc_hash::FxHashMap;

use super::{
    boards::Boards,
    plan::Run,
    table::{OwnedTable, Published},
};
use crate::{
    descriptor::{RegionClaim, RegionName},
    os::mapping::Access,
    rendezvous::{
        packet::Packet,
        socket::{Sent, Socket},
    },
    shared::buffer::{Pages, fresh_copy},
};

/// Longest time that unregistering waits for this process's own progress, in the middle of a piece.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Longest pause between two looks.
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// What all regions of a domain share.
#[derive(Debug)]
pub(crate) struct Regions {
    /// What is sent to the peers.
    pub(crate) table: OwnedTable,
    /// The pin lines of all peers.
    pub(crate) boards: Boards,
    /// By their places in the table.
    live: Mutex<FxHashMap<u32, Live>>,
    retired: Mutex<Vec<(Published, Arc<Memory>)>>,
}

/// A region as peers may ask for it.
#[derive(Debug)]
struct Live {
    claim: RegionClaim,
    rights: Rights,
    sharing: Option<Access>,
    memory: Arc<Memory>,
    /// Who was sent its memfd, over which connections.
    given: Vec<Weak<Socket>>,
}

impl Regions {
    /// No region yet.
    pub(crate) fn new(table: OwnedTable) -> Arc<Self> {
        let (boards, live, retired) = Default::default();
        Arc::new(Self { table, boards, live, retired })
    }

    /// The memory of a region that is registered, and what it grants. Whoever takes it back waits until the memory is dropped.
    pub(crate) fn find(&self, name: RegionName, proof: [u8; 16]) -> Option<(Held, Rights)> {
        let mut live = self.live();
        let found = named(&mut live, name, proof)?;
        Some((Arc::clone(&found.memory).into(), found.rights))
    }

    /// Sends a peer that asks the memfd of a region, with `answer`; `None`: it cannot be mapped, or name or proof is wrong.
    ///
    /// The lock is held meanwhile: once a region is retracted, no descriptor of it is on its way out of this side. (One that
    /// is on its way to a peer finds the region's generation changed.)
    pub(crate) fn give(
        &self,
        name: RegionName,
        proof: [u8; 16],
        to: &Arc<Socket>,
        answer: &[u8],
    ) -> Option<Result<Sent, Error>> {
        let mut live = self.live();
        let found = named(&mut live, name, proof).filter(|it| it.sharing.is_some())?;
        let sent = to.send(answer, &[Pages::of(&found.memory)?.give()]);
        found.given.retain(|it| it.strong_count() > 0 && it.as_ptr() != Arc::as_ptr(to));
        found.given.push(Arc::downgrade(to));
        Some(sent)
    }

    fn live(&self) -> MutexGuard<'_, FxHashMap<u32, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees retired memory that nobody pins any more: asked at every registration and unregistration,
    /// and by a context after a peer has gone.
    pub(crate) fn sweep(&self) {
        if self.table.is_elsewhere() {
            return;
        }
        let freed: Vec<_> = {
            let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
            retired.extract_if(.., |(published, _)| !self.is_pinned(published)).collect()
        };
        for (published, memory) in freed {
            drop(Held::from(memory)); // A round of progress may have asked.
            self.table.release(published);
        }
    }

    /// Ends the publication: nobody pins it from now on, and nobody is given its memfd. Those who were may give the pages back.
    fn retract(&self, published: &Published) {
        self.table.retract(published);
        let live = self.live().remove(&published.claim.index);
        let given = live.into_iter().flat_map(|live| live.given);
        for socket in given.filter_map(|socket| socket.upgrade()) {
            socket.send_courtesy(&Packet::Unmap(published.claim.name()).encode());
        }
    }

    /// In a forked child: lets go of memory, unless a thread that is not there holds the lock.
    fn leave(&self, published: &Published) {
        if let Ok(mut live) = self.live.try_lock() {
            live.remove(&published.claim.index);
        }
    }

    fn is_pinned(&self, published: &Published) -> bool {
        self.boards.pinned(published.claim.index, published.claim.generation)
    }

    fn retire(&self, published: Published, memory: Arc<Memory>) {
        tracing::warn!(
            bytes = memory.len(),
            "a peer is in the middle of a transfer: the memory of an unregistered region stays"
        );
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.push((published, memory));
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        // A forked child has no pin line to look at.
        if !self.table.is_elsewhere() {
            self.boards.tidy();
            self.sweep();
        }
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
}

impl SmRegion {
    /// Publishes memory to the peers.
    ///
    /// # Errors
    /// [`Error::Denied`] when it cannot be written but [`Rights::WRITE`] is asked for,
    /// [`Error::Limit`] when the table is full, [`Error::Unsupported`] for memory of a device.
    pub(crate) fn register(
        regions: &Arc<Regions>,
        memory: Memory,
        rights: Rights,
    ) -> Result<Arc<Self>, Error> {
        if memory.device().is_some() {
            return Err(Error::Unsupported(
                "memory of a device over sm: where a network's card reaches it, open that alone (`routing` = `off`)",
            ));
        }
        if rights.contains(Rights::WRITE) && !memory.writable() {
            return Err(Error::Denied { granted: Rights::READ, needed: rights });
        }
        regions.sweep();
        let sharing = sharing_of(&memory, rights)?;
        let published = regions.table.publish(memory.segments(), rights, sharing)?;
        let (claim, memory) = (published.claim, Arc::new(memory));
        let descriptor = Descriptor::new(memory.len(), rights, &claim.encode());
        let live = Live { claim, rights, sharing, memory: Arc::clone(&memory), given: Vec::new() };
        regions.live().insert(claim.index, live);
        let held = Some((published, memory));
        Ok(Arc::new(Self { regions: Arc::clone(regions), held, descriptor }))
    }

    /// What a region of this plugin's is.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for another plugin's.
    #[inline(always)]
    pub(crate) fn of(state: &dyn RegionState) -> Result<&Self, Error> {
        let any: &dyn std::any::Any = state;
        any.downcast_ref().ok_or(Error::Unsupported("local memory of another plugin"))
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
        if for_writing && !self.memory().writable() {
            return Err(Error::Denied { granted: Rights::READ, needed: Rights::WRITE });
        }
        into.extend(hg_na_memory::pieces(self.memory(), offset, len)?);
        Ok(())
    }

    /// The memory, for copies.
    ///
    /// # Errors
    /// [`Error::Forked`] where it is not there.
    pub(crate) fn present(&self) -> Result<&Memory, Error> {
        let memory = self.memory();
        let is_gone = Pages::of(memory).is_some_and(Pages::is_elsewhere);
        if is_gone { Err(Error::Forked) } else { Ok(memory) }
    }

    /// What a forked child gets back: its own copy of the memory, where it has one.
    fn leave(mut self) -> Result<Memory, Error> {
        self.present()?;
        let (published, memory) = self.held.take().expect("taken only by unregistering, once");
        self.regions.leave(&published);
        Ok(Arc::try_unwrap(memory).unwrap_or_else(|memory| copy_of(&memory)))
    }

    /// The memory, which is not looked for in a forked child.
    #[inline]
    pub(crate) fn memory(&self) -> &Memory {
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
        if region.regions.table.is_elsewhere() {
            return region.leave();
        }
        let (published, memory) = region.held.take().expect("taken only here, once");
        let regions = &region.regions;
        regions.retract(&published);
        let memory = alone(memory);
        if regions.is_pinned(&published) {
            regions.boards.tidy(); // Of those who have ended.
        }
        let memory = match memory {
            Ok(memory) if !regions.is_pinned(&published) => memory,
            used => {
                let memory = used.map_or_else(|held| held, Arc::new);
                let copy = copy_of(&memory);
                regions.retire(published, memory);
                return Ok(copy);
            }
        };
        regions.table.release(published);
        regions.sweep();
        // The pages are left to those who were given them; the caller gets others.
        let is_given = Pages::of(&memory).is_some_and(Pages::is_given);
        Ok(if is_given { copy_of(&memory) } else { memory })
    }
}

impl Drop for SmRegion {
    fn drop(&mut self) {
        let Some((published, memory)) = self.held.take() else { return };
        if self.regions.table.is_elsewhere() {
            return self.regions.leave(&published);
        }
        self.regions.retract(&published);
        if self.regions.is_pinned(&published) {
            self.regions.retire(published, memory);
        } else {
            drop(memory);
            self.regions.table.release(published);
        }
        self.regions.sweep();
    }
}

impl fmt::Debug for SmRegion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "SmRegion({} bytes, {:?})", self.len(), self.rights())
    }
}

/// What is registered at a place, if it is what somebody names.
fn named(live: &mut FxHashMap<u32, Live>, name: RegionName, proof: [u8; 16]) -> Option<&mut Live> {
    let found = live.get_mut(&name.index)?;
    (found.claim.name() == name && found.claim.proof() == proof).then_some(found)
}

/// The memory, when nobody holds it any more that had found it: this process's own progress may be in the middle of a piece.
fn alone(memory: Arc<Memory>) -> Result<Memory, Arc<Memory>> {
    let (start, mut pause) = (Instant::now(), Duration::from_micros(10));
    while Arc::strong_count(&memory) > 1 && start.elapsed() < WAIT_MAX {
        thread::sleep(pause);
        pause = PAUSE_MAX.min(pause * 2);
    }
    Arc::try_unwrap(memory)
}

/// How peers can map this memory. Without the right to write they get it sealed against that.
fn sharing_of(memory: &Memory, rights: Rights) -> Result<Option<Access>, Error> {
    let Some(pages) = Pages::of(memory) else { return Ok(None) };
    if pages.is_elsewhere() {
        return Err(Error::Forked);
    }
    if rights.is_empty() {
        return Ok(None); // Local memory, for this side's own transfers.
    }
    if pages.is_frozen() {
        return Ok(Some(Access::Frozen));
    }
    if !rights.contains(Rights::WRITE) {
        pages.forbid_writers()?;
    }
    Ok(Some(if pages.is_writable() { Access::Write } else { Access::Read }))
}

/// A copy for a caller who cannot have the original: of the same kind, or at least of the same shape.
fn copy_of(memory: &Memory) -> Memory {
    // Read-only: both may have the same bytes.
    let shared = || Some(Memory::from(Arc::clone(memory.shared()?)));
    let copy = fresh_copy(memory).or_else(shared);
    copy.or_else(|| regions::copy_of(memory)).expect("memory of a device is not registered here")
}

#[cfg(test)]
mod tests;
