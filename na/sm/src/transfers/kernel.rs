//! Moves transfers in pieces: through a mapping where there is one, else by the kernel.
//!
//! Transfers take turns. A turn moves at most [`PIECE`] bytes; short transfers to one peer share it, and with it the
//! system call and the looks at the peer's process.

use std::array;

use hg_na::Error;

use super::{Transfer, Transfers, region_of};
use crate::{
    connection::Connection,
    context::SmContext,
    fail,
    layout::PINS,
    region::{cma::Batch, pins::Pin},
    shared::copies::Piece,
};

/// Bytes that one turn moves.
const PIECE: u64 = 1024 * 1024;
/// Transfers that share a turn: each pins its region.
const BATCH_MAX: usize = PINS;

/// What became of one transfer in its turn.
type Step = Result<(), Error>;

impl Transfer {
    /// Moves one piece through a mapping; `None`: there is none that would do.
    fn copy_piece(&mut self, connection: &mut Connection) -> Option<Step> {
        let len = self.left().min(PIECE);
        let local = match region_of(&self.local) {
            Ok(local) => local,
            Err(error) => return Some(Err(error)),
        };
        let piece = Piece {
            direction: self.direction,
            claim: &self.claim,
            range: (self.remote.offset() + self.moved, len),
            local,
            local_offset: self.local.offset() + self.moved,
        };
        let copied = piece.copy(connection)?;
        self.is_begun = true;
        if copied.is_ok() {
            self.moved += len;
        }
        Some(copied)
    }
}

impl Transfers {
    /// Moves those that may share a turn with the first of the batch into it.
    fn gather(&mut self) {
        let Some(first) = self.batch.first() else { return };
        let (peer, direction) = (first.peer, first.direction);
        let mut room = PIECE.saturating_sub(first.left());
        while room > 0
            && self.batch.len() < BATCH_MAX
            && let Some(next) = self.running.front()
            && next.peer == peer
            && next.direction == direction
            && next.left() <= room
        {
            room -= next.left();
            self.batch.extend(self.running.pop_front());
        }
    }
}

impl SmContext {
    /// One turn of the oldest transfer, and of short ones behind it; says whether there was any.
    pub(crate) fn step_transfers(&mut self) -> bool {
        let Some(mut transfer) = self.transfers.running.pop_front() else { return false };
        self.has_chores = true;
        let peer = transfer.peer;
        let Some(connection) = self.peers.find(peer) else {
            self.finished.push(transfer.failed(Error::UnknownPeer));
            return true;
        };
        if let Some(step) = transfer.copy_piece(connection) {
            self.settle(transfer, step);
            return true;
        }
        self.transfers.batch.push(transfer);
        self.transfers.gather();
        let mut steps = [const { None }; BATCH_MAX];
        self.step_batch(&mut steps);
        let mut batch = std::mem::take(&mut self.transfers.batch);
        for (transfer, step) in batch.drain(..).zip(steps) {
            match step {
                Some(step) => self.settle(transfer, step),
                None => self.transfers.running.push_back(transfer),
            }
        }
        self.transfers.batch = batch;
        true
    }

    /// Moves the pieces of a batch, and says what became of each; nothing of those that got no turn.
    fn step_batch(&mut self, steps: &mut [Option<Step>; BATCH_MAX]) {
        let Self { peers, transfers: Transfers { batch, scratch, .. }, .. } = self;
        let Some(first) = batch.first() else { return };
        let connection = peers.find(first.peer);
        let parts = connection.and_then(|it| Some((it.link.as_ref()?, it.watch.as_ref()?)));
        let Some((link, watch)) = parts else {
            return steps.fill_with(|| Some(Err(Error::UnknownPeer)));
        };
        let (table, words) = (&link.theirs.table, &link.own.rings.pins.0);
        let mut kernel = Batch::new(first.direction, scratch);
        let mut pins: [Option<Pin<'_>>; BATCH_MAX] = array::from_fn(|_| None);
        let mut lens = [0; BATCH_MAX];
        for (at, transfer) in batch.iter().enumerate() {
            let len = transfer.left().min(PIECE);
            let range = (transfer.remote.offset() + transfer.moved, len);
            let near = (transfer.local.offset() + transfer.moved, len);
            let added = region_of(&transfer.local).and_then(|local| {
                kernel.add(local, near, |far| {
                    table.resolve(&transfer.claim, transfer.needs(), range, words, far)
                })
            });
            match added {
                Ok(pin) => {
                    (pins[at], lens[at], steps[at]) = (Some(pin), len, Some(Ok(())));
                }
                Err(Error::Again) => {} // No pin word is free: the next turn.
                Err(error) => steps[at] = Some(Err(error)),
            }
        }
        fail::point("pinned");
        let (mut moved, result) = kernel.transfer(watch);
        drop(pins);
        let mut error = result.err();
        for ((transfer, len), step) in batch.iter_mut().zip(lens).zip(steps) {
            transfer.is_begun |= len > 0;
            let here = moved.min(len);
            moved -= here;
            transfer.moved += here;
            // The first that was not moved whole is the one that it went wrong with.
            if here < len
                && let Some(error) = error.take()
            {
                *step = Some(Err(error.into()));
            }
        }
    }

    /// After its turn a transfer has ended, or waits for the next one behind all others.
    fn settle(&mut self, transfer: Transfer, step: Step) {
        match step {
            Ok(()) if transfer.left() == 0 => self.finished.push(transfer.succeeded()),
            Ok(()) => self.transfers.running.push_back(transfer),
            Err(error) => {
                if let Error::PeerGone(reason) = &error {
                    self.end(transfer.peer, reason.clone());
                }
                self.finished.push(transfer.failed(error));
            }
        }
    }
}
