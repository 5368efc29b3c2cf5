//! Moves transfers in pieces: through a mapping where there is one, else by the kernel.
//!
//! Transfers take turns, one a round. A turn moves at most [`PIECE`] bytes, or [`PIECE_ALONE`] while no messages come;
//! short transfers to one peer share it, and with it the system call and the looks at the peer's process.

use std::array;

use hg_na::{Error, Peer};

use super::{Transfer, Transfers, region_of};
use crate::{
    connection::Connection,
    context::SmContext,
    fail,
    layout::PINS,
    link::misbehaved,
    os::death::ProcessWatch,
    region::{
        cma::{Batch, CmaError},
        pins::Pin,
    },
    shared::copies::Piece,
    space::Space,
};

/// Bytes that one turn moves: messages that come meanwhile wait for its end.
pub(super) const PIECE: u64 = 1024 * 1024;
/// The same while none come. A turn finds what it works with flushed out of the caches by the last one, which costs
/// as much as a fiftieth of copying [`PIECE`] bytes.
pub(super) const PIECE_ALONE: u64 = 4 * PIECE;
/// Transfers that share a turn: each pins its region.
const BATCH_MAX: usize = PINS;

/// What became of one transfer in its turn.
type Step = Result<(), Error>;

impl Transfer {
    /// Moves one piece through a mapping; `None`: there is none that would do.
    fn copy_piece(&mut self, piece_max: u64, connection: &mut Connection) -> Option<Step> {
        let len = self.left().min(piece_max);
        let local = match region_of(self.local.region().as_ref()) {
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
    fn gather(&mut self, piece_max: u64) {
        let Some(first) = self.batch.first() else { return };
        let (peer, direction) = (first.peer, first.direction);
        let mut room = piece_max.saturating_sub(first.left());
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
        // A turn takes as long as many messages: a mapping that was asked for shall not wait for hundreds of them.
        self.count_turn();
        let piece_max = if self.empty_rounds > 0 { PIECE_ALONE } else { PIECE };
        let peer = transfer.peer;
        let Some(connection) = self.peers.find(peer) else {
            self.finished.push(transfer.failed(Error::UnknownPeer));
            return true;
        };
        if let Some(step) = transfer.copy_piece(piece_max, connection) {
            self.settle(transfer, step);
            return true;
        }
        if connection.ferry.is_chosen {
            let table = connection.link.as_ref().map(|link| &link.theirs.table);
            if table.is_some_and(|table| table.is_of(&transfer.claim)) {
                connection.ferry.take(transfer);
                self.board(peer);
            } else {
                self.finished.push(transfer.failed(Error::StaleDescriptor));
            }
            return true;
        }
        self.transfers.batch.push(transfer);
        self.transfers.gather(piece_max);
        let mut steps = [const { None }; BATCH_MAX];
        if self.step_batch(piece_max, &mut steps) {
            self.denied(peer);
        }
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

    /// Moves the pieces of a batch, and says what became of each; nothing of those that got no turn. `true`: the
    /// system denies this way.
    fn step_batch(&mut self, piece_max: u64, steps: &mut [Option<Step>; BATCH_MAX]) -> bool {
        let Self { peers, transfers: Transfers { batch, scratch, .. }, .. } = self;
        let Some(first) = batch.first() else { return false };
        let connection = peers.find(first.peer);
        let parts = connection.and_then(|it| Some((it.link.as_ref()?, it.watch.as_ref()?)));
        let Some((link, watch)) = parts else {
            steps.fill_with(|| Some(Err(Error::UnknownPeer)));
            return false;
        };
        let (table, words) = (&link.theirs.table, &link.own.rings.pins.0);
        let mut kernel = Batch::new(first.direction, scratch);
        let mut pins: [Option<Pin<'_>>; BATCH_MAX] = array::from_fn(|_| None);
        let mut lens = [0; BATCH_MAX];
        for (at, transfer) in batch.iter().enumerate() {
            let len = transfer.left().min(piece_max);
            let range = (transfer.remote.offset() + transfer.moved, len);
            let near = (transfer.local.offset() + transfer.moved, len);
            let added = region_of(transfer.local.region().as_ref()).and_then(|local| {
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
        let is_denied = result == Err(CmaError::Denied);
        let mut error = result.err();
        for ((transfer, len), step) in batch.iter_mut().zip(lens).zip(steps) {
            transfer.is_begun |= len > 0;
            let here = moved.min(len);
            moved -= here;
            transfer.moved += here;
            // The first that was not moved whole is the one that it went wrong with.
            if here < len && is_denied {
                *step = None; // What was moved stays moved, and it goes on in another way.
            } else if here < len
                && let Some(error) = error.take()
            {
                *step = Some(Err(error.into()));
            }
        }
        is_denied
    }

    /// The system denies this way to this peer: transfers are copied through the arenas from now on.
    #[cold]
    fn denied(&mut self, peer: Peer) {
        let Some(connection) = self.peers.find(peer) else { return };
        let pid = connection.watch.as_deref().and_then(ProcessWatch::pid);
        tracing::warn!(pid, "{}: transfers are copied through shared memory", CmaError::Denied);
        connection.ferry.is_chosen = true;
    }

    /// Looks after the transfers that are copied through the arenas of one connection, in this round.
    pub(crate) fn board(&mut self, peer: Peer) {
        self.activate(peer);
        let Some(connection) = self.peers.find(peer) else { return };
        if !connection.ferry.is_listed {
            connection.ferry.is_listed = true;
            self.intake.ferries.push(peer);
            self.has_leftovers = true;
        }
    }

    /// A round of all connections whose transfers are copied through the arenas and have something to do.
    #[cold]
    pub(crate) fn step_ferries(&mut self) -> bool {
        let mut moved = false;
        for peer in std::mem::take(&mut self.intake.ferries) {
            let Some(connection) = self.peers.find(peer) else { continue };
            connection.ferry.is_listed = false;
            let Connection { ferry, link: Some(link), .. } = connection else { continue };
            match ferry.round(link, &self.shared.regions, &mut self.finished) {
                Ok(round) => {
                    moved |= round.moved;
                    if round.again {
                        self.board(peer);
                    }
                    self.after_ferry(peer);
                }
                Err(broken) => {
                    moved = true;
                    self.end(peer, misbehaved(broken));
                }
            }
        }
        moved
    }

    /// Sees to it that a slot is waited for, and that touched pages are given back.
    fn after_ferry(&mut self, peer: Peer) {
        let Some(connection) = self.peers.find(peer) else { return };
        connection.tell_room(&mut self.finished);
        if connection.space == Space::Unwanted {
            self.look_for_space(peer);
        }
        let Some(connection) = self.peers.find(peer) else { return };
        if !connection.is_dirty {
            connection.is_dirty = true;
            self.dirty.push(peer);
        }
        self.intake.has_bodies = true;
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
