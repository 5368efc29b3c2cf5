//! The initiator: asks for pieces, fills the places of its puts, takes what its gets brought.

use hg_na::{Completion, Error};

use super::{
    Ferry, Places, send, side,
    wire::{Answer, Ask, Note, PIECE, Verdict, offset_of_place, places_of},
};
use crate::{
    fail,
    link::{ANSWERS, Link},
    region::cma::Direction,
    ring::Broken,
    transfer::{Transfer, needed_for, region_of},
};

/// A transfer of this kind.
#[derive(Debug)]
pub(super) struct Ferried {
    pub(super) transfer: Transfer,
    /// Bytes that were moved or asked for.
    asked: u64,
    /// Even one without any bytes asks once: the owner checks it.
    has_asked: bool,
}

/// A piece that was asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Open {
    serial: u64,
    /// From the start of the transfer.
    offset: u64,
    len: u32,
}

impl Ferried {
    pub(super) fn new(transfer: Transfer) -> Self {
        Self { asked: transfer.moved, transfer, has_asked: false }
    }

    fn serial(&self) -> u64 {
        self.transfer.id.serial
    }

    fn wants(&self) -> bool {
        !self.has_asked || self.asked < self.transfer.remote.len()
    }

    /// The next piece: what is asked, and what is remembered.
    fn next(&self, place: usize) -> (Ask, Open) {
        let Transfer { direction, claim, remote, .. } = &self.transfer;
        let left = remote.len() - self.asked;
        let len = u32::try_from(left).map_or(PIECE, |left| left.min(PIECE));
        let ask = Ask {
            direction: *direction,
            place,
            len,
            name: claim.name(),
            token: claim.token,
            offset: remote.offset() + self.asked,
            whole: (remote.offset(), remote.len()),
        };
        (ask, Open { serial: self.serial(), offset: self.asked, len })
    }

    /// Copies a piece of the local memory out of, or into, a place.
    fn copy(&self, piece: Open, place: usize, places: &Places) -> Result<(), Error> {
        let local = region_of(self.transfer.local.region().as_ref())?.present()?;
        let near = (local, self.transfer.local.offset() + piece.offset);
        let (at, len) = (offset_of_place(place), u64::from(piece.len));
        match self.transfer.direction {
            Direction::Get => hg_na_memory::copy_between((&places.theirs, at), near, len),
            Direction::Put => hg_na_memory::copy_between(near, (&places.own, at), len),
        }
    }
}

impl Ferry {
    /// Takes a transfer out that is cancelled.
    pub(crate) fn cancel(&mut self, serial: u64) -> Option<Completion> {
        let ferried = self.remove(serial)?;
        Some(ferried.transfer.failed(Error::Cancelled))
    }

    fn remove(&mut self, serial: u64) -> Option<Ferried> {
        self.transfers.iter_mut().find_map(|queue| {
            let at = queue.iter().position(|it| it.serial() == serial)?;
            queue.remove(at)
        })
    }

    /// Asks for pieces while there are places and slots; says whether it did.
    pub(super) fn ask(&mut self, link: &mut Link) -> Result<bool, Broken> {
        let mut moved = false;
        for direction in [Direction::Get, Direction::Put] {
            while let Some(at) = self.transfers[side(direction)].iter().position(Ferried::wants)
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
        let queue = &mut transfers[side(direction)];
        let (Some(mut ferried), Some(places)) = (queue.remove(at), &*places) else {
            return Ok(false);
        };
        let (ask, piece) = ferried.next(place);
        // What is wrong with this side's own memory was found when the transfer was posted.
        let filled = direction == Direction::Get || ferried.copy(piece, place, places).is_ok();
        debug_assert!(filled, "the local range was checked");
        send(link, &Note::Ask(ask))?;
        fail::point("asked");
        open[place] = Some(piece);
        ferried.asked += u64::from(piece.len);
        ferried.has_asked = true;
        ferried.transfer.is_begun |= direction == Direction::Put;
        match direction {
            Direction::Get => self.has_got = true,
            Direction::Put => self.has_put = true,
        }
        queue.push_back(ferried);
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
        let found = transfers.iter_mut().flatten().find(|it| it.serial() == piece.serial);
        let (Some(ferried), Some(places)) = (found, places) else {
            return Ok(0); // Cancelled, or failed already.
        };
        let remote = &ferried.transfer.remote;
        let whole = (remote.offset(), remote.len());
        let is_get = ferried.transfer.direction == Direction::Get;
        let needed = needed_for(ferried.transfer.direction);
        let result = verdict.into_result(needed, whole).and_then(|()| {
            if is_get {
                ferried.transfer.is_begun = true;
                ferried.copy(piece, place, places)?;
            }
            ferried.transfer.moved += u64::from(piece.len);
            Ok(())
        });
        fail::point("taken");
        let is_over = result.is_err() || ferried.transfer.left() == 0;
        if is_over && let Some(Ferried { transfer, .. }) = self.remove(piece.serial) {
            finished.push(match result {
                Ok(()) => transfer.succeeded(),
                Err(error) => transfer.failed(error),
            });
        }
        Ok(if is_get && verdict == Verdict::Done { u64::from(piece.len) } else { 0 })
    }
}
