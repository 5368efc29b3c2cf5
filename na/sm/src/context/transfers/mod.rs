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
//! | [`crate::ferry`] | where there is neither way: by both sides' copies, through their arenas |
//!
//! What waits for a peer, for its connection or for its copies, waits in that connection and is counted there, so that it
//! takes nothing from those with others.

mod at_once;
mod piece;
mod turns;

use std::collections::VecDeque;

use hg_na::{Error, Op, OpId, Peer, Rejected, Token};

use self::{
    piece::would_serve,
    turns::{PIECE, PIECE_ALONE},
};
use super::SmContext;
use crate::{
    connection::TRANSFERS,
    descriptor::RegionClaim,
    region::{
        cma::{Direction, Near},
        state::SmRegion,
    },
    transfer::{TRANSFERS_MAX, Transfer, region_of},
};

/// What the transfers of one context share.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    /// Connections with transfers that can be moved.
    turns: VecDeque<Peer>,
    /// Bytes that were moved at once since the last round.
    ahead: u64,
    /// Peers with whom transfers were to be begun later.
    pub(crate) later: Vec<Peer>,
    /// Nothing that is posted is moved by the kernel ([`hg_na::Context::begin_all`]).
    pub(crate) are_begun: bool,
}

impl Transfers {
    /// Whether nothing can be moved now.
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }
}

impl SmContext {
    pub(crate) fn post_transfer(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        let (direction, claim) = match self.check_transfer(&op) {
            Ok(checked) => checked,
            Err(error) => return Err(Rejected { op, error }),
        };
        let peer = op.peer();
        let (Op::Put { local, remote, .. } | Op::Get { local, remote, .. }) = op else {
            unreachable!("only transfers come here")
        };
        let id = self.next_id(peer);
        self.wish_for_mapping(peer, direction, &claim, remote.len());
        let (moved, is_begun) = (0, false);
        let transfer = Transfer { id, token, direction, claim, local, remote, moved, is_begun };
        let found = self.peers.find(peer).expect("found when the transfer was checked");
        found.transfers.push_back(transfer);
        self.start(peer);
        self.take_turns(peer);
        Ok(id)
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
        // Nothing is remembered, nor asked for, in the name of a claim that the table denies.
        let Ok(said) = link.theirs.table.look(claim) else { return };
        // By both sides' copies any transfer costs more than a mapping does.
        let len = if connection.ferry.is_chosen { u64::MAX } else { len };
        if would_serve(said.sharing, direction) {
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
