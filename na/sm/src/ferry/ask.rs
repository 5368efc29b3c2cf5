//! The initiator: asks for pieces, fills the places of its puts, takes what its gets brought.

use hg_na::{Completion, Error};

use super::{
    Ferry, Places, send,
    wire::{Answer, Ask, Note, PIECE, Verdict, offset_of_place, places_of},
};
use crate::{
    fail,
    link::{ANSWERS, Link},
    region::{cma::Direction, state::SmRegion, table::needed_for},
    ring::Broken,
    transfer::Transfer,
};

/// A piece that was asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Open {
    serial: u64,
    /// From the start of the transfer.
    offset: u64,
    len: u32,
}

impl Transfer {
    /// The next piece: what is asked, and what is remembered.
    fn next(&self, place: usize) -> (Ask, Open) {
        let Self { direction, claim, remote, .. } = self;
        let asked = self.asked.unwrap_or(0);
        let left = remote.len() - asked;
        let len = u32::try_from(left).map_or(PIECE, |left| left.min(PIECE));
        let ask = Ask {
            direction: *direction,
            place,
            len,
            name: claim.name(),
            proof: claim.proof(),
            offset: remote.offset() + asked,
            whole: (remote.offset(), remote.len()),
        };
        (ask, Open { serial: self.id.serial, offset: asked, len })
    }

    /// Copies a piece of the local memory out of, or into, a place.
    fn copy(&self, piece: Open, place: usize, places: &Places) -> Result<(), Error> {
        let local = SmRegion::of(self.local.region().as_ref())?.present()?;
        let near = (local, self.local.offset() + piece.offset);
        let (at, len) = (offset_of_place(place), u64::from(piece.len));
        match self.direction {
            Direction::Get => hg_na_memory::copy_between((&places.theirs, at), near, len),
            Direction::Put => hg_na_memory::copy_between(near, (&places.own, at), len),
        }
    }
}

impl Ferry {
    /// Takes a transfer out that is cancelled.
    pub(crate) fn cancel(&mut self, serial: u64) -> Option<Completion> {
        Some(self.remove(serial)?.ended(Err(Error::Cancelled)))
    }

    fn remove(&mut self, serial: u64) -> Option<Transfer> {
        self.transfers.iter_mut().find_map(|queue| {
            let at = queue.iter().position(|it| it.id.serial == serial)?;
            queue.remove(at)
        })
    }

    /// Asks for pieces while there are places and slots; says whether it did.
    pub(super) fn ask(&mut self, link: &mut Link) -> Result<bool, Broken> {
        let mut moved = false;
        for direction in [Direction::Get, Direction::Put] {
            while let Some(at) = self.transfers[direction as usize].iter().position(Transfer::wants)
                && let Some(place) = places_of(direction).find(|&at| self.open[at].is_none())
            {
                if !link.has_room(ANSWERS, 1)? {
                    self.is_waiting = true;
                    return Ok(moved);
                }
                moved |= self.ask_one((direction, at), place, link)?;
            }
        }
        Ok(moved)
    }

    /// The next piece of this transfer, which then waits behind the others.
    fn ask_one(
        &mut self,
        (direction, at): (Direction, usize),
        place: usize,
        link: &mut Link,
    ) -> Result<bool, Broken> {
        let Self { transfers, open, places, .. } = self;
        let queue = &mut transfers[direction as usize];
        let (Some(mut transfer), Some(places)) = (queue.remove(at), &*places) else {
            return Ok(false);
        };
        let (ask, piece) = transfer.next(place);
        // What is wrong with this side's own memory was found when the transfer was posted.
        let filled = direction == Direction::Get || transfer.copy(piece, place, places).is_ok();
        debug_assert!(filled, "the local range was checked");
        send(link, &Note::Ask(ask))?;
        fail::point("asked");
        open[place] = Some(piece);
        transfer.asked = Some(piece.offset + u64::from(piece.len));
        match direction {
            Direction::Get => self.has_got = true,
            Direction::Put => self.has_put = true,
        }
        queue.push_back(transfer);
        Ok(true)
    }

    /// The owner has answered; gives the bytes that were copied.
    pub(super) fn answered(
        &mut self,
        answer: Answer,
        finished: &mut Vec<Completion>,
    ) -> Result<u64, Broken> {
        let Answer { place, verdict } = answer;
        let Self { transfers, open, places, .. } = self;
        let piece = open[place].take().ok_or(Broken::Note)?;
        let found = transfers.iter_mut().flatten().find(|it| it.id.serial == piece.serial);
        let (Some(transfer), Some(places)) = (found, places) else {
            return Ok(0); // Cancelled, or failed already.
        };
        let whole = (transfer.remote.offset(), transfer.remote.len());
        let is_get = transfer.direction == Direction::Get;
        let needed = needed_for(transfer.direction);
        let result = verdict.into_result(needed, whole).and_then(|()| {
            if is_get {
                transfer.copy(piece, place, places)?;
            }
            transfer.moved += u64::from(piece.len);
            Ok(())
        });
        fail::point("taken");
        let is_over = result.is_err() || transfer.moved == transfer.remote.len();
        if is_over && let Some(transfer) = self.remove(piece.serial) {
            finished.push(transfer.ended(result));
        }
        Ok(if is_get && verdict == Verdict::Done { u64::from(piece.len) } else { 0 })
    }
}
