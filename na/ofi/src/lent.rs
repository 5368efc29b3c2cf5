//! Memory that is lent to a peer for a transfer, and moves that peers ask for: see [`crate::transfer`].
//!
//! Lent memory belongs to its peer until that one says `Ended`. A transfer that ends sooner, by cancellation or the
//! end of the connection, *abandons* it: what a late writer may still touch is kept alive apart, and a copy takes
//! its place in the region.

use hg_na::{GoneReason, Segment};

use crate::{
    context::OfiContext,
    link::Phase,
    send::{Step, refused},
    transfer::{Move, PREFACE, Serve, Status, Transfer},
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
    pub(crate) fn send_lent(&mut self, place: u32, serial: u64) -> Option<Step> {
        let remote = self.link(place)?.remote.as_ref()?;
        let is_one_sided = remote.one_sided;
        let transfer = self.transfers.get(&serial)?;
        let is_short = transfer.len < LENT_MIN || transfer.is_announced || transfer.in_frames;
        if is_short || !is_one_sided {
            return None;
        }
        let memory = transfer.entry.share()?;
        let is_put = transfer.is_put;
        let mut runs = Vec::new();
        hg_na_memory::pieces(&memory, transfer.slice.offset(), transfer.len, &mut runs).ok()?;
        let [run] = runs[..] else {
            self.transfers.get_mut(&serial)?.in_frames = true;
            return None;
        };
        let lent = self.endpoint().lend(&memory, run, !is_put);
        let (number, grant) = match lent {
            Ok(lent) => lent,
            Err(fault) if fault.is_again() => return Some(Step::Stalled),
            Err(fault) => {
                tracing::debug!(%fault, "memory is not lent: it travels in messages");
                self.transfers.get_mut(&serial)?.in_frames = true;
                return None;
            }
        };
        let kind = if is_put { Kind::PutLent } else { Kind::GetLent };
        let handed =
            self.link(place).and_then(|link| link.header(kind, serial, false)).map(|header| {
                let transfer = self.transfers.remove(&serial);
                let handed = self.hand(place, &header, PREFACE + GRANT, |into| {
                    let (front, back) = into.split_at_mut(PREFACE);
                    back[..8].copy_from_slice(&grant.address.to_le_bytes());
                    back[8..].copy_from_slice(&grant.key.to_le_bytes());
                    transfer.as_ref().map(|transfer| transfer.preface(front)).is_some()
                });
                self.transfers.extend(transfer.map(|transfer| (serial, transfer)));
                handed
            });
        match handed {
            Some(Ok(_)) => {
                let transfer = self.transfers.get_mut(&serial)?;
                (transfer.lent, transfer.is_announced) = (Some(number), true);
                let link = self.link(place)?;
                link.work.active += 1;
                link.work.asks.pop_front();
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

    /// The owner cannot reach it: the same again in frames.
    pub(crate) fn lend_no_more(&mut self, place: u32, serial: u64) {
        let Some(transfer) = self.transfers.get_mut(&serial) else { return };
        (transfer.in_frames, transfer.is_announced) = (true, false);
        let lent = transfer.lent.take();
        if let Some(number) = lent {
            self.endpoint().revoke(number);
        }
        if let Some(link) = self.link(place) {
            link.work.active -= 1;
            link.work.asks.push_back(serial);
        }
    }

    /// A transfer ends without its owner's word.
    pub(crate) fn abandon(&mut self, serial: u64, transfer: &mut Transfer) {
        let Some(number) = transfer.lent.take() else { return };
        let link = self.find(transfer.peer);
        let phase = link.map(|link| &link.phase);
        let has_exited = matches!(
            phase,
            Some(
                Phase::Ended { reason: GoneReason::Exited }
                    | Phase::Draining { reason: GoneReason::Exited, .. }
            )
        );
        // Within a machine, memory is written by the peer's process itself.
        if has_exited && self.shared.provider == "shm" {
            return self.endpoint().revoke(number);
        }
        if !transfer.is_put {
            transfer.entry.abandon();
        }
        self.abandoned.insert(serial, (transfer.peer, number));
    }

    /// A peer needs memory no more that was abandoned.
    pub(crate) fn returned(&mut self, place: u32, serial: u64, number: usize) {
        self.abandoned.remove(&serial);
        if let Some(link) = self.link(place) {
            link.work.active -= 1;
        }
        self.endpoint().revoke(number);
    }

    /// Hands the next move of a peer's transfer to libfabric.
    pub(crate) fn serve_move(&mut self, place: u32, mut it: Move) -> Step {
        let Some(link) = self.link(place) else { return Step::Idle };
        let peer = link.peer;
        let Some(address) = link.remote.as_ref().map(|remote| remote.address) else {
            return Step::Idle;
        };
        let Some(memory) = it.entry.share() else {
            return self.give_up(place, it.id, Status::STALE);
        };
        let mut runs: Vec<Segment> = Vec::new();
        let cut = hg_na_memory::pieces(&memory, it.offset, it.left.min(MOVE_MAX), &mut runs);
        let (Ok(()), Some(run)) = (cut, runs.first().copied()) else {
            return self.give_up(place, it.id, Status::STALE);
        };
        let note = self.next_serial();
        let endpoint = self.endpoint();
        let reaches = endpoint.reaches_memory_of(address);
        let (there, here) = ((address, it.grant), (&memory, run));
        let handed = if reaches {
            endpoint.move_run(there, here, it.is_get, note)
        } else {
            return self.give_up(place, it.id, Status::IN_FRAMES);
        };
        match handed {
            Ok(()) => {
                let len = run.len as u64;
                (it.offset, it.left, it.grant) = (it.offset + len, it.left - len, it.grant.at(len));
                self.moves.insert(note, (peer, it.id));
                let Some(link) = self.link(place) else { return Step::Idle };
                let moving = link.work.moving.entry(it.id).or_default();
                moving.pending += 1;
                moving.is_handed = it.left == 0;
                if it.left > 0 {
                    link.work.serves.push_back(Serve::Move(it));
                }
                Step::Left
            }
            Err(fault) if fault.is_again() => {
                if let Some(link) = self.link(place) {
                    link.work.serves.push_front(Serve::Move(it));
                }
                Step::Stalled
            }
            Err(fault) => {
                tracing::debug!(%fault, "lent memory is not reached: it travels in messages");
                self.give_up(place, it.id, Status::IN_FRAMES)
            }
        }
    }

    /// No further move of a transfer is made.
    fn give_up(&mut self, place: u32, id: u64, status: Status) -> Step {
        if let Some(link) = self.link(place) {
            link.work.end_moves(id, status);
        }
        Step::Left
    }

    /// A move is over.
    pub(crate) fn move_ended(&mut self, note: u64, fault: Option<crate::fabric::Fault>) {
        let Some((peer, id)) = self.moves.remove(&note) else { return };
        if let Some(fault) = fault {
            tracing::debug!(%fault, "a move to or from lent memory failed");
        }
        let Some(link) = self.find(peer) else { return };
        if let Some(status) = link.work.moved(id, fault.is_some()) {
            link.work.serves.push_back(Serve::Ended { id, status, is_awaited: true });
            self.mark_busy(peer.index());
        }
    }
}
