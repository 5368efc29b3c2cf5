//! Transfers: plans of `hg-bulk`, fed with the transport's completions, deadlines and room.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use hg_bulk::{Piece, Place, Plan, Range, Regions, RemoteRange, TransferError};
use hg_na::{Context, Direction, Op, OpId, Peer, Returned, SharedBytes};

use super::{
    Effect, Extra, Kind, Moved, Operation, OperationId, Operations, Outcome, Owner, call::OpState,
};
use crate::{deferred::Action, table::Table};

/// After this time whoever waits for a transfer that was stopped is told, although the transport has its memory still: a peer
/// that stands still in the middle of one, say.
const DRAIN_MAX: Duration = Duration::from_millis(1);

/// Longest piece that this side moves by itself between two rounds: messages wait for it.
pub(crate) const MOVE_MAX: u64 = 1 << 20;

/// What stands in a plan for a piece that this side moves: no transport names an operation so.
const OWN_MOVE: OpId = OpId { scope: u32::MAX, serial: 0 };

/// Bytes that are moved at once, by a thread that waits for each transfer, before it makes a round.
const ROUND_EVERY: u64 = 4 << 20;

/// The near side of a transfer.
#[derive(Debug)]
pub enum Near {
    /// Bytes arrive here.
    Pull(Range),
    /// Bytes come from here.
    Push(Range),
    /// Bytes are seen where they are: so many.
    View(u64),
}

impl Near {
    /// Of a get or a put.
    pub fn of(direction: Direction, range: Range) -> Self {
        match direction {
            Direction::Get => Self::Pull(range),
            Direction::Put => Self::Push(range),
        }
    }

    pub(crate) fn op(
        &self,
        peer: Peer,
        piece: &Piece,
        remote: &RemoteRange,
        scheme: &str,
    ) -> Result<Op, hg_na::Error> {
        let mut remote = remote.slice(piece.remote, piece.len)?;
        // Of an engine that routes: the part for this transport.
        if let Some(part) = remote.descriptor().part_for(scheme) {
            remote = part.slice(remote.offset(), remote.len())?;
        }
        Ok(match self {
            Self::Pull(range) => {
                Op::Get { from: peer, local: range.slice(piece.local, piece.len)?, remote }
            }
            Self::Push(range) => {
                Op::Put { to: peer, local: range.slice(piece.local, piece.len)?, remote }
            }
            Self::View(_) => Op::View { from: peer, remote },
        })
    }
}

impl Regions for Near {
    fn span(&self) -> (u64, u64) {
        match self {
            Self::Pull(range) | Self::Push(range) => range.span(),
            Self::View(len) => (0, *len),
        }
    }

    fn region_len(&self, region: usize) -> Option<u64> {
        match self {
            Self::Pull(range) | Self::Push(range) => range.region_len(region),
            Self::View(len) => (region == 0).then_some(*len),
        }
    }
}

/// Where a range begins that lies in the first region, as most do.
pub(crate) fn start_of(regions: &impl Regions) -> Option<Place> {
    let (offset, len) = regions.span();
    let fits = offset + len <= regions.region_len(0)?;
    fits.then_some(Place { region: 0, offset })
}

/// What a transfer has beside what all have.
#[derive(Debug)]
pub(super) struct Transfer {
    plan: Plan<Near, RemoteRange>,
    seen: Option<SharedBytes>,
    /// Whether it stands in the queue of those that wait for room.
    stalled: bool,
    /// Its pieces are moved by this side, and not posted.
    is_moved_here: bool,
    /// It stands in the queue of those, or its next piece was taken from there.
    is_in_turn: bool,
    /// It was stopped, and there is a time by which whoever waits is told.
    is_draining: bool,
}

impl Transfer {
    /// Looks again whether its pieces are moved by this side. Some that were posted may be under way.
    fn look_who_moves(&mut self, peer: Peer, context: &mut dyn Context) {
        self.is_moved_here = !matches!(self.plan.local(), Near::View(_)) && context.moves(peer);
    }
}

/// A piece of a transfer that this side moves by itself: [`crate::protocol::Protocol::begin_move`].
#[derive(Debug)]
pub struct Move {
    /// Of which transfer it is a piece.
    pub id: OperationId,
    /// With whom.
    pub peer: Peer,
    piece: Piece,
    pub(crate) op: Op,
}

impl Move {
    /// Bytes of the piece.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.piece.len
    }
}

/// What became of a piece that this side was to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    /// It was moved.
    Over,
    /// It is to be moved when there is room ([`hg_na::Begun::Later`]).
    Later,
    /// It was not moved, and is posted, which tells why, or moves it in another way.
    Not,
}

impl Operations {
    /// Starts a transfer.
    pub(crate) fn begin_transfer(
        &mut self,
        peer: Peer,
        plan: Plan<Near, RemoteRange>,
        context: &mut dyn Context,
    ) -> OperationId {
        self.others += 1;
        let mut transfer = Box::new(Transfer {
            plan,
            seen: None,
            stalled: false,
            is_moved_here: false,
            is_in_turn: false,
            is_draining: false,
        });
        transfer.look_who_moves(peer, context);
        let (id, ops) = (self.table.next_key(), [OpState::None; 2]);
        self.begin(id, (Kind::Transfer, peer, ""), None, ops, Some(Extra::Transfer(transfer)));
        self.run_transfer(id, Some(context));
        if let Some(waiting) = self.stalled.get_mut(&peer) {
            forget_ended(waiting, &self.table);
        }
        id
    }

    /// Whether there is a piece for this side to move.
    #[inline]
    #[must_use]
    pub fn has_moves(&self) -> bool {
        !self.to_move.is_empty()
    }

    /// The next piece that this side is to move, with a peer with which none is being moved. It is under way until
    /// [`Operations::handle_moved`].
    pub(crate) fn next_move(&mut self, context: &mut dyn Context) -> Option<Move> {
        while let Some(id) = self.to_move.pop_front() {
            let Some(operation) = self.table.get_mut(id) else { continue };
            let peer = operation.peer;
            if let Some(waiting) = self.moving.get_mut(&peer) {
                waiting.push_back(id); // It may wait for that peer's memory as long.
                forget_ended(waiting, &self.table);
                continue;
            }
            let Some(transfer) = operation.transfer() else { continue };
            let Some(piece) = transfer.plan.next_piece().filter(|_| transfer.is_moved_here) else {
                transfer.is_in_turn = false;
                continue;
            };
            let (plan, scheme) = (&mut transfer.plan, context.address().scheme());
            match plan.local().op(peer, &piece, plan.remote(), scheme) {
                Ok(op) => {
                    plan.handle_posted(&piece, OWN_MOVE);
                    self.moving.insert(peer, VecDeque::new());
                    return Some(Move { id, peer, piece, op });
                }
                Err(error) => {
                    plan.handle_refused(error.into());
                    transfer.is_in_turn = false;
                    self.run_transfer(id, Some(&mut *context));
                }
            }
        }
        None
    }

    /// The peer of an open transfer without a deadline whose pieces wait for their turn to be moved by this side. They are moved one
    /// after the other with all other pieces of that peer, so who waits for it is held up by any of those.
    pub fn moves_without_deadline(&mut self, id: OperationId) -> Option<Peer> {
        let operation =
            self.table.get_mut(id).filter(|it| it.is_open() && it.deadline.is_none())?;
        let peer = operation.peer;
        operation.transfer().filter(|it| it.is_in_turn).map(|_| peer)
    }

    /// No piece of this peer's is being moved any more: the others have their turn.
    fn end_moving(&mut self, peer: Peer) {
        let waiting = self.moving.remove(&peer).unwrap_or_default();
        self.to_move.extend(waiting);
    }

    /// What became of a piece that was to be moved.
    pub(crate) fn handle_moved(
        &mut self,
        moving: Move,
        came: Came,
        context: Option<&mut (dyn Context + 'static)>,
    ) {
        let Move { id, peer, piece, op } = moving;
        drop(op); // The plan holds its memory still.
        self.end_moving(peer);
        let Some(transfer) = self.table.get_mut(id).and_then(|it| it.transfer()) else { return };
        transfer.is_in_turn = false;
        match came {
            Came::Over => transfer.plan.handle_done(OWN_MOVE, Ok(())),
            Came::Later => {
                transfer.plan.handle_returned(&piece, OWN_MOVE);
                transfer.stalled = true;
                self.stalled.entry(peer).or_default().push_back(id);
            }
            Came::Not => {
                transfer.plan.handle_returned(&piece, OWN_MOVE);
                transfer.is_moved_here = false; // Until what is posted has ended.
            }
        }
        if context.is_none() {
            transfer.plan.abort(TransferError::Closed); // What was posted beside it was dropped.
        }
        self.run_transfer(id, context.map(|it| it as &mut dyn Context));
    }

    /// So many bytes were moved at once.
    #[inline]
    pub(crate) fn count_moved(&mut self, len: u64) {
        self.moved_at_once += len;
    }

    /// Whether so much was moved at once that a round is due: messages would wait for it otherwise.
    pub fn is_round_due(&mut self) -> bool {
        let is_due = self.moved_at_once >= ROUND_EVERY;
        if is_due {
            self.moved_at_once = 0;
        }
        is_due
    }

    /// An operation of the transport's has ended.
    pub(crate) fn handle_piece_done(
        &mut self,
        (id, op): (OperationId, OpId),
        result: Result<(), TransferError>,
        returned: Returned,
        context: &mut dyn Context,
    ) {
        let Some(operation) = self.table.get_mut(id) else { return };
        let peer = operation.peer;
        if let Some(transfer) = operation.transfer() {
            if let Returned::View(seen) = returned {
                transfer.seen = Some(seen);
            } else {
                drop(returned);
            }
            transfer.plan.handle_done(op, result);
            // A piece that may be given back is the last one: nothing is posted beside it.
            if !transfer.plan.is_open(OWN_MOVE) {
                transfer.look_who_moves(peer, context);
            }
        }
        self.run_transfer(id, Some(context));
    }

    /// Ends a transfer early. The transport has a moment to give its memory back; whoever waits is told then at the latest.
    pub fn stop_transfer(&mut self, id: OperationId, why: TransferError, now: Instant) {
        let Some(operation) = self.table.get_mut(id) else { return };
        let is_open = operation.is_open();
        let Some(transfer) = operation.transfer() else { return };
        // One that has failed by itself is not yet.
        let is_first = !std::mem::replace(&mut transfer.is_draining, true);
        transfer.plan.stop(why);
        if self.run_transfer(id, None) && is_first && is_open {
            self.arm(id, now + DRAIN_MAX);
        }
    }

    /// Ends those with a peer that is gone. What the transport had accepted completes by itself.
    pub(crate) fn stop_transfers_of(&mut self, peer: Peer, why: &TransferError, now: Instant) {
        for id in self.of(peer, |kind| kind == Kind::Transfer) {
            self.stop_transfer(id, why.clone(), now);
        }
        self.stalled.remove(&peer);
    }

    /// The transport is closed, and has dropped what was open. A piece that is being moved has its memory until it ends; whoever waits is told now, since
    /// nobody looks at deadlines any more.
    pub(super) fn abort_transfer(&mut self, id: OperationId, why: &TransferError) {
        if let Some(transfer) = self.table.get_mut(id).and_then(|it| it.transfer()) {
            if transfer.plan.is_open(OWN_MOVE) {
                transfer.plan.stop(why.clone());
            } else {
                transfer.plan.abort(why.clone());
            }
        }
        if self.run_transfer(id, None) {
            self.settle(id, Outcome::Moved(Moved::from(Err(why.clone()))), false);
        }
    }

    /// Its deadline has come up: it ends, or, where it was stopped before, is told although the transport has its memory still.
    pub(super) fn end_transfer_in_time(&mut self, id: OperationId, now: Instant) {
        let Some(transfer) = self.table.get_mut(id).and_then(|it| it.transfer()) else { return };
        match transfer.plan.stopped().cloned() {
            None => self.stop_transfer(id, TransferError::DeadlineExceeded, now),
            Some(why) => {
                self.settle(id, Outcome::Moved(Moved::from(Err(why))), false);
            }
        }
    }

    /// There is room at a peer: those that wait for it go on, until one is refused.
    pub(crate) fn hand_on_transfers(&mut self, peer: Peer, context: &mut dyn Context) {
        let mut waiting = self.stalled.remove(&peer).unwrap_or_default();
        while let Some(id) = waiting.pop_front() {
            let Some(transfer) = self.table.get_mut(id).and_then(|it| it.transfer()) else {
                continue; // It has ended.
            };
            transfer.stalled = false;
            self.run_transfer(id, Some(&mut *context));
            if self.stalled.contains_key(&peer) {
                break;
            }
        }
        if !waiting.is_empty() {
            self.stalled.entry(peer).or_default().append(&mut waiting);
        }
    }

    /// Does what a transfer wants done; posts nothing without a transport. Says whether it is under way still.
    fn run_transfer(&mut self, id: OperationId, mut context: Option<&mut dyn Context>) -> bool {
        let Some(operation) = self.table.get_mut(id) else { return false };
        let (peer, token) = (operation.peer, Owner::Transfer(id).token());
        let Some(transfer) = operation.transfer() else { return false };
        let plan = &mut transfer.plan;
        if transfer.is_moved_here
            && !transfer.stalled
            && plan.next_piece().is_some()
            && !std::mem::replace(&mut transfer.is_in_turn, true)
        {
            self.to_move.push_back(id);
        }
        while let Some(context) = &mut context
            && !transfer.is_moved_here
            && !transfer.stalled
            && let Some(piece) = plan.next_piece()
        {
            let scheme = context.address().scheme();
            let op = plan.local().op(peer, &piece, plan.remote(), scheme);
            match op.and_then(|op| context.post(token, op).map_err(|rejected| rejected.error)) {
                Ok(op) => plan.handle_posted(&piece, op),
                Err(hg_na::Error::Again) => {
                    transfer.stalled = true;
                    self.stalled.entry(peer).or_default().push_back(id);
                }
                Err(error) => plan.handle_refused(error.into()),
            }
        }
        while let Some(op) = plan.next_cancel() {
            if op == OWN_MOVE {
                continue;
            }
            self.effects.push(Effect::CancelOp(op));
        }
        let Some(result) = plan.take_outcome() else { return true };
        let result = result.map(|()| transfer.seen.take());
        let is_open = operation.is_open();
        let Some(Extra::Transfer(memory)) = operation.extra.take() else { return false };
        if is_open {
            let moved = Moved { result, _memory: Some(memory) };
            self.settle(id, Outcome::Moved(moved), false);
        } else {
            self.effects.push(Effect::Defer(Action::Drop(memory)));
            self.free_if_spent(id);
        }
        false
    }
}

/// Takes those that have ended out of a queue, once they are more than a half of it.
pub(super) fn forget_ended(waiting: &mut VecDeque<OperationId>, table: &Table<Operation>) {
    if waiting.len() > 2 * table.len() {
        waiting.retain(|id| table.get(*id).is_some());
    }
}
