//! Transfers that are over when they were asked for, without an operation that is queued, looked up and completed.
//!
//! Copying has flushed the caches of everything but its bytes: each line of code and memory that comes between two
//! transfers costs a good deal more than its instructions. So the long way is left to transfers that need it.

use hg_na::{Rights, Transit};

use super::{
    Transfers,
    kernel::{PIECE, PIECE_ALONE},
    region_of,
};
use crate::{
    connection::Connection,
    context::SmContext,
    fail,
    region::{
        cma::{Batch, Direction},
        descriptor::RegionClaim,
    },
    shared::{Sharing, copies::Piece},
};

/// The kernel moves so many sooner than they are queued, completed and their task is woken: a handler that pulls 4 KiB
/// took 4,000 instructions more.
const SHORT_MAX: u64 = 16 * 1024;
/// Up to here those that are longer are queued where the kernel is to move them: several share a call.
const QUEUED_MAX: u64 = 64 * 1024;

impl Transfers {
    /// A round has begun: as much again may be moved at once.
    #[inline(always)]
    pub(crate) fn begin_round(&mut self) {
        self.ahead = 0;
    }
}

impl SmContext {
    /// Does a transfer of at most `most` bytes at once, if nothing stands before it; says whether it did. What goes
    /// wrong goes wrong again in a round, which tells it.
    pub(crate) fn transferred_now(&mut self, transit: &Transit<'_>, most: u64) -> bool {
        let Transit { direction, peer, local, local_offset, remote, remote_offset, len } = *transit;
        // What a turn moves is moved between two rounds at most.
        let turn = if self.empty_rounds > 0 { PIECE_ALONE } else { PIECE };
        if len > most.min(PIECE) || self.transfers.ahead + len > turn {
            return false;
        }
        let Self { peers, transfers: Transfers { running, scratch, ahead, .. }, .. } = self;
        let Ok(region) = region_of(local) else { return false };
        let Ok(claim) = RegionClaim::decode(remote.opaque()) else { return false };
        let Some(connection) = peers.find(peer).filter(|it| it.is_open()) else { return false };
        let range = (remote_offset, len);
        let piece = Piece { direction, claim: &claim, range, local: region, local_offset };
        let is_done = match piece.copy(connection) {
            Some(copied) => copied.is_ok(),
            None if (SHORT_MAX + 1..=QUEUED_MAX).contains(&len) => false,
            None if !running.is_empty() => false,
            None => piece.move_by_kernel(connection, Batch::new(direction, scratch)),
        };
        if is_done {
            *ahead += len;
        }
        is_done
    }
}

impl<'a> Piece<'a> {
    /// Has the kernel move it; says whether it did.
    fn move_by_kernel(&self, connection: &Connection, mut kernel: Batch<'a>) -> bool {
        let (Some(link), Some(watch)) = (&connection.link, &connection.watch) else { return false };
        let table = &link.theirs.table;
        // Memory that could be mapped is asked for in a round.
        if connection.ferry.is_chosen || table.sharing(self.claim) != Sharing::No {
            return false;
        }
        let needed = match self.direction {
            Direction::Get => Rights::READ,
            Direction::Put => Rights::WRITE,
        };
        let near = (self.local_offset, self.range.1);
        let words = &link.own.rings.pins.0;
        let pinned = kernel
            .add(self.local, near, |far| table.resolve(self.claim, needed, self.range, words, far));
        let Ok(pin) = pinned else { return false };
        fail::point("pinned");
        let (_, result) = kernel.transfer(watch);
        drop(pin);
        result.is_ok()
    }
}
