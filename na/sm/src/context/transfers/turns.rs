//! Connections whose transfers move take turns, one a round: a turn moves so many bytes, of one long transfer or of several
//! short ones.

use hg_na::{Error, Peer};

use super::{near_of, piece::Piece};
use crate::{
    connection::{Connection, Space},
    context::SmContext,
    link::misbehaved,
    region::cma::DENIED,
    rendezvous::process::ProcessWatch,
    transfer::{Transfer, region_of},
};

/// Bytes that one turn moves: messages that come meanwhile wait for its end.
pub(super) const PIECE: u64 = 1024 * 1024;
/// The same while none come. A turn finds what it works with flushed out of the caches by the last one, which costs
/// as much as a fiftieth of copying [`PIECE`] bytes.
pub(super) const PIECE_ALONE: u64 = 4 * PIECE;
/// Transfers of one turn.
const TURN_MAX: usize = 8;

/// What became of one transfer in its turn.
enum Step {
    /// A piece was moved.
    Moved,
    /// It waits for its next turn.
    Waits,
    /// The system denies the kernel's way to this peer.
    Denied,
    /// It goes by both sides' copies.
    Ferried,
    Failed(Error),
}

impl Transfer {
    /// Moves a piece, and takes its length off `room`.
    fn step(&mut self, connection: &mut Connection, (room, by_kernel): (&mut u64, bool)) -> Step {
        let len = self.left().min(*room);
        let local = match region_of(self.local.region().as_ref()) {
            Ok(local) => local,
            Err(error) => return Step::Failed(error),
        };
        let near = near_of(self.direction, local, self.local.offset() + self.moved);
        let range = (self.remote.offset() + self.moved, len);
        let piece = Piece { near, claim: &self.claim, range };
        let pinned = match piece.admit(connection, true) {
            Ok(Some(pinned)) => pinned,
            Ok(None) => return Step::Ferried,
            Err(Error::Again) => return Step::Waits, // No pin word is free.
            Err(error) => return Step::Failed(error),
        };
        if !by_kernel && !pinned.is_copied() {
            return Step::Denied; // It was begun, and the kernel would not.
        }
        *room -= len;
        self.is_begun |= len > 0;
        let (moved, result) = piece.run(pinned);
        self.moved += moved;
        match result {
            Ok(()) => Step::Moved,
            // What was moved stays moved, and it goes on in another way.
            Err(Error::Unsupported(DENIED)) => Step::Denied,
            Err(error) => Step::Failed(error),
        }
    }
}

impl SmContext {
    /// The transfers of a connection, if it is open and has any, take turns with those of others.
    pub(crate) fn take_turns(&mut self, peer: Peer) {
        let Some(connection) = self.peers.find(peer).filter(|it| it.is_open()) else { return };
        if connection.transfers.is_empty() || connection.has_turn {
            return;
        }
        connection.has_turn = true;
        self.transfers.turns.push_back(peer);
        self.has_leftovers = true;
        if self.is_sleeping {
            self.chore();
        }
    }

    /// One turn of one connection; says whether there was any.
    pub(crate) fn step_transfers(&mut self) -> bool {
        let Some(peer) = self.transfers.turns.pop_front() else { return false };
        // A turn takes as long as many messages: a mapping that was asked for shall not wait for hundreds of them.
        self.count_turn();
        let mut room = self.turn();
        for _ in 0..TURN_MAX {
            let Some(connection) = self.peers.find(peer) else { return true };
            connection.has_turn = false;
            if !connection.is_open() {
                return true; // What went wrong with the last one ends the connection.
            }
            let Some(mut transfer) = connection.transfers.pop_front() else { break };
            let step = transfer.step(connection, (&mut room, !self.transfers.are_begun));
            let is_next = matches!(step, Step::Moved | Step::Failed(_)) && room > 0;
            self.after_step(peer, transfer, step);
            if !is_next {
                break;
            }
        }
        self.take_turns(peer);
        if let Some(connection) = self.peers.find(peer) {
            connection.tell_room(&mut self.finished);
        }
        true
    }

    /// After its piece a transfer has ended, or waits for the next one behind all others of its peer.
    fn after_step(&mut self, peer: Peer, transfer: Transfer, step: Step) {
        let Some(connection) = self.peers.find(peer) else { return };
        match step {
            Step::Moved if transfer.left() == 0 => self.finished.push(transfer.succeeded()),
            Step::Moved | Step::Waits => connection.transfers.push_back(transfer),
            Step::Denied => {
                connection.transfers.push_back(transfer);
                let pid = connection.watch.as_deref().and_then(ProcessWatch::pid);
                tracing::warn!(pid, "{DENIED}: transfers are copied through shared memory");
                connection.ferry.is_chosen = true;
            }
            Step::Ferried => {
                let table = connection.link.as_ref().map(|link| &link.theirs.table);
                if table.is_some_and(|table| table.is_of(&transfer.claim)) {
                    connection.ferry.take(transfer);
                    self.attend_ferry(peer);
                } else {
                    self.finished.push(transfer.failed(Error::StaleDescriptor));
                }
            }
            Step::Failed(error) => {
                if let Error::PeerGone(reason) = &error {
                    self.end(peer, reason.clone());
                }
                self.finished.push(transfer.failed(error));
            }
        }
    }

    /// Looks after the transfers that are copied through the arenas of one connection, in this round.
    pub(crate) fn attend_ferry(&mut self, peer: Peer) {
        self.activate(peer);
        self.intake.ferries.insert(peer);
        self.has_leftovers = true;
    }

    /// A round of all connections whose transfers are copied through the arenas and have something to do.
    #[cold]
    pub(crate) fn step_ferries(&mut self) -> bool {
        let mut moved = false;
        for peer in std::mem::take(&mut self.intake.ferries) {
            let Some(connection) = self.peers.find(peer) else { continue };
            let Connection { ferry, link: Some(link), .. } = connection else { continue };
            match ferry.round(link, &self.shared.regions, &mut self.finished) {
                Ok(was_busy) => {
                    moved |= was_busy;
                    if ferry.has_notes() {
                        self.attend_ferry(peer);
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
        let is_unwanted = connection.space == Space::Unwanted;
        if !std::mem::replace(&mut connection.is_dirty, true) {
            self.dirty.push(peer);
        }
        if is_unwanted {
            self.look_for_space(peer);
        }
    }
}
