//! Transfers that are over when they were asked for, without an operation that is queued, looked up and completed.
//!
//! Copying has flushed the caches of everything but its bytes: each line of code and memory that comes between two
//! transfers costs a good deal more than its instructions. So the long way is left to transfers that need it.

use hg_na::{Descriptor, Error, Peer, Rights, Transit};

use super::{
    Transfers,
    kernel::{PIECE, PIECE_ALONE},
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
        pins::{self, Pin},
        plan::Run,
        state::SmRegion,
    },
    shared::{
        Sharing,
        copies::{self, Piece},
    },
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
    #[inline(always)]
    pub(crate) fn transfer_now(&mut self, transit: &Transit<'_>, most: u64) -> bool {
        let Transit { direction, peer, local, local_offset, remote, remote_offset, len } = *transit;
        if len > most.min(PIECE) || self.transfers.ahead + len > self.turn() {
            return false;
        }
        let Self { peers, transfers: Transfers { running, scratch, ahead, .. }, .. } = self;
        let Ok(region) = region_of(local) else { return false };
        let Ok(claim) = RegionClaim::decode(remote.opaque()) else { return false };
        let open = peers.find(peer).filter(|it| it.is_open());
        let Some(connection) = open else { return false };
        let range = (remote_offset, len);
        let piece = Piece { direction, claim: &claim, range, local: region, local_offset };
        let is_done = match piece.copy(connection) {
            Some(copied) => copied.is_ok(),
            None if (SHORT_MAX + 1..=QUEUED_MAX).contains(&len) => false,
            None if !running.is_empty() => false,
            None if connection.ferry.is_chosen => false,
            None => move_one(&piece, connection, Batch::new(direction, scratch)),
        };
        if is_done {
            *ahead += len;
        }
        is_done
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
        if !(1..=QUEUED_MAX).contains(&len) || self.transfers.ahead + len > self.turn() {
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

/// Has the kernel move it; says whether it did.
fn move_one<'a>(piece: &Piece<'a>, connection: &Connection, mut kernel: Batch<'a>) -> bool {
    let (Some(link), Some(watch)) = (&connection.link, &connection.watch) else { return false };
    let Ok(pin) = add(piece.local, piece, &mut kernel, link) else { return false };
    fail::point("pinned");
    let (_, result) = kernel.transfer(watch);
    drop(pin);
    result.is_ok()
}

/// Has the kernel read it into a slice; says whether it did.
fn read_one(
    claim: &RegionClaim,
    offset: u64,
    into: &mut [u8],
    connection: &Connection,
    scratch: &mut Scratch,
) -> bool {
    let (Some(link), Some(watch)) = (&connection.link, &connection.watch) else { return false };
    let mut kernel = Batch::new(Direction::Get, scratch);
    let range = (offset, into.len() as u64);
    let Ok(pin) = kernel.add_slice(into, |far| pin(claim, Rights::READ, range, link, far)) else {
        return false;
    };
    fail::point("pinned");
    let (_, result) = kernel.transfer(watch);
    drop(pin);
    result.is_ok()
}

/// Pins it, and adds it to what the kernel is to move. Memory that could be mapped is asked for in a round.
#[inline]
fn add<'a, 'l>(
    local: &'a SmRegion,
    piece: &Piece<'_>,
    kernel: &mut Batch<'a>,
    link: &'l Link,
) -> Result<Pin<'l>, Error> {
    let needed = needed_for(piece.direction);
    let near = (piece.local_offset, piece.range.1);
    kernel.add(local, near, |far| pin(piece.claim, needed, piece.range, link, far))
}

fn needed_for(direction: Direction) -> Rights {
    match direction {
        Direction::Get => Rights::READ,
        Direction::Put => Rights::WRITE,
    }
}

/// Pins a range of the peer's, and appends where it lies.
#[inline]
fn pin<'l>(
    claim: &RegionClaim,
    needed: Rights,
    range: (u64, u64),
    link: &'l Link,
    far: &mut Vec<Run>,
) -> Result<Pin<'l>, Error> {
    let pin = link.theirs.table.announce(claim, &link.own.rings.pins.0)?;
    pins::settle();
    hold(pin, claim, needed, range, link, far)
}

/// Checks what was announced, and appends where it lies.
#[inline(always)]
fn hold<'l>(
    announced: Pin<'l>,
    claim: &RegionClaim,
    needed: Rights,
    range: (u64, u64),
    link: &Link,
    far: &mut Vec<Run>,
) -> Result<Pin<'l>, Error> {
    let table = &link.theirs.table;
    let admitted = table.check(announced, claim, needed, range)?;
    if admitted.sharing != Sharing::No {
        return Err(Error::Unsupported("moving by the kernel what can be mapped"));
    }
    table.append_runs(claim.index, range, far)?;
    Ok(admitted.pin)
}
