//! Flushes of both plugins, and who is connected by either.

use hg_na::Peer;

use crate::{context::RouteContext, marks::Mark};

impl RouteContext {
    /// Whether both plugins' flushes have ended. What waits here may still go either way: theirs begin once no message does that
    /// was accepted before this one began.
    pub(crate) fn flush_both(&mut self) -> bool {
        let to = *self.flush_to.get_or_insert(self.serial);
        if self.held.values().any(|held| held.has_message_to(to)) {
            self.flushed = [false; 2];
            return false;
        }
        self.flushed[0] = self.flushed[0] || self.local.flush();
        self.flushed[1] = self.flushed[1] || self.network.flush();
        let is_over = self.flushed == [true; 2];
        if is_over {
            (self.flush_to, self.flushed) = (None, [false; 2]);
        }
        is_over
    }

    /// Everybody, by the handles that the user knows.
    pub(crate) fn connected_to_both(&mut self) -> Vec<Peer> {
        let mut peers = self.local.connected();
        peers.retain(|peer| self.marks.of(*peer) != Mark::Moved);
        let network = self.network.context.connected();
        peers.extend(network.into_iter().map(|inner| self.moves.sender(inner)));
        peers
    }
}
