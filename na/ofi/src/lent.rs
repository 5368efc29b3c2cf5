//! Memory that is lent to a peer for a transfer, and moves that peers ask for: see [`crate::moves`].
//!
//! Lent memory belongs to its peer until that one says `Ended`. Of a get that ends sooner, by cancellation or the
//! end of the connection, what a late writer may still touch is kept alive apart, and a copy takes its place in the region.

use hg_na::{GoneReason, Segment};
use hg_na_link::{ACCESS_LEN, Lent, Verdict};

use crate::{
    context::OfiContext,
    moves::{ACTIVE_MAX, Move},
    send::{Step, refused},
    wire::Kind,
};

/// Shorter transfers travel in frames: one message costs less than a registration and an answer.
const LENT_MIN: u64 = 32 << 10;
/// Longest single move in bytes: one keeps this side's thread so long where the provider copies at once.
const MOVE_MAX: u64 = 1 << 20;
/// Address and key.
const GRANT: usize = 16;

impl OfiContext {
    /// Lends the memory of the next transfer to its owner. `None`: it travels in frames.
    pub(crate) fn send_lent(&mut self, place: u32) -> Option<Step> {
        let link = self.links.at(place)?;
        let is_one_sided = link.way.remote.as_ref()?.one_sided;
        let transfer = link.initiator.next(ACTIVE_MAX)?;
        if transfer.access.len < LENT_MIN || transfer.in_frames || !is_one_sided {
            return None;
        }
        let (is_put, serial) = (transfer.is_put, transfer.id.serial);
        let memory = transfer.entry.share()?;
        let runs = hg_na_memory::pieces(&memory, transfer.slice.offset(), transfer.access.len);
        let runs: Vec<Segment> = runs.ok()?.collect();
        let [run] = runs[..] else {
            transfer.in_frames = true;
            return None;
        };
        let access = transfer.access.encode();
        let (number, grant) = match self.endpoint().lend(&memory, run, !is_put) {
            Ok(lent) => lent,
            Err(fault) if fault.is_again() => return Some(Step::Stalled),
            Err(fault) => {
                tracing::debug!(%fault, "memory is not lent: it travels in messages");
                let transfer = self.links.at(place)?.initiator.next(ACTIVE_MAX)?;
                transfer.in_frames = true;
                return None;
            }
        };
        let kind = if is_put { Kind::PutLent } else { Kind::GetLent };
        let header = self.links.at(place).and_then(|link| link.way.header(kind, serial, false));
        let handed = header.map(|header| {
            self.hand(place, &header, ACCESS_LEN + GRANT, |into| {
                let (front, back) = into.split_at_mut(ACCESS_LEN);
                front.copy_from_slice(&access);
                back[..8].copy_from_slice(&grant.address.to_le_bytes());
                back[8..].copy_from_slice(&grant.key.to_le_bytes());
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

    /// A peer has gone to which memory was lent.
    pub(crate) fn take_back(&mut self, lent: Vec<Lent>, why: &GoneReason) {
        // Within a machine, memory is written by the peer's process itself.
        let is_over = *why == GoneReason::Exited && self.shared.provider == "shm";
        for Lent { lent, written } in lent {
            if is_over {
                self.endpoint().revoke(lent);
            } else if let Some(entry) = written {
                entry.abandon();
            }
        }
    }

    /// Hands the next move of a peer's transfer to libfabric.
    pub(crate) fn serve_move(&mut self, place: u32, mut it: Move) -> Step {
        let Some(link) = self.links.at(place) else { return Step::Idle };
        let peer = link.peer;
        let Some(address) = link.way.remote.as_ref().map(|remote| remote.address) else {
            return Step::Idle;
        };
        let Some(memory) = it.entry.share() else {
            return self.give_up(place, it.id, Verdict::Stale);
        };
        let mut runs = hg_na_memory::pieces(&memory, it.offset, it.left.min(MOVE_MAX));
        let Some(run) = runs.as_mut().ok().and_then(Iterator::next) else {
            return self.give_up(place, it.id, Verdict::Stale);
        };
        let note = self.links.take_serials(1);
        let endpoint = self.endpoint();
        if !endpoint.reaches_memory_of(address) {
            return self.give_up(place, it.id, Verdict::InFrames);
        }
        match endpoint.move_run((address, it.grant), (&memory, run), it.is_get, note) {
            Ok(()) => {
                let len = run.len as u64;
                (it.offset, it.left, it.grant) = (it.offset + len, it.left - len, it.grant.at(len));
                self.moves.insert(note, (peer, it.id));
                let Some(link) = self.links.at(place) else { return Step::Idle };
                link.way.moves.handed(it.id, it.left == 0);
                if it.left > 0 {
                    link.way.moves.queue.push_back(it);
                }
                Step::Left
            }
            Err(fault) if fault.is_again() => {
                if let Some(link) = self.links.at(place) {
                    link.way.moves.queue.push_front(it);
                }
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

    /// A move is over.
    pub(crate) fn move_ended(&mut self, note: u64, fault: Option<crate::fabric::Fault>) {
        let Some((peer, id)) = self.moves.remove(&note) else { return };
        if let Some(fault) = fault {
            tracing::debug!(%fault, "a move to or from lent memory failed");
        }
        let Some(link) = self.links.find(peer) else { return };
        link.way.moves.moved(id, fault.is_some(), &mut link.owner);
        self.mark_busy(peer);
    }
}
