//! Transfers that are not queued, looked up and completed: short ones are over when they were asked for, longer ones are
//! left to whoever asked, to be moved without the context.
//!
//! Copying has flushed the caches of everything but its bytes: each line of code and memory that comes between two
//! transfers costs a good deal more than its instructions. So the long way is left to transfers that need it.

use hg_na::{Begun, Descriptor, Error, Peer, Rights, Transit};

use super::{
    Transfers,
    kernel::{PIECE, PIECE_ALONE},
    mover::{Copying, Kept, Moving},
    region_of,
};
use crate::{
    connection::Connection,
    context::SmContext,
    fail,
    link::Link,
    region::{
        cma::{Batch, Direction, Scratch},
        descriptor::RegionClaim,
        pins::Pin,
    },
    shared::{
        Sharing,
        copies::{self, Piece, needed_for},
    },
};

/// So many bytes are moved sooner than they are handed over, or queued, completed and their task is woken: a handler that
/// pulls 4 KiB took 4,000 instructions more.
const SHORT_MAX: u64 = 16 * 1024;
/// The same for bytes that are fetched through a mapping, which need a region of their own otherwise.
const FETCHED_MAX: u64 = 64 * 1024;

impl Transfers {
    /// A round has begun: as much again may be moved at once.
    #[inline(always)]
    pub(crate) fn begin_round(&mut self) {
        self.ahead = 0;
    }
}

impl SmContext {
    /// Begins a transfer, if nothing stands before it; does it, if it is short. What goes wrong goes wrong again in a
    /// round, which tells it.
    #[inline(always)]
    pub(crate) fn begin_now<'near>(&mut self, transit: &Transit<'near, '_>) -> Begun<'near> {
        let Transit { direction, peer, local, local_offset, remote, remote_offset, len } = *transit;
        if self.transfers.ahead + len > self.turn() {
            return Begun::No;
        }
        let Ok(local) = region_of(local) else { return Begun::No };
        let Ok(claim) = RegionClaim::decode(remote.opaque()) else { return Begun::No };
        let range = (remote_offset, len);
        let piece = Piece { direction, claim: &claim, range, local, local_offset };
        let begun = if len <= SHORT_MAX {
            self.move_short(peer, &piece).then_some(Begun::Over)
        } else {
            self.begin_copy(peer, &piece).or_else(|| self.begin_call(peer, &piece))
        };
        let Some(begun) = begun else { return Begun::No };
        self.transfers.ahead += len;
        begun
    }

    /// Moves it; says whether it is over.
    #[inline(always)]
    fn move_short(&mut self, peer: Peer, piece: &Piece<'_, '_>) -> bool {
        let Self { peers, transfers: Transfers { running, scratch, .. }, .. } = self;
        let Some(connection) = peers.find(peer).filter(|it| it.is_open()) else { return false };
        if let Some(copied) = piece.copy(connection) {
            return copied.is_ok();
        }
        if !running.is_empty() || connection.ferry.is_chosen {
            return false;
        }
        let (Some(link), Some(watch)) = (&connection.link, &connection.watch) else { return false };
        if link.theirs.table.sharing(piece.claim) != Sharing::No {
            return false; // Posting it asks for the mapping.
        }
        let mut kernel = Batch::new(piece.direction, scratch);
        let Ok(pin) = add(piece, &mut kernel, link) else { return false };
        fail::point("pinned");
        let (_, result) = kernel.transfer(watch);
        drop(pin);
        result.is_ok()
    }

    /// Through a mapping; `None`: there is none that would do, or it cannot be done.
    fn begin_copy<'near>(&mut self, peer: Peer, piece: &Piece<'near, '_>) -> Option<Begun<'near>> {
        let connection = self.peers.find(peer).filter(|it| it.is_open())?;
        let Connection { maps, link: Some(link), .. } = connection else { return None };
        let pages = maps.find(piece.claim)?;
        if !piece.is_served_by(pages) {
            return None;
        }
        let (table, words) = (&link.theirs.table, &link.own.rings.pins.0);
        let admitted = table.admit(piece.claim, needed_for(piece.direction), piece.range, words);
        let kept = Kept::new(admitted.ok()?, &link.own.rings, &self.guard);
        Some(Begun::Ready(Box::new(Copying::new(piece, pages, kept))))
    }

    /// By the kernel; `None`: it cannot be done, or others wait for it.
    fn begin_call<'near>(&mut self, peer: Peer, piece: &Piece<'near, '_>) -> Option<Begun<'near>> {
        let connection = self.peers.find(peer).filter(|it| it.is_open() && !it.ferry.is_chosen)?;
        let (Some(link), Some(watch)) = (&connection.link, &connection.watch) else { return None };
        if !self.transfers.running.is_empty() {
            return None;
        }
        let mut runs = Scratch::default();
        let pin = add(piece, &mut Batch::new(piece.direction, &mut runs), link).ok()?;
        let could_be_mapped = link.theirs.table.sharing(piece.claim) != Sharing::No;
        fail::point("pinned");
        let kept = Kept::new(pin, &link.own.rings, &self.guard);
        let begun = Begun::Ready(Box::new(Moving::new(piece, runs, watch, kept)));
        if could_be_mapped {
            self.wish_for_mapping(peer, piece.direction, piece.claim, piece.range.1);
        }
        Some(begun)
    }

    /// Whether transfers with this peer are begun.
    pub(crate) fn moves_with(&mut self, peer: Peer) -> bool {
        self.peers.find(peer).is_some_and(|it| it.is_open() && !it.ferry.is_chosen)
    }

    /// Gets bytes into memory that is not registered, at once, if nothing stands before it; says whether it did. What goes
    /// wrong goes wrong again in a round, which tells it.
    #[inline]
    pub(crate) fn fetch_now(
        &mut self,
        owner: Peer,
        remote: &Descriptor,
        offset: u64,
        into: &mut [u8],
    ) -> bool {
        let len = into.len() as u64;
        if !(1..=FETCHED_MAX).contains(&len) || self.transfers.ahead + len > self.turn() {
            return false;
        }
        let Self { peers, transfers: Transfers { running, scratch, ahead, .. }, .. } = self;
        let Ok(claim) = RegionClaim::decode(remote.opaque()) else { return false };
        let open = peers.find(owner).filter(|it| it.is_open());
        let Some(connection) = open else { return false };
        let is_done = match copies::copy_out(connection, &claim, offset, into) {
            Some(copied) => copied.is_ok(),
            None if len > SHORT_MAX || !running.is_empty() || connection.ferry.is_chosen => false,
            None => read_one(&claim, offset, into, connection, scratch),
        };
        if is_done {
            *ahead += len;
        }
        is_done
    }

    /// What a turn moves is moved between two rounds at most.
    fn turn(&self) -> u64 {
        if self.empty_rounds > 0 { PIECE_ALONE } else { PIECE }
    }
}

/// Pins it, and adds it to what the kernel is to move.
#[inline]
fn add<'near, 'link>(
    piece: &Piece<'near, '_>,
    kernel: &mut Batch<'near>,
    link: &'link Link,
) -> Result<Pin<'link>, Error> {
    let (table, words) = (&link.theirs.table, &link.own.rings.pins.0);
    let (near, needed) = ((piece.local_offset, piece.range.1), needed_for(piece.direction));
    kernel.add(piece.local, near, |far| table.resolve(piece.claim, needed, piece.range, words, far))
}

/// Has the kernel read it into a slice; says whether it did. Memory that could be mapped is asked for in a round.
fn read_one(
    claim: &RegionClaim,
    offset: u64,
    into: &mut [u8],
    connection: &Connection,
    scratch: &mut Scratch,
) -> bool {
    let (Some(link), Some(watch)) = (&connection.link, &connection.watch) else { return false };
    let (table, words) = (&link.theirs.table, &link.own.rings.pins.0);
    if table.sharing(claim) != Sharing::No {
        return false;
    }
    let mut kernel = Batch::new(Direction::Get, scratch);
    let range = (offset, into.len() as u64);
    let pinned =
        kernel.add_slice(into, |far| table.resolve(claim, Rights::READ, range, words, far));
    let Ok(pin) = pinned else { return false };
    fail::point("pinned");
    let (_, result) = kernel.transfer(watch);
    drop(pin);
    result.is_ok()
}
