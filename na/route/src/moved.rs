//! Peers that took the network instead: their handles are still those of the local plugin, whose table does not
//! give them out again.
//!
//! What was posted to them before is posted to the network under its old name ([`Renamed`]): receives first, whose
//! answers might else come before them. While the network's queue is full, it waits here, and what comes later behind it, until the
//! network tells room.

use hg_na::{Completion, Error, GoneReason, Op, OpId, Peer, QUIET, Rejected, Token};

use crate::{
    Way,
    context::RouteContext,
    held::{Held, Waiting},
    marks::Mark,
    moves::Moved,
    names::{Renamed, outer},
    uid::Uid,
};

/// Different reasons that are logged where everybody sees them.
const REASONS_MAX: usize = 16;

impl RouteContext {
    /// A peer that cannot be reached locally is reached by the network.
    pub(crate) fn move_to_network(
        &mut self,
        peer: Peer,
        inner: Peer,
        uid: Uid,
        held: Held,
        reason: &GoneReason,
    ) {
        let text = reason.to_string();
        if self.moves.reasons.len() < REASONS_MAX && self.moves.reasons.insert(text) {
            tracing::info!(local = %uid.local, network = %uid.network, %reason,
                "a peer on this node is reached by the network");
        } else {
            tracing::debug!(local = %uid.local, network = %uid.network, %reason, "and another one");
        }
        self.marks.set(peer, Mark::Moved);
        let moved = Moved { inner, local: uid.local, held, is_refused: false };
        self.moves.add(peer, moved);
        self.flush_moved(peer);
    }

    /// Posts to a peer that took the network.
    pub(crate) fn post_moved(
        &mut self,
        peer: Peer,
        token: Token,
        op: Op,
    ) -> Result<OpId, Rejected> {
        let depth = self.caps.queue_depth;
        let Some(moved) = self.moves.peers.get_mut(&peer) else {
            return Err(Rejected { op, error: Error::UnknownPeer });
        };
        if let Some(error) = moved.held.refuses(&op, depth) {
            return Err(Rejected { op, error });
        }
        if moved.held.is_empty() || matches!(op, Op::RecvExpected { .. }) {
            let inner = moved.inner;
            let posted = self.post_network(peer, inner, token, op);
            if let (Err(Rejected { error: Error::Again, .. }), Some(moved)) =
                (&posted, self.moves.peers.get_mut(&peer))
            {
                moved.is_refused = true;
            }
            return posted;
        }
        let id = self.own_id();
        if let Some(moved) = self.moves.peers.get_mut(&peer) {
            moved.held.push(Waiting { id, token, op });
        }
        Ok(id)
    }

    /// The network has room at a peer, which the user knows by one handle or by several.
    #[cold]
    pub(crate) fn take_room(&mut self, inner: Peer, done: &mut Vec<Completion>) {
        let (moved, shown) = self.moves.known_as(inner);
        if shown || moved.is_empty() {
            done.push(Completion::Room { peer: outer(inner) });
        }
        for peer in moved {
            if self.moves.take_refused(peer) {
                done.push(Completion::Room { peer });
            }
            self.flush_moved(peer);
        }
        done.append(&mut self.ended);
    }

    /// Posts what is held for a peer, as far as the network takes it.
    fn flush_moved(&mut self, peer: Peer) {
        while let Some(moved) = self.moves.peers.get_mut(&peer) {
            let inner = moved.inner;
            let Some(waiting) = moved.held.pop() else {
                self.moves.holding.retain(|holding| *holding != peer);
                break;
            };
            if let Some(back) = self.post_held((Way::Network, inner), peer, waiting) {
                if let Some(moved) = self.moves.peers.get_mut(&peer) {
                    moved.held.put_back(back);
                }
                break;
            }
        }
        self.tell_room_of_held(peer);
    }

    /// Tells once that so few are held that others may be.
    fn tell_room_of_held(&mut self, peer: Peer) {
        let Self { moves, ended, caps, .. } = self;
        if let Some(held) = moves.held(peer) {
            held.tell_room(peer, caps.queue_depth, ended);
        }
    }

    /// Posts one operation under its old name; gives it back when there is no room.
    pub(crate) fn post_held(
        &mut self,
        (way, inner): (Way, Peer),
        peer: Peer,
        waiting: Waiting,
    ) -> Option<Waiting> {
        let Waiting { id, token, op } = waiting;
        let posted = match way {
            Way::Local => self.post_to(Way::Local, token & !QUIET, op),
            Way::Network => self.post_network(peer, inner, token & !QUIET, op),
        };
        match posted {
            Ok(new) => {
                self.names.rename(Renamed { peer, id, token }, new);
                None
            }
            Err(Rejected { op, error: Error::Again }) => Some(Waiting { id, token, op }),
            Err(Rejected { op, error }) => {
                self.ended.push(Waiting { id, token, op }.fail(error));
                None
            }
        }
    }

    /// Cancels what is held; says whether it was that.
    pub(crate) fn cancel_held(&mut self, id: OpId) -> bool {
        for peer in &self.moves.holding {
            let Some(moved) = self.moves.peers.get_mut(peer) else { continue };
            let Some(waiting) = moved.held.cancel(id) else { continue };
            self.ended.push(waiting.fail(Error::Cancelled));
            let peer = *peer;
            self.tell_room_of_held(peer);
            return true;
        }
        false
    }
}
