//! A piece of a transfer: checked and pinned once, then moved by whoever has it, through a mapping or by the kernel.
//!
//! A piece that is moved without the context ([`Carried`]) keeps all that it needs. The pin's word is its connection's, also
//! when that is closed meanwhile: its segment stays mapped here and there until the word is clear
//! ([`crate::region::boards`]).

use std::sync::{Arc, Weak, atomic::AtomicU32};

use hg_na::{Error, Mover, Waiter as _};
use hg_na_parts::WaitSet;

use crate::{
    connection::Connection,
    descriptor::RegionClaim,
    fail,
    link::Link,
    maps::PeerPages,
    os::mapping::Access,
    region::{
        cma::{Call, Direction, Near},
        pins::{self, Pin},
        table::needed_for,
    },
    rendezvous::process::ProcessWatch,
    segment::Rings,
    wake::Bell,
};

/// What is to be moved.
#[derive(Debug)]
pub(super) struct Piece<'near, 'far> {
    pub(super) near: Near<'near>,
    pub(super) claim: &'far RegionClaim,
    /// Offset in the remote region, and length.
    pub(super) range: (u64, u64),
    pub(super) pins_wanted: &'far Arc<PinsWanted>,
}

/// Whether a context sleeps for want of a word for a pin ([`crate::wake`]), and on what: whoever releases one wakes it.
#[derive(Debug)]
pub(in crate::context) struct PinsWanted {
    pub(in crate::context) flag: AtomicU32,
    waiter: Arc<WaitSet>,
}

impl PinsWanted {
    pub(in crate::context) fn of(waiter: &Arc<WaitSet>) -> Self {
        Self { flag: AtomicU32::new(0), waiter: Arc::clone(waiter) }
    }
}

/// What admitted a piece, and keeps it pinned.
#[derive(Debug)]
pub(super) struct Pinned<'link> {
    pin: Pin<'link>,
    link: &'link Link,
    /// It is copied through this mapping, or moved by the kernel.
    pub(super) pages: Option<&'link Arc<PeerPages>>,
    watch: &'link Arc<ProcessWatch>,
    /// The kernel is to move it, and a mapping would serve it.
    pub(super) wants_mapping: bool,
}

impl<'near> Piece<'near, '_> {
    /// Checks and pins it. `None`: there is no mapping that would do, and the kernel may not (`by_kernel`, or the system
    /// says so).
    ///
    /// # Errors
    /// [`Error::Again`] when all words for pins are in use; what else is wrong with the transfer, or with its peer.
    #[inline(always)]
    pub(super) fn admit<'link>(
        &self,
        connection: &'link mut Connection,
        by_kernel: bool,
    ) -> Result<Option<Pinned<'link>>, Error> {
        let Connection { maps, link: Some(link), watch: Some(watch), .. } = connection else {
            return Ok(None);
        };
        let direction = self.near.direction();
        let serves =
            |pages: &&Arc<PeerPages>| direction == Direction::Get || pages.memory.writable();
        let pages = maps.find(self.claim).filter(serves);
        if pages.is_none() && !(by_kernel && watch.is_reachable()) {
            return Ok(None);
        }
        let (table, words) = (&link.theirs.table, &link.own.rings.pins.0);
        let (needed, heed) = (needed_for(direction), &link.theirs.rings.heed.0);
        let (pin, sharing) = table.admit(self.claim, needed, self.range, (words, heed))?;
        fail::point("pinned");
        let wants_mapping = pages.is_none() && would_serve(sharing, direction);
        Ok(Some(Pinned { pin, link, pages, watch, wants_mapping }))
    }

    /// To be moved without the context.
    ///
    /// # Errors
    /// What is wrong with the transfer, or with its peer.
    pub(super) fn carry(self, pinned: Pinned<'_>) -> Result<Carried<'near>, Error> {
        let way = match pinned.pages {
            Some(pages) => {
                Way::Copy { near: self.near, range: self.range, pages: Arc::clone(pages) }
            }
            None => {
                let table = &pinned.link.theirs.table;
                let far = |runs: &mut Vec<_>| table.append_runs(self.claim.index, self.range, runs);
                let call = Call::new(self.near, self.range.1, far)?;
                Way::Call { call, watch: Arc::clone(pinned.watch) }
            }
        };
        let rings = &pinned.link.own.rings;
        let at = pinned.pin.leave(&rings.pins.0);
        Ok(Carried { way, rings: rings.share(), at, pins_wanted: Arc::downgrade(self.pins_wanted) })
    }
}

/// Copies a piece that is pinned. No system call: a mapping belongs to its memfd, and no other process can ever be behind it.
#[inline(always)]
pub(super) fn copy(
    near: &mut Near<'_>,
    (offset, len): (u64, u64),
    pages: &PeerPages,
) -> Result<(), Error> {
    let far = (&pages.memory, offset);
    // Whoever comes here is no forked child: the memory is there.
    match near {
        Near::Into(region, at) => hg_na_memory::copy_between(far, (region.memory(), *at), len),
        Near::From(region, at) => hg_na_memory::copy_between((region.memory(), *at), far, len),
        Near::Slice(into) => hg_na_memory::copy_out(far.0, offset, into),
    }
}

/// Whether a mapping would serve a transfer.
#[inline(always)]
pub(super) fn would_serve(sharing: Option<Access>, direction: Direction) -> bool {
    match direction {
        Direction::Get => sharing.is_some(),
        Direction::Put => sharing == Some(Access::Write),
    }
}

/// A piece that is pinned until this is dropped, and borrows nothing of its connection.
#[derive(Debug)]
pub(super) struct Carried<'near> {
    way: Way<'near>,
    /// The segment of the pin, and its place there.
    rings: Rings,
    at: usize,
    pins_wanted: Weak<PinsWanted>,
}

#[derive(Debug)]
enum Way<'near> {
    Copy { near: Near<'near>, range: (u64, u64), pages: Arc<PeerPages> },
    Call { call: Call<'near>, watch: Arc<ProcessWatch> },
}

impl Mover for Carried<'_> {
    fn run(mut self: Box<Self>) -> Result<(), Error> {
        if self.rings.are_elsewhere() {
            return Err(Error::Forked);
        }
        match &mut self.way {
            Way::Copy { near, range, pages } => copy(near, *range, pages),
            Way::Call { call, watch } => call.transfer(watch),
        }
    }
}

impl Drop for Carried<'_> {
    fn drop(&mut self) {
        // A forked child has no segment.
        if !self.rings.are_elsewhere() {
            pins::release(&self.rings.pins.0[self.at]); // W1
            if let Some(wanted) = self.pins_wanted.upgrade()
                && Bell::default().is_due(&wanted.flag)
            {
                wanted.waiter.wake();
            }
        }
    }
}
