//! Lookup, post, cancel, forget.

use std::time::Instant;

use hg_na::{Address, Error, GoneReason, Op, OpId, Peer, Rejected, Token};
use hg_na_link::Cancelled;

use crate::{
    address::target,
    context::VerbsContext,
    send::list_busy,
    way::{Phase, Way},
};

impl VerbsContext {
    /// A handle for an address.
    ///
    /// # Errors
    /// [`Error::BadAddress`].
    pub(crate) fn look_up(&mut self, address: &Address) -> Result<Peer, Error> {
        let place = target(address)?;
        Ok(self.links.look_up(place, || Way::new(Phase::Idle)))
    }

    /// Accepts an operation, or hands it back.
    ///
    /// # Errors
    /// The operation.
    pub(crate) fn post_op(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        if let Err(error) = self.shared.same_process() {
            return Err(Rejected { op, error });
        }
        let peer = op.peer();
        let id = self.links.post(token, op, |_| 0)?;
        self.get_under_way(peer);
        Ok(id)
    }

    /// Connects, or sends what can be sent; what cannot needs progress, which ends a sleep.
    fn get_under_way(&mut self, peer: Peer) {
        let Some(link) = self.links.find(peer) else { return };
        match link.way.phase {
            Phase::Idle => {
                self.connect(peer);
                self.nudge();
            }
            Phase::Open => {
                if !link.way.is_busy {
                    self.send_link(peer.index());
                }
                if !self.busy.is_empty() {
                    self.nudge();
                }
            }
            Phase::Connecting
            | Phase::Greeting { .. }
            | Phase::Awaiting
            | Phase::Draining { .. }
            | Phase::Ended => {}
        }
    }

    /// Ends an operation that has not left.
    pub(crate) fn cancel_op(&mut self, id: OpId) {
        let Self { links, finished, busy, .. } = self;
        if let Some(ended) = links.cancel(id, finished) {
            if let Cancelled::Transfer { serial, is_told, written } = ended {
                if let Some(entry) = written {
                    entry.abandon();
                }
                if is_told && let Some(link) = links.at(id.scope) {
                    link.way.aborts.push_back(serial);
                    list_busy(&mut link.way, id.scope, busy);
                }
            }
            self.nudge();
        }
        self.tell_room(id.scope);
    }

    /// Closes a connection for good, with a word to the other side.
    pub(crate) fn forget_peer(&mut self, peer: Peer) {
        if self.links.find(peer).is_none() {
            return;
        }
        // What had arrived is nobody's any more.
        if !self.links.forget(peer, &mut self.finished) {
            self.say_goodbye(peer.index());
            self.end_now(peer.index(), GoneReason::Forgotten);
        }
        self.nudge();
    }

    /// Asks for [`crate::chores`] at a time; a connection has one timer, the earliest.
    pub(crate) fn at(&mut self, when: Instant, place: u32) {
        let Some(link) = self.links.at(place) else { return };
        if let Some(before) = link.way.timer.replace(when) {
            self.timers.remove(&(before, place));
        }
        self.timers.insert((when, place));
    }

    /// A connection needs no timer any more.
    pub(crate) fn untime(&mut self, place: u32) {
        if let Some(when) = self.links.at(place).and_then(|link| link.way.timer.take()) {
            self.timers.remove(&(when, place));
        }
    }
}
