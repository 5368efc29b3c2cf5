//! Transfers that are not queued, looked up and completed: short ones are over when they were asked for, longer ones are
//! left to whoever asked, to be moved without the context.
//!
//! Copying has flushed the caches of everything but its bytes: each line of code and memory that comes between two
//! transfers costs a good deal more than its instructions. So the long way is left to transfers that need it. What goes
//! wrong here goes wrong again in a round, which tells it.

use hg_na::{Begun, Descriptor, Op, OpId, Peer, Returned, Token, Transit};

use super::{PIECE, PIECE_ALONE, Transfers, near_of, piece::Piece};
use crate::{
    completion::done,
    context::SmContext,
    region::{cma::Near, descriptor::RegionClaim},
    transfer::region_of,
};

/// So many bytes are moved sooner than they are handed over, or queued, completed and their task is woken: a handler that
/// pulls 4 KiB took 4,000 instructions more.
const SHORT_MAX: u64 = 16 * 1024;
/// The same for bytes that are fetched through a mapping, which need a region of their own otherwise, or are copied inside
/// of `post`.
const COPIED_MAX: u64 = 64 * 1024;
/// Completions that may wait to be collected before transfers queue up instead.
const COLLECTED_LATER_MAX: usize = 1024;

impl Transfers {
    /// A round has begun: as much again may be moved at once.
    #[inline(always)]
    pub(crate) fn begin_round(&mut self) {
        self.ahead = 0;
    }
}

impl SmContext {
    /// Begins a transfer, if nothing stands before it; does it, if it is short.
    #[inline(always)]
    pub(crate) fn begin_now<'near>(&mut self, transit: &Transit<'near, '_>) -> Begun<'near> {
        let Transit { direction, peer, remote_offset, len, .. } = *transit;
        if self.transfers.ahead + len > self.turn() {
            return Begun::No;
        }
        let Some((near, claim)) = sides_of(transit) else { return Begun::No };
        let piece = Piece { near, claim: &claim, range: (remote_offset, len) };
        let Self { peers, transfers: Transfers { scratch, ahead, .. }, guard, .. } = self;
        let Some(connection) = peers.find(peer).filter(|it| it.is_open()) else { return Begun::No };
        let is_first = connection.transfers.is_empty();
        let Ok(Some(pinned)) = piece.admit(connection, is_first) else { return Begun::No };
        let wants_mapping = pinned.wants_mapping;
        if len <= SHORT_MAX {
            if wants_mapping || piece.run(pinned, scratch).1.is_err() {
                return Begun::No; // Posting it asks for the mapping.
            }
            *ahead += len;
            return Begun::Over;
        }
        let Ok(carried) = piece.carry(pinned, guard) else { return Begun::No };
        *ahead += len;
        let begun = Begun::Ready(Box::new(carried));
        if wants_mapping {
            self.wish_for_mapping(peer, direction, &claim, len);
        }
        begun
    }

    /// Gets bytes into memory that is not registered, at once, if nothing stands before it; says whether it did.
    #[inline]
    pub(crate) fn fetch_now(
        &mut self,
        owner: Peer,
        remote: &Descriptor,
        offset: u64,
        into: &mut [u8],
    ) -> bool {
        let len = into.len() as u64;
        if !(1..=COPIED_MAX).contains(&len) || self.transfers.ahead + len > self.turn() {
            return false;
        }
        let Ok(claim) = RegionClaim::decode(remote.opaque()) else { return false };
        let Self { peers, transfers: Transfers { scratch, ahead, .. }, .. } = self;
        let open = peers.find(owner).filter(|it| it.is_open());
        let Some(connection) = open else { return false };
        let piece = Piece { near: Near::Slice(into), claim: &claim, range: (offset, len) };
        let by_kernel = len <= SHORT_MAX && connection.transfers.is_empty();
        let Ok(Some(pinned)) = piece.admit(connection, by_kernel) else { return false };
        // Memory that could be mapped is asked for in a round.
        let is_done = !pinned.wants_mapping && piece.run(pinned, scratch).1.is_ok();
        if is_done {
            *ahead += len;
        }
        is_done
    }

    /// Does a short transfer at once, when the memory is mapped; its completion is collected by the next round.
    #[inline]
    pub(super) fn copy_at_once(&mut self, token: Token, op: Op) -> Result<OpId, Op> {
        if self.finished.len() >= COLLECTED_LATER_MAX || !self.copied_now(&op) {
            return Err(op);
        }
        let id = self.next_id(op.peer());
        let (Op::Put { local, .. } | Op::Get { local, .. }) = op else {
            unreachable!("only transfers are copied")
        };
        self.finished.push(done(id, token, Returned::Slice(local)));
        self.has_leftovers = true;
        Ok(id)
    }

    fn copied_now(&mut self, op: &Op) -> bool {
        let Some(transit) = op.transit().filter(|it| it.len <= COPIED_MAX) else { return false };
        let Some((near, claim)) = sides_of(&transit) else { return false };
        let Self { peers, transfers: Transfers { scratch, .. }, .. } = self;
        let open = peers.find(transit.peer).filter(|it| it.is_open());
        let Some(connection) = open else { return false };
        let piece = Piece { near, claim: &claim, range: (transit.remote_offset, transit.len) };
        let Ok(Some(pinned)) = piece.admit(connection, false) else { return false };
        piece.run(pinned, scratch).1.is_ok()
    }

    /// What a turn moves is moved between two rounds at most.
    pub(super) fn turn(&self) -> u64 {
        if self.empty_rounds > 0 { PIECE_ALONE } else { PIECE }
    }
}

/// The memory of both sides, where it is this plugin's.
#[inline(always)]
fn sides_of<'near>(transit: &Transit<'near, '_>) -> Option<(Near<'near>, RegionClaim)> {
    let claim = RegionClaim::decode(transit.remote.opaque()).ok()?;
    let local = region_of(transit.local).ok()?;
    Some((near_of(transit.direction, local, transit.local_offset), claim))
}
