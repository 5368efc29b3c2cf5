//! Memory that is lent to a peer for a transfer, and moves that peers ask for: see [`crate::moves`].
//!
//! Lent memory belongs to its peer until that one says `Ended`, or the connection has ended. Of a get that is cancelled before, what
//! the owner may still write to is kept apart, and a copy takes its place in the region.

use hg_na::Segment;
use hg_na_link::{ACCESS_LEN, Lent, Verdict};

use crate::{
    card::Fault,
    context::VerbsContext,
    moves::{ACTIVE_MAX, Grant, Move, Moves},
    send::{Step, refused},
    wire::Kind,
};

/// Shorter transfers travel in frames: one message costs less than a registration and an answer.
const LENT_MIN: u64 = 32 << 10;
/// Longest single move in bytes: registering it keeps this side's thread so long.
const MOVE_MAX: u64 = 4 << 20;
/// Address and key.
const GRANT: usize = 12;

impl VerbsContext {
    /// Lends the memory of the next transfer to its owner. `None`: it travels in frames.
    pub(crate) fn send_lent(&mut self, place: u32) -> Option<Step> {
        let link = self.links.at(place)?;
        let transfer = link.initiator.next(ACTIVE_MAX)?;
        if transfer.access.len < LENT_MIN || transfer.in_frames || !self.shared.settings.rma {
            return None;
        }
        let (is_put, serial) = (transfer.is_put, transfer.id.serial);
        // Nothing is registered in vain: the frame finds no room either, and waits.
        let pair = link.way.pair?;
        if !self.endpoint.as_ref()?.has_room(pair) {
            return None;
        }
        let memory = transfer.entry.share()?;
        let runs = hg_na_memory::pieces(&memory, transfer.slice.offset(), transfer.access.len);
        let runs: Vec<Segment> = runs.ok()?.collect();
        let [run] = runs[..] else {
            transfer.in_frames = true;
            return None;
        };
        let access = transfer.access.encode();
        let (number, (address, key)) = match self.endpoint().lend(&memory, run, !is_put) {
            Ok(lent) => lent,
            Err(fault) => {
                tracing::debug!(%fault, "memory is not lent: it travels in messages");
                let transfer = self.links.at(place)?.initiator.next(ACTIVE_MAX)?;
                transfer.in_frames = true;
                return None;
            }
        };
        let kind = if is_put { Kind::PutLent } else { Kind::GetLent };
        let header = self.links.at(place).map(|link| link.way.header(kind, serial, false));
        let handed = header.map(|header| {
            self.hand(place, &header, ACCESS_LEN + GRANT, |into| {
                let (front, back) = into.split_at_mut(ACCESS_LEN);
                front.copy_from_slice(&access);
                back[..8].copy_from_slice(&address.to_le_bytes());
                back[8..].copy_from_slice(&key.to_le_bytes());
                true
            })
        });
        match handed {
            Some(Ok(_)) => {
                self.links.at(place)?.initiator.announced_lent(number);
                Some(Step::Left)
            }
            Some(Err(fault)) => {
                self.endpoint().revoke(number);
                Some(refused(fault))
            }
            None => {
                self.endpoint().revoke(number);
                Some(Step::Idle)
            }
        }
    }

    /// A peer has gone to which memory was lent: it reaches it no more.
    pub(crate) fn take_back(&mut self, lent: Vec<Lent>) {
        for Lent { lent, .. } in lent {
            self.endpoint().revoke(lent);
        }
    }

    /// Hands the next move of a peer's transfer to the card.
    pub(crate) fn serve_move(&mut self, place: u32, mut it: Move) -> Step {
        let Some(pair) = self.links.at(place).and_then(|link| link.way.pair) else {
            return Step::Idle;
        };
        let Some(memory) = it.entry.share() else {
            return self.give_up(place, it.id, Verdict::Stale);
        };
        let mut runs = hg_na_memory::pieces(&memory, it.offset, it.left.min(MOVE_MAX));
        let Some(run) = runs.as_mut().ok().and_then(Iterator::next) else {
            return self.give_up(place, it.id, Verdict::Stale);
        };
        drop(runs);
        let Grant { address, key } = it.grant;
        let moved =
            self.endpoint().move_run(pair, (address, key), (&memory, run), (it.is_get, it.id));
        let Some(link) = self.links.at(place) else { return Step::Idle };
        match moved {
            Ok(()) => {
                let len = run.len as u64;
                it.grant.address = address.wrapping_add(len);
                (it.offset, it.left) = (it.offset + len, it.left - len);
                match it.is_get {
                    true => Moves::written(it.id, it.left == 0, &mut link.owner),
                    false => link.way.moves.reads(it.id, it.left == 0),
                }
                if it.left > 0 {
                    link.way.moves.queue.push_back(it);
                }
                Step::Left
            }
            Err(Fault::Again) => {
                link.way.moves.queue.push_front(it);
                Step::Stalled
            }
            Err(fault) => {
                tracing::debug!(%fault, "lent memory is not reached: it travels in messages");
                self.give_up(place, it.id, Verdict::InFrames)
            }
        }
    }

    /// No further move of a transfer is made.
    fn give_up(&mut self, place: u32, id: u64, verdict: Verdict) -> Step {
        if let Some(link) = self.links.at(place) {
            link.way.moves.end(id, verdict, &mut link.owner);
        }
        Step::Left
    }

    /// A read for a transfer is over.
    pub(crate) fn was_read(&mut self, place: u32, id: u64) {
        let Some(link) = self.links.at(place) else { return };
        let peer = link.peer;
        link.way.moves.was_read(id, &mut link.owner);
        self.mark_busy(peer);
    }
}
