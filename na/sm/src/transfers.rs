//! Put and get: queued at the post, moved in pieces by the rounds that follow, so that neither blocks.
//!
//! Each piece resolves and pins the remote region anew ([`crate::region`]), so that a region that its
//! owner takes back in the middle of a long transfer ends it with `StaleDescriptor`.

use std::collections::VecDeque;

use hg_na::{
    Completion, Done, Error, GoneReason, LocalSlice, Op, OpId, Peer, Reached, Rejected,
    RemoteSlice, Returned, Rights, Token,
};

use crate::{
    connection::{Connection, failed},
    context::SmContext,
    fail,
    region::{
        cma::{self, Direction},
        descriptor::RegionClaim,
        state::SmRegion,
    },
    shared::copies::Piece,
};

/// Bytes that one round moves.
const PIECE: u64 = 1024 * 1024;
/// Transfers of one context that wait.
const TRANSFERS_MAX: usize = 1024;

/// A put or a get under way.
#[derive(Debug)]
struct Transfer {
    id: OpId,
    token: Token,
    peer: Peer,
    direction: Direction,
    claim: RegionClaim,
    local: LocalSlice,
    remote: RemoteSlice,
    moved: u64,
}

/// All transfers of one context.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    running: VecDeque<Transfer>,
    /// Those whose connection is not open yet.
    waiting: Vec<Transfer>,
}

impl Transfers {
    /// Whether nothing can be moved now.
    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// A connection is open: its transfers can start.
    pub(crate) fn opened(&mut self, peer: Peer) {
        self.running.extend(self.waiting.extract_if(.., |transfer| transfer.peer == peer));
    }

    /// Takes one out.
    pub(crate) fn cancel(&mut self, id: OpId) -> Option<Completion> {
        let transfer = match self.running.iter().position(|it| it.id == id) {
            Some(at) => self.running.remove(at),
            None => {
                let at = self.waiting.iter().position(|it| it.id == id)?;
                Some(self.waiting.swap_remove(at))
            }
        }?;
        Some(transfer.failed(Error::Cancelled))
    }

    /// Ends those with one peer.
    pub(crate) fn fail(&mut self, peer: Peer, reason: &GoneReason, done: &mut Vec<Completion>) {
        let error = || Error::PeerGone(reason.clone());
        let waiting = self.waiting.extract_if(.., |it| it.peer == peer);
        done.extend(waiting.map(|transfer| transfer.failed(error())));
        if self.running.iter().any(|it| it.peer == peer) {
            let (gone, others) =
                self.running.drain(..).partition::<VecDeque<_>, _>(|it| it.peer == peer);
            self.running = others;
            done.extend(gone.into_iter().map(|transfer| transfer.failed(error())));
        }
    }
}

impl Transfer {
    fn failed(self, error: Error) -> Completion {
        let reached = if self.moved == 0 { Reached::Never } else { Reached::Unknown };
        failed(self.id, self.token, error, reached, Returned::Slice(self.local))
    }

    /// Moves the next piece; `true`: that was the last.
    fn step(&mut self, connection: &mut Connection) -> Result<bool, Error> {
        let len = (self.remote.len() - self.moved).min(PIECE);
        let range = (self.remote.offset() + self.moved, len);
        let piece = Piece {
            direction: self.direction,
            claim: &self.claim,
            range,
            local: region_of(&self.local)?,
            local_offset: self.local.offset() + self.moved,
        };
        if let Some(copied) = piece.copy(connection) {
            copied?;
            self.moved += len;
            return Ok(self.moved == self.remote.len());
        }
        let (Some(link), Some(watch)) = (&connection.link, &connection.watch) else {
            return Err(Error::UnknownPeer);
        };
        let needed = match self.direction {
            Direction::Get => Rights::READ,
            Direction::Put => Rights::WRITE,
        };
        let mut far = Vec::new();
        let pins = &link.own.rings.pins.0;
        let pin = link.theirs.table.resolve(&self.claim, needed, range, pins, &mut far)?;
        fail::point("pinned");
        let near = self.local.offset() + self.moved;
        cma::transfer(self.direction, watch, region_of(&self.local)?, near, &far)?;
        drop(pin);
        self.moved += len;
        Ok(self.moved == self.remote.len())
    }
}

impl SmContext {
    pub(crate) fn post_transfer(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        let op = match self.copy_at_once(token, op) {
            Ok(id) => return Ok(id),
            Err(op) => op,
        };
        match self.check_transfer(&op) {
            Ok((direction, claim)) => {
                let (peer, Op::Put { local, remote, .. } | Op::Get { local, remote, .. }) =
                    (op.peer(), op)
                else {
                    unreachable!("only transfers come here")
                };
                let id = self.next_id(peer);
                self.wish_for_mapping(peer, direction, &claim, remote.len());
                let transfer =
                    Transfer { id, token, peer, direction, claim, local, remote, moved: 0 };
                if self.peers.find(peer).is_some_and(|it| it.is_open()) {
                    self.transfers.running.push_back(transfer);
                } else {
                    self.transfers.waiting.push(transfer);
                    self.start(peer);
                }
                self.chore();
                Ok(id)
            }
            Err(error) => Err(Rejected { op, error }),
        }
    }

    fn check_transfer(&mut self, op: &Op) -> Result<(Direction, RegionClaim), Error> {
        let (direction, local, remote) = match op {
            Op::Put { local, remote, .. } => (Direction::Put, local, remote),
            Op::Get { local, remote, .. } => (Direction::Get, local, remote),
            _ => return Err(Error::Unsupported("this operation")),
        };
        let connection = self.peers.find(op.peer()).ok_or(Error::UnknownPeer)?;
        if let Some(error) = connection.refusal() {
            return Err(error);
        }
        if self.transfers.running.len() + self.transfers.waiting.len() >= TRANSFERS_MAX {
            return Err(Error::Again);
        }
        if local.len() != remote.len() {
            let (offset, len, size) = (remote.offset(), local.len(), remote.len());
            return Err(Error::OutOfRange { offset, len, size });
        }
        let mut runs = Vec::new();
        region_of(local)?.runs(local.offset(), 0, direction == Direction::Get, &mut runs)?;
        Ok((direction, RegionClaim::decode(remote.descriptor().opaque())?))
    }

    /// Moves one piece of the oldest transfer.
    pub(crate) fn step_transfers(&mut self) -> bool {
        let Some(mut transfer) = self.transfers.running.pop_front() else { return false };
        let Some(connection) = self.peers.find(transfer.peer) else {
            self.finished.push(transfer.failed(Error::UnknownPeer));
            return true;
        };
        match transfer.step(connection) {
            Ok(false) => self.transfers.running.push_back(transfer),
            Ok(true) => {
                let Transfer { id, token, local, .. } = transfer;
                let returned = Returned::Slice(local);
                self.finished.push(Completion::Done(Done { id, token, result: Ok(()), returned }));
            }
            Err(error) => {
                let peer = transfer.peer;
                if let Error::PeerGone(reason) = &error {
                    self.end(peer, reason.clone());
                }
                self.finished.push(transfer.failed(error));
            }
        }
        self.has_chores |= !self.transfers.is_empty();
        true
    }
}

fn region_of(slice: &LocalSlice) -> Result<&SmRegion, Error> {
    let any: &dyn std::any::Any = slice.region().as_ref();
    any.downcast_ref().ok_or(Error::Unsupported("local memory of another plugin"))
}
