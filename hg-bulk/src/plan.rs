//! A transfer as a state machine: two lists of regions, cut differently, become pieces.
//!
//! ```text
//!  new -> Running -- every piece done ------------------------------> Finished(Ok)
//!            |  stop (deadline, cancel), a piece refused or failed:
//!            v  cancel what is open
//!         Draining -- every open piece done -------------------------> Finished(Err)
//! ```
//! The first error wins. There is exactly one outcome, and none while a piece is open: until then the
//! transport may still touch the memory. A piece that the transport has no room for is not reported at all:
//! [`Plan::next_piece`] gives it again.

use hg_na::OpId;

use crate::{Regions, TransferError};

/// Longest piece in bytes: bounds how long one operation occupies a transport.
pub const PIECE_MAX: u64 = 4 << 20;
/// Pieces of one transfer that are under way at a time.
pub const PIECES_IN_FLIGHT: usize = 8;

/// How a transfer is cut.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest piece in bytes.
    pub piece: u64,
    /// Pieces under way at a time, at most [`PIECES_IN_FLIGHT`].
    pub in_flight: usize,
}

impl Limits {
    /// What a transport allows whose longest transfer is this long.
    #[must_use]
    pub fn of(max_transfer: u64) -> Self {
        Self { piece: max_transfer.clamp(1, PIECE_MAX), in_flight: PIECES_IN_FLIGHT }
    }

    /// One piece, however long.
    #[must_use]
    pub fn whole() -> Self {
        Self { piece: u64::MAX, in_flight: 1 }
    }
}

/// Where a piece begins on one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Which region.
    pub region: usize,
    /// First byte in it.
    pub offset: u64,
}

/// One put or get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Here.
    pub local: Place,
    /// There.
    pub remote: Place,
    /// Length in bytes; not zero.
    pub len: u64,
}

/// A transfer between a local and a remote range, which it owns until it is over.
#[derive(Debug)]
pub struct Plan<L, R> {
    local: Side<L>,
    remote: Side<R>,
    /// Bytes that no accepted piece covers yet.
    left: u64,
    limits: Limits,
    open: [Slot; PIECES_IN_FLIGHT],
    open_count: usize,
    phase: Phase,
}

/// Holds one open piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Free,
    Open(OpId),
    /// The transport was asked to cancel it.
    Cancelled(OpId),
}

#[derive(Debug)]
enum Phase {
    Running,
    Draining(TransferError),
    Finished(Result<(), TransferError>),
    Taken,
}

impl<L: Regions, R: Regions> Plan<L, R> {
    /// A transfer of everything; a transfer of nothing is finished already.
    ///
    /// # Panics
    /// When the two ranges are not equally long: the caller checks what users hand in.
    #[must_use]
    pub fn new(local: L, remote: R, limits: Limits) -> Self {
        let left = local.span().1;
        assert_eq!(left, remote.span().1, "both sides of a transfer are equally long");
        assert!(limits.piece > 0 && (1..=PIECES_IN_FLIGHT).contains(&limits.in_flight));
        let phase = if left == 0 { Phase::Finished(Ok(())) } else { Phase::Running };
        Self {
            local: Side::new(local),
            remote: Side::new(remote),
            left,
            limits,
            open: [Slot::Free; PIECES_IN_FLIGHT],
            open_count: 0,
            phase,
        }
    }

    /// The local range.
    pub fn local(&self) -> &L {
        &self.local.regions
    }

    /// The remote range.
    pub fn remote(&self) -> &R {
        &self.remote.regions
    }

    /// The next piece to post. The same one again until [`Plan::handle_posted`] or
    /// [`Plan::handle_refused`] has said what became of it: a transport without room costs nothing.
    #[must_use]
    pub fn next_piece(&self) -> Option<Piece> {
        let running = matches!(self.phase, Phase::Running);
        if !running || self.left == 0 || self.open_count == self.limits.in_flight {
            return None;
        }
        let len = self.left.min(self.limits.piece).min(self.local.rest()).min(self.remote.rest());
        Some(Piece { local: self.local.place, remote: self.remote.place, len })
    }

    /// The transport has accepted `piece`.
    ///
    /// # Panics
    /// When it is not what [`Plan::next_piece`] gave last.
    pub fn handle_posted(&mut self, piece: &Piece, op: OpId) {
        let given = (self.local.place, self.remote.place);
        let is_given = (piece.local, piece.remote) == given && (1..=self.left).contains(&piece.len);
        assert!(is_given, "the piece that was given");
        debug_assert_eq!(Some(*piece), self.next_piece(), "the piece that was given");
        let slot = self.open.iter_mut().find(|slot| **slot == Slot::Free);
        *slot.expect("fewer are open than there are slots") = Slot::Open(op);
        self.open_count += 1;
        self.left -= piece.len;
        self.local.advance(piece.len);
        self.remote.advance(piece.len);
    }

    /// The piece that was given last, and counts as `op`, was not moved: it is given again.
    pub fn handle_returned(&mut self, piece: &Piece, op: OpId) {
        let holds = |slot: &&mut Slot| **slot == Slot::Open(op) || **slot == Slot::Cancelled(op);
        let Some(slot) = self.open.iter_mut().find(holds) else { return };
        *slot = Slot::Free;
        self.open_count -= 1;
        self.left += piece.len;
        (self.local.place, self.remote.place) = (piece.local, piece.remote);
        self.finish_if_idle();
    }

    /// The transport has refused a piece for good.
    pub fn handle_refused(&mut self, error: TransferError) {
        self.stop(error);
    }

    /// An open piece has ended. Unknown ones change nothing.
    pub fn handle_done(&mut self, op: OpId, result: Result<(), TransferError>) {
        let holds = |slot: &&mut Slot| **slot == Slot::Open(op) || **slot == Slot::Cancelled(op);
        let Some(slot) = self.open.iter_mut().find(holds) else { return };
        *slot = Slot::Free;
        self.open_count -= 1;
        if let Err(error) = result {
            self.stop(error);
        }
        self.finish_if_idle();
    }

    /// Ends the transfer early: its deadline has passed, its caller does not want it any more. Changes
    /// nothing when it has ended, or is about to.
    pub fn stop(&mut self, why: TransferError) {
        if matches!(self.phase, Phase::Running) {
            self.phase = Phase::Draining(why);
            self.finish_if_idle();
        }
    }

    /// The transport is closed, and has dropped what was open.
    pub fn abort(&mut self, why: TransferError) {
        self.stop(why);
        self.open = [Slot::Free; PIECES_IN_FLIGHT];
        self.open_count = 0;
        self.finish_if_idle();
    }

    /// Whether a piece counts as this operation.
    #[must_use]
    pub fn is_open(&self, op: OpId) -> bool {
        self.open
            .iter()
            .any(|slot| matches!(slot, Slot::Open(it) | Slot::Cancelled(it) if *it == op))
    }

    /// Why it was stopped, while pieces of it are still open.
    #[must_use]
    pub fn stopped(&self) -> Option<&TransferError> {
        match &self.phase {
            Phase::Draining(why) => Some(why),
            _ => None,
        }
    }

    /// An open piece that the transport is to cancel; each once. It stays open until it completes.
    pub fn next_cancel(&mut self) -> Option<OpId> {
        if !matches!(self.phase, Phase::Draining(_)) {
            return None;
        }
        self.open.iter_mut().find_map(|slot| match *slot {
            Slot::Open(op) => {
                *slot = Slot::Cancelled(op);
                Some(op)
            }
            Slot::Free | Slot::Cancelled(_) => None,
        })
    }

    /// Whether the outcome is there: no piece is open, and none will be.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Finished(_) | Phase::Taken)
    }

    /// Takes the outcome, which is there once.
    pub fn take_outcome(&mut self) -> Option<Result<(), TransferError>> {
        if !matches!(self.phase, Phase::Finished(_)) {
            return None;
        }
        match std::mem::replace(&mut self.phase, Phase::Taken) {
            Phase::Finished(outcome) => Some(outcome),
            Phase::Running | Phase::Draining(_) | Phase::Taken => None,
        }
    }

    fn finish_if_idle(&mut self) {
        if self.open_count > 0 {
            return;
        }
        self.phase = match std::mem::replace(&mut self.phase, Phase::Taken) {
            Phase::Running if self.left == 0 => Phase::Finished(Ok(())),
            Phase::Draining(error) => Phase::Finished(Err(error)),
            same @ (Phase::Running | Phase::Finished(_) | Phase::Taken) => same,
        };
    }
}

/// One side of a transfer and how far it was posted.
#[derive(Debug)]
struct Side<T> {
    regions: T,
    place: Place,
}

impl<T: Regions> Side<T> {
    fn new(regions: T) -> Self {
        let offset = regions.span().0;
        let mut side = Self { regions, place: Place { region: 0, offset } };
        side.skip();
        side
    }

    /// Bytes from here to the end of the region; `u64::MAX` behind the last one.
    fn rest(&self) -> u64 {
        self.regions.region_len(self.place.region).map_or(u64::MAX, |len| len - self.place.offset)
    }

    fn advance(&mut self, bytes: u64) {
        self.place.offset += bytes;
        self.skip();
    }

    /// Moves from the end of a region to a byte of a later one.
    fn skip(&mut self) {
        while let Some(len) = self.regions.region_len(self.place.region)
            && self.place.offset >= len
        {
            self.place = Place { region: self.place.region + 1, offset: self.place.offset - len };
        }
    }
}

#[cfg(test)]
mod tests;
