//! Put and get: queued at the post, moved in pieces by the rounds that follow, so that neither blocks.
//!
//! Each piece pins the remote region anew ([`crate::region`]), so that a region that its
//! owner takes back in the middle of a long transfer ends it with `StaleDescriptor`.
//!
//! | file | what |
//! |---|---|
//! | `piece` | one piece: checked, pinned, and moved through a mapping, or by the kernel (CMA) |
//! | `turns` | queued transfers, piece by piece |
//! | `at_once` | those that need no queue: short ones, and what is moved by whoever asked |
//! | `ferry` | where there is neither way: by both sides' copies, through their arenas |
//!
//! What waits for a peer, for its connection or for its copies, waits in that connection and is counted there, so that it
//! takes nothing from those with others.

mod at_once;
pub(crate) mod ferry;
mod piece;
mod turns;

use std::collections::VecDeque;

use hg_na::{
    Completion, Done, Error, GoneReason, LocalSlice, Op, OpId, Peer, Reached, RegionState,
    Rejected, RemoteSlice, Returned, Rights, Token,
};

use self::{
    piece::{needed_for, would_serve},
    turns::{PIECE, PIECE_ALONE},
};
use crate::{
    connection::{Connection, failed},
    context::SmContext,
    region::{
        cma::{Direction, Near, Scratch},
        descriptor::RegionClaim,
        state::SmRegion,
    },
    space::TRANSFERS,
};

/// Transfers with one peer that wait.
pub(crate) const TRANSFERS_MAX: usize = 1024;

/// A put or a get under way.
#[derive(Debug)]
pub(crate) struct Transfer {
    id: OpId,
    token: Token,
    direction: Direction,
    claim: RegionClaim,
    local: LocalSlice,
    remote: RemoteSlice,
    moved: u64,
    /// Some bytes may have been moved.
    is_begun: bool,
}

/// What the transfers of one context share.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    /// Connections with transfers that can be moved.
    turns: VecDeque<Peer>,
    scratch: Scratch,
    /// Bytes that were moved at once since the last round.
    ahead: u64,
}

impl Transfers {
    /// Whether nothing can be moved now.
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

impl Connection {
    /// Transfers that wait, for whatever.
    pub(crate) fn transfers_waiting(&self) -> usize {
        self.transfers.len() + self.ferry.len()
    }

    /// Takes one out that is cancelled.
    pub(crate) fn cancel_transfer(&mut self, serial: u64) -> Option<Completion> {
        let Some(at) = self.transfers.iter().position(|it| it.id.serial == serial) else {
            return self.ferry.cancel(serial);
        };
        Some(self.transfers.remove(at)?.failed(Error::Cancelled))
    }

    /// Ends all of them.
    pub(crate) fn fail_transfers(&mut self, reason: &GoneReason, done: &mut Vec<Completion>) {
        self.ferry.fail(reason, done);
        let ended = self.transfers.drain(..);
        done.extend(ended.map(|transfer| transfer.failed(Error::PeerGone(reason.clone()))));
    }
}

impl Transfer {
    fn failed(self, error: Error) -> Completion {
        let reached = if self.is_begun { Reached::Unknown } else { Reached::Never };
        failed(self.id, self.token, error, reached, Returned::Slice(self.local))
    }

    /// Bytes that are still to be moved.
    fn left(&self) -> u64 {
        self.remote.len() - self.moved
    }

    /// The rights that it needs at the peer.
    fn needs(&self) -> Rights {
        needed_for(self.direction)
    }

    fn succeeded(self) -> Completion {
        let Self { id, token, local, .. } = self;
        Completion::Done(Done { id, token, result: Ok(()), returned: Returned::Slice(local) })
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
                let transfer = Transfer {
                    id,
                    token,
                    direction,
                    claim,
                    local,
                    remote,
                    moved: 0,
                    is_begun: false,
                };
                let Some(connection) = self.peers.find(peer) else {
                    unreachable!("found when the transfer was checked")
                };
                connection.transfers.push_back(transfer);
                self.start(peer);
                self.take_turns(peer);
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
        let Some(connection) = self.peers.find(op.peer()) else { return Err(Error::UnknownPeer) };
        if let Some(error) = connection.refusal() {
            return Err(error);
        }
        if connection.transfers_waiting() >= TRANSFERS_MAX {
            connection.refusals.add(TRANSFERS);
            return Err(Error::Again);
        }
        if local.len() != remote.len() {
            let (offset, len, size) = (remote.offset(), local.len(), remote.len());
            return Err(Error::OutOfRange { offset, len, size });
        }
        let mut runs = Vec::new();
        region_of(local.region().as_ref())?.runs(
            local.offset(),
            0,
            direction == Direction::Get,
            &mut runs,
        )?;
        Ok((direction, RegionClaim::decode(remote.descriptor().opaque())?))
    }

    /// A transfer that was not done at once: asks for a mapping where one would serve it, and is worth it.
    fn wish_for_mapping(
        &mut self,
        peer: Peer,
        direction: Direction,
        claim: &RegionClaim,
        len: u64,
    ) {
        let Some(connection) = self.peers.find(peer).filter(|it| it.is_open()) else { return };
        let Some(link) = &connection.link else { return };
        let sharing = link.theirs.table.sharing(claim);
        // By both sides' copies any transfer costs more than a mapping does.
        let len = if connection.ferry.is_chosen { u64::MAX } else { len };
        if would_serve(sharing, direction) {
            // Without it the transfer goes on by other means.
            let _next_time = self.ask_for_mapping(peer, claim, Some(len));
        }
    }
}

#[inline(always)]
fn near_of(direction: Direction, region: &SmRegion, offset: u64) -> Near<'_> {
    match direction {
        Direction::Get => Near::Into(region, offset),
        Direction::Put => Near::From(region, offset),
    }
}

#[inline(always)]
pub(crate) fn region_of(state: &dyn RegionState) -> Result<&SmRegion, Error> {
    let any: &dyn std::any::Any = state;
    match any.downcast_ref() {
        Some(region) => Ok(region),
        None => Err(Error::Unsupported("local memory of another plugin")),
    }
}
