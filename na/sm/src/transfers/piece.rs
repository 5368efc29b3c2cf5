//! A piece of a transfer: checked and pinned once, then moved by whoever has it, through a mapping or by the kernel.
//!
//! A piece that is moved without the context ([`Carried`]) keeps all that it needs. The pin's word is its connection's, also
//! when that is closed meanwhile: its segment stays mapped here and there until the word is clear
//! ([`crate::region::boards`]).

use std::{fmt, sync::Arc};

use hg_na::{Error, Mover, Rights};
use hg_na_memory::ForkGuard;

use crate::{
    connection::Connection,
    fail,
    os::death::ProcessWatch,
    region::{
        cma::{Call, Direction, Near, Scratch},
        descriptor::RegionClaim,
        pins::{self, Pin},
        table::Admitted,
    },
    segment::Rings,
    shared::{Sharing, maps::PeerPages},
};

/// What is to be moved.
#[derive(Debug)]
pub(super) struct Piece<'near, 'far> {
    pub(super) near: Near<'near>,
    pub(super) claim: &'far RegionClaim,
    /// Offset in the remote region, and length.
    pub(super) range: (u64, u64),
}

/// What was admitted, and is pinned.
#[derive(Debug)]
pub(super) struct Pinned<'near, 'link> {
    way: Way<'near, &'link Arc<PeerPages>, &'link Arc<ProcessWatch>>,
    pin: Pin<'link>,
    rings: &'link Rings,
    /// The kernel is to move it, and a mapping would serve it.
    pub(super) wants_mapping: bool,
}

/// How it is moved.
#[derive(Debug)]
enum Way<'near, P, W> {
    /// Copied through the mapping. No system call: a mapping belongs to its memfd, and no other process can ever be behind it.
    Copy { near: Near<'near>, pages: P, range: (u64, u64) },
    /// By the kernel.
    Call { call: Call<'near>, watch: W },
}

impl<'near> Piece<'near, '_> {
    /// Checks and pins it. `None`: there is no mapping that would do, and the kernel may not (`by_kernel`, or the system
    /// says so).
    ///
    /// # Errors
    /// [`Error::Again`] when all words for pins are in use; what else is wrong with the transfer, or with its peer.
    #[inline(always)]
    pub(super) fn admit<'link>(
        self,
        connection: &'link mut Connection,
        scratch: &mut Scratch,
        by_kernel: bool,
    ) -> Result<Option<Pinned<'near, 'link>>, Error> {
        let Self { near, claim, range } = self;
        let Connection { maps, link: Some(link), watch: Some(watch), ferry, .. } = connection
        else {
            return Ok(None);
        };
        let direction = near.direction();
        let serves =
            |pages: &&Arc<PeerPages>| direction == Direction::Get || pages.memory().writable();
        let pages = maps.find(claim).filter(serves);
        if pages.is_none() && (ferry.is_chosen || !by_kernel) {
            return Ok(None);
        }
        let (table, rings) = (&link.theirs.table, &link.own.rings);
        let needed = needed_for(direction);
        let Admitted { pin, sharing } = table.admit(claim, needed, range, &rings.pins.0)?;
        fail::point("pinned");
        let wants_mapping = pages.is_none() && would_serve(sharing, direction);
        let way = match pages {
            Some(pages) => Way::Copy { near, pages, range },
            None => {
                let far = |runs: &mut Vec<_>| table.append_runs(claim.index, range, runs);
                let call = Call::new(near, range.1, std::mem::take(scratch), far)?;
                Way::Call { call, watch: &*watch }
            }
        };
        Ok(Some(Pinned { way, pin, rings, wants_mapping }))
    }
}

/// The right that a transfer needs at the peer.
pub(super) fn needed_for(direction: Direction) -> Rights {
    match direction {
        Direction::Get => Rights::READ,
        Direction::Put => Rights::WRITE,
    }
}

/// Whether a mapping would serve a transfer.
pub(super) fn would_serve(sharing: Sharing, direction: Direction) -> bool {
    match direction {
        Direction::Get => sharing != Sharing::No,
        Direction::Put => sharing == Sharing::Write,
    }
}

impl<'near> Pinned<'near, '_> {
    /// Moves it; says how many bytes were moved, which is less only with an error.
    #[inline(always)]
    pub(super) fn run(mut self, scratch: &mut Scratch) -> (u64, Result<(), Error>) {
        let moved = self.way.run();
        if let Way::Call { call, .. } = self.way {
            *scratch = call.into_scratch();
        }
        moved
    }

    /// To be moved without the context.
    pub(super) fn carry(self, guard: &Arc<ForkGuard>) -> Carried<'near> {
        let way = match self.way {
            Way::Copy { near, pages, range } => Way::Copy { near, pages: Arc::clone(pages), range },
            Way::Call { call, watch } => Way::Call { call, watch: Arc::clone(watch) },
        };
        let at = self.pin.leave(&self.rings.pins.0);
        let kept = Kept { rings: self.rings.share(), guard: Arc::clone(guard), at };
        Carried { way, kept }
    }
}

impl<P: AsRef<PeerPages>, W: AsRef<ProcessWatch>> Way<'_, P, W> {
    #[inline(always)]
    fn run(&mut self) -> (u64, Result<(), Error>) {
        match self {
            Self::Call { call, watch } => call.transfer(watch.as_ref()),
            Self::Copy { near, pages, range: (offset, len) } => {
                let far = (pages.as_ref().memory(), *offset);
                let copied = match near {
                    Near::Into(region, at) => region
                        .present()
                        .and_then(|near| hg_na_memory::copy_between(far, (near, *at), *len)),
                    Near::From(region, at) => region
                        .present()
                        .and_then(|near| hg_na_memory::copy_between((near, *at), far, *len)),
                    Near::Slice(into) => hg_na_memory::copy_out(far.0, *offset, into),
                };
                (if copied.is_ok() { *len } else { 0 }, copied)
            }
        }
    }
}

/// A piece that is pinned, and borrows nothing of its connection.
#[derive(Debug)]
pub(super) struct Carried<'near> {
    way: Way<'near, Arc<PeerPages>, Arc<ProcessWatch>>,
    kept: Kept,
}

impl Mover for Carried<'_> {
    fn run(mut self: Box<Self>) -> Result<(), Error> {
        if self.kept.guard.is_child() {
            return Err(Error::Forked);
        }
        self.way.run().1
    }
}

/// A pin that is not borrowed of its connection.
struct Kept {
    rings: Rings,
    guard: Arc<ForkGuard>,
    at: usize,
}

impl Drop for Kept {
    fn drop(&mut self) {
        // A forked child has no segment.
        if !self.guard.is_child() {
            pins::release(&self.rings.pins.0[self.at]);
        }
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Kept({})", self.at)
    }
}
