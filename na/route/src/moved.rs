//! Peers that took the network instead: their handles are still those of the local plugin, whose table does not
//! give them out again.
//!
//! What was posted to them before is posted to the network: receives first, whose answers might else come before them. While the
//! network's queue is full, it waits here ([`crate::waits`]), and what comes later behind it, until the network tells room.

use hg_na::{Completion, Error, GoneReason, Op, OpId, Peer, Rejected, Token};

use crate::{Way, context::RouteContext, marks::Mark, moves::Moved, names::outer, uid::Uid};

/// Different reasons that are logged where everybody sees them.
const REASONS_MAX: usize = 16;

impl RouteContext {
    /// A peer that cannot be reached locally is reached by the network.
    pub(crate) fn move_to_network(
        &mut self,
        peer: Peer,
        inner: Peer,
        uid: Uid,
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
        let Uid { local, network, .. } = uid;
        self.moves.add(peer, Moved { inner, local, network, is_refused: false });
        self.flush_held(peer, (Way::Network, inner));
    }

    /// Posts to a peer that took the network.
    pub(crate) fn post_moved(
        &mut self,
        peer: Peer,
        token: Token,
        op: Op,
    ) -> Result<OpId, Rejected> {
        let Some(inner) = self.moves.inner(peer) else {
            return Err(Rejected { op, error: Error::UnknownPeer });
        };
        if let Some(error) = self.refuses(&op) {
            return Err(Rejected { op, error });
        }
        let waits = self.held.get(&peer).is_some_and(|held| !held.is_empty());
        if waits && !matches!(op, Op::RecvExpected { .. }) {
            return Ok(self.hold(token, op));
        }
        let posted = self.post_network(peer, inner, token, op);
        if let (Err(Rejected { error: Error::Again, .. }), Some(moved)) =
            (&posted, self.moves.peers.get_mut(&peer))
        {
            moved.is_refused = true;
        }
        posted
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
            self.flush_held(peer, (Way::Network, inner));
        }
        done.append(&mut self.ended);
    }
}
