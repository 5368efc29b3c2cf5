//! What moves the bytes of one transfer without the context: all that it needs is kept by it, and pinned.
//!
//! The pin's word is this connection's, also when that is closed meanwhile: its segment stays mapped here and there until
//! the word is clear ([`crate::region::boards`]).

use std::{fmt, sync::Arc};

use hg_na::{Error, Mover};
use hg_na_memory::ForkGuard;

use crate::{
    fail,
    os::death::ProcessWatch,
    region::{
        cma::{Batch, Direction, Scratch},
        pins::{self, Pin},
        state::SmRegion,
    },
    segment::Rings,
    shared::{
        copies::{Piece, copy_through},
        maps::PeerPages,
    },
};

/// A pin that is not borrowed of its connection.
pub(super) struct Kept {
    rings: Rings,
    guard: Arc<ForkGuard>,
    at: usize,
}

impl Kept {
    /// Keeps `pin`, of a word of `rings`.
    pub(super) fn new(pin: Pin<'_>, rings: &Rings, guard: &Arc<ForkGuard>) -> Self {
        Self { rings: rings.share(), guard: Arc::clone(guard), at: pin.leave(&rings.pins.0) }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // A forked child has no segment.
        if !self.guard.is_child() {
            pins::release(&self.rings.pins.0[self.at]);
        }
    }
}

/// Through a mapping.
pub(super) struct Copying<'near> {
    direction: Direction,
    local: &'near SmRegion,
    local_offset: u64,
    /// Offset in the mapping, and length.
    range: (u64, u64),
    /// Before `kept`: unmapped, if this is the last to hold it, while it is pinned.
    pages: Arc<PeerPages>,
    kept: Kept,
}

impl<'near> Copying<'near> {
    pub(super) fn new(piece: &Piece<'near, '_>, pages: &Arc<PeerPages>, kept: Kept) -> Self {
        let &Piece { direction, local, local_offset, range, .. } = piece;
        Self { direction, local, local_offset, range, pages: Arc::clone(pages), kept }
    }
}

impl Mover for Copying<'_> {
    fn run(self: Box<Self>) -> Result<(), Error> {
        if self.kept.guard.is_child() {
            return Err(Error::Forked);
        }
        fail::point("pinned");
        copy_through(&self.pages, self.direction, (self.local, self.local_offset), self.range)
    }
}

/// By the kernel.
pub(super) struct Moving<'near> {
    direction: Direction,
    /// The runs of both sides.
    runs: Scratch,
    _local: &'near SmRegion,
    watch: Arc<ProcessWatch>,
    kept: Kept,
}

impl<'near> Moving<'near> {
    /// `runs` are those of `piece`.
    pub(super) fn new(
        piece: &Piece<'near, '_>,
        runs: Scratch,
        watch: &Arc<ProcessWatch>,
        kept: Kept,
    ) -> Self {
        Self {
            direction: piece.direction,
            runs,
            _local: piece.local,
            watch: Arc::clone(watch),
            kept,
        }
    }
}

impl Mover for Moving<'_> {
    fn run(mut self: Box<Self>) -> Result<(), Error> {
        if self.kept.guard.is_child() {
            return Err(Error::Forked);
        }
        let (_, result) = Batch::of(self.direction, &mut self.runs).transfer(&self.watch);
        result.map_err(Error::from)
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Kept({})", self.at)
    }
}
