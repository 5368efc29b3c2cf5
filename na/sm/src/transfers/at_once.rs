//! Transfers that are over when they were asked for, without an operation that is queued, looked up and completed.
//!
//! Copying has flushed the caches of everything but its bytes: each line of code and memory that comes between two
//! transfers costs a good deal more than its instructions. So the long way is left to transfers that need it.

use std::array;

use hg_na::{Error, Moved, Rights, Transit};

use super::{
    Transfers,
    kernel::{PIECE, PIECE_ALONE},
    region_of,
};
use crate::{
    connection::Connection,
    context::SmContext,
    fail,
    layout::PINS,
    link::Link,
    os::death::ProcessWatch,
    region::{
        cma::{Batch, Direction, Scratch},
        descriptor::RegionClaim,
        pins::Pin,
        state::SmRegion,
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
    /// wrong goes wrong again in a round, which tells it. `gathers`: a short one that takes the kernel is left for
    /// [`SmContext::transfer_together`].
    #[inline(always)]
    pub(crate) fn transfer_now(
        &mut self,
        transit: &Transit<'_>,
        most: u64,
        gathers: bool,
    ) -> Moved {
        let Transit { direction, peer, local, local_offset, remote, remote_offset, len } = *transit;
        if len > most.min(PIECE) || self.transfers.ahead + len > self.turn() {
            return Moved::Not;
        }
        let Self { peers, transfers: Transfers { running, scratch, ahead, .. }, .. } = self;
        let Ok(region) = region_of(local) else { return Moved::Not };
        let Ok(claim) = RegionClaim::decode(remote.opaque()) else { return Moved::Not };
        let open = peers.find(peer).filter(|it| it.is_open());
        let Some(connection) = open else { return Moved::Not };
        let range = (remote_offset, len);
        let piece = Piece { direction, claim: &claim, range, local: region, local_offset };
        let is_done = match piece.copy(connection) {
            Some(copied) => copied.is_ok(),
            None if (SHORT_MAX + 1..=QUEUED_MAX).contains(&len) => false,
            None if !running.is_empty() => false,
            None => match way_by_kernel(&claim, connection) {
                None => false,
                Some(_) if gathers && len <= SHORT_MAX => return Moved::Gather,
                Some((link, watch)) => {
                    let mut kernel = Batch::new(direction, scratch);
                    let pinned = piece.add_to(&mut kernel, link);
                    pinned.is_ok_and(|pin| {
                        fail::point("pinned");
                        let (_, result) = kernel.transfer(watch);
                        drop(pin);
                        result.is_ok()
                    })
                }
            },
        };
        if !is_done {
            return Moved::Not;
        }
        *ahead += len;
        Moved::Over
    }

    /// What a turn moves is moved between two rounds at most.
    fn turn(&self) -> u64 {
        if self.empty_rounds > 0 { PIECE_ALONE } else { PIECE }
    }

    /// The same for several: short ones to one peer share a call, and the look at its process.
    pub(crate) fn transfer_together(
        &mut self,
        transits: &[Transit<'_>],
        most: u64,
        done: &mut [bool],
    ) {
        let alike = |a: &Transit<'_>, b: &Transit<'_>| {
            (a.peer, a.direction) == (b.peer, b.direction) && a.len.max(b.len) <= SHORT_MAX
        };
        let mut done = &mut done[..transits.len()];
        for batch in transits.chunk_by(alike).flat_map(|alike| alike.chunks(PINS)) {
            let here;
            (here, done) = done.split_at_mut(batch.len());
            if let [transit] = batch {
                here[0] = self.transfer_now(transit, most, false) == Moved::Over;
            } else {
                here.fill(false);
                self.transfer_batch(batch, most, here);
            }
        }
    }

    /// At most [`PINS`] short ones of one peer and one direction.
    fn transfer_batch(&mut self, batch: &[Transit<'_>], most: u64, done: &mut [bool]) {
        let room = self.turn().saturating_sub(self.transfers.ahead);
        let Self { peers, transfers: Transfers { running, scratch, ahead, .. }, .. } = self;
        let open = batch.first().and_then(|it| peers.find(it.peer)).filter(|it| it.is_open());
        let Some(connection) = open else { return };
        let mut parts: [Option<Part<'_>>; PINS] = array::from_fn(|_| None);
        let mut asked = 0;
        for ((transit, done), part) in batch.iter().zip(&mut *done).zip(&mut parts) {
            asked += transit.len;
            if transit.len > most || asked > room {
                continue;
            }
            let Some(it) = Part::of(transit) else { continue };
            match it.piece().copy(connection) {
                Some(copied) => *done = copied.is_ok(),
                None if running.is_empty() => *part = Some(it),
                None => {}
            }
        }
        move_together(&parts, connection, scratch, done);
        let moved = batch.iter().zip(done).filter(|(_, done)| **done).map(|(it, _)| it.len);
        *ahead += moved.sum::<u64>();
    }
}

/// One of a batch, as far as it concerns this plugin.
#[derive(Debug)]
struct Part<'a> {
    direction: Direction,
    claim: RegionClaim,
    range: (u64, u64),
    local: &'a SmRegion,
    local_offset: u64,
}

impl<'a> Part<'a> {
    fn of(transit: &Transit<'a>) -> Option<Self> {
        let Transit { direction, local, local_offset, remote, remote_offset, len, .. } = *transit;
        let claim = RegionClaim::decode(remote.opaque()).ok()?;
        let local = region_of(local).ok()?;
        Some(Self { direction, claim, range: (remote_offset, len), local, local_offset })
    }

    fn piece(&self) -> Piece<'_> {
        let Self { direction, ref claim, range, local, local_offset } = *self;
        Piece { direction, claim, range, local, local_offset }
    }
}

/// Has the kernel move them in one call. It does so one after the other: where it stops, those before are done.
fn move_together(
    parts: &[Option<Part<'_>>; PINS],
    connection: &Connection,
    scratch: &mut Scratch,
    done: &mut [bool],
) {
    let Some(direction) = parts.iter().flatten().next().map(|part| part.direction) else { return };
    let mut kernel = Batch::new(direction, scratch);
    let mut pins: [Option<Pin<'_>>; PINS] = array::from_fn(|_| None);
    let mut watched = None;
    for (part, place) in parts.iter().zip(&mut pins) {
        let Some(part) = part else { continue };
        let Some((link, watch)) = way_by_kernel(&part.claim, connection) else { continue };
        *place = part.piece().add_to(&mut kernel, link).ok();
        watched = Some(watch);
    }
    let Some(watch) = watched else { return };
    fail::point("pinned");
    let (mut moved, result) = kernel.transfer(watch);
    for ((part, pin), done) in parts.iter().zip(pins).zip(done) {
        if let (Some(part), Some(pin)) = (part, pin) {
            let (_, len) = part.range;
            *done = len <= moved && (len > 0 || result.is_ok());
            moved = moved.saturating_sub(len);
            drop(pin);
        }
    }
}

/// Where the kernel is the way to move it: its table and its process. Memory that could be mapped is asked for in a round.
#[inline]
fn way_by_kernel<'c>(
    claim: &RegionClaim,
    connection: &'c Connection,
) -> Option<(&'c Link, &'c ProcessWatch)> {
    let (link, watch) = (connection.link.as_ref()?, connection.watch.as_ref()?);
    let is_it = !connection.ferry.is_chosen && link.theirs.table.sharing(claim) == Sharing::No;
    is_it.then_some((link, watch))
}

impl Piece<'_> {
    /// Pins it, and adds it to what the kernel is to move.
    #[inline]
    fn add_to<'a, 'l>(&self, kernel: &mut Batch<'a>, link: &'l Link) -> Result<Pin<'l>, Error>
    where
        Self: 'a,
    {
        let needed = match self.direction {
            Direction::Get => Rights::READ,
            Direction::Put => Rights::WRITE,
        };
        let (near, words) = ((self.local_offset, self.range.1), &link.own.rings.pins.0);
        let table = &link.theirs.table;
        kernel
            .add(self.local, near, |far| table.resolve(self.claim, needed, self.range, words, far))
    }
}
