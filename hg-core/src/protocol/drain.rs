//! Who waits for room, or for the end of all that is in service; and what peers are told then.
//!
//! ```text
//! Serving --all is answered, flushed; peers are told--> Telling --all have heard, flushed--> Over
//! ```
//! Peers are told ([`Kind::Drained`]) after all answers have left. So who was told and loses the connection knows of each call
//! without an answer that it was not begun ([`crate::operations`]): until the close some may come that nobody refuses any more.

use hg_na::Peer;

use super::Protocol;
use crate::{header::Kind, operations::OperationId};

/// How far an engine has drained.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// Something is in service, or may be.
    #[default]
    Serving,
    /// All is answered, the answers have left, and peers are told that.
    Telling,
    /// The word to them has left.
    Over,
}

impl Protocol {
    /// Some calls or requests may have ended: who waits for their room, or for their end, is told.
    #[inline(always)]
    pub fn tell_waiting(&mut self) {
        if self.operations.waits_for_room() || self.operations.waits_for_drain() {
            self.tell_those_who_wait();
        }
    }

    #[cold]
    fn tell_those_who_wait(&mut self) {
        if self.operations.waits_for_room() {
            self.operations.grant_room();
            self.run_effects();
        }
        if self.operations.waits_for_drain() && self.drain_on() {
            self.operations.handle_drained();
            self.run_effects();
        }
    }

    /// Begins nothing new from now on. Gives what waits for the end of all that is in service; `None`: nothing is.
    pub fn drain(&mut self) -> Option<OperationId> {
        self.serves.drain();
        (!self.drain_on()).then(|| self.operations.begin_drain())
    }

    /// Drains as far as it can; says whether that is over. Calls that come meanwhile are refused, and not waited for.
    fn drain_on(&mut self) -> bool {
        if self.drain == Stage::Serving {
            if !self.is_answered() || !self.has_flushed() {
                return false;
            }
            self.tell_peers();
            self.drain = Stage::Telling;
        }
        if self.drain == Stage::Telling && !self.backlog.has_any_answers() && self.has_flushed() {
            self.drain = Stage::Over;
        }
        self.drain == Stage::Over
    }

    /// Whether what the transport has had to send has left it.
    fn has_flushed(&mut self) -> bool {
        self.context.as_mut().is_none_or(|context| context.flush())
    }

    /// Whether all that was begun is answered, the transport has the answers, and what they have promised was taken.
    fn is_answered(&self) -> bool {
        self.serves.in_service() == 0
            && !self.serves.has_held()
            && !self.backlog.has_any_answers()
            && self.kept.is_empty()
    }

    /// Tells those that are connected, and do not know.
    fn tell_peers(&mut self) {
        let peers = self.context.as_mut().map(|context| context.connected());
        for peer in peers.into_iter().flatten() {
            if self.told.insert(peer) {
                self.tell(peer, Kind::Drained, 0);
            }
        }
    }

    /// A request is refused: its origin may have come after the others were told. It hears of it before the answer, so that
    /// answers that it does not take are not in the way.
    pub(super) fn tell_newcomer(&mut self, peer: Peer) {
        let is_said = self.drain != Stage::Serving;
        if is_said && self.told.insert(peer) {
            self.tell(peer, Kind::Drained, 0);
        }
    }

    /// Before the close: those are told of whom no request has come.
    pub(super) fn part(&mut self) {
        if self.drain == Stage::Over {
            self.tell_peers();
        }
    }
}
