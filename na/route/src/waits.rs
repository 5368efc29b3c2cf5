//! What waits here, until the way to its peer is known or has room: it is posted then, in order and under its old name ([`Renamed`]).

use hg_na::{Completion, Error, GoneReason, Op, OpId, Peer, QUIET, Rejected, Token};

use crate::{
    Way,
    context::{OWN_SCOPE, RouteContext},
    held::Waiting,
    names::Renamed,
};

impl RouteContext {
    /// Why an operation cannot wait behind those that wait for its peer.
    pub(crate) fn refuses(&mut self, op: &Op) -> Option<Error> {
        self.held.get_mut(&op.peer())?.refuses(op, self.caps.queue_depth)
    }

    /// Has an operation wait.
    pub(crate) fn hold(&mut self, token: Token, op: Op) -> OpId {
        self.serial += 1;
        let id = OpId { scope: OWN_SCOPE, serial: self.serial };
        self.held.entry(op.peer()).or_default().push(Waiting { id, token, op });
        id
    }

    /// Posts what waits for a peer, which is `inner` to its way, as far as there is room.
    pub(crate) fn flush_held(&mut self, peer: Peer, (way, inner): (Way, Peer)) {
        let Some(mut held) = self.held.remove(&peer) else { return };
        held.put_receives_first();
        while let Some(waiting) = held.pop() {
            if let Some(back) = self.post_held((way, inner), peer, waiting) {
                held.put_back(back);
                break;
            }
        }
        held.tell_room(peer, self.caps.queue_depth, &mut self.ended);
        if !held.is_empty() {
            self.held.insert(peer, held);
        }
    }

    /// Posts one operation; gives it back when there is no room.
    fn post_held(
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

    /// Cancels what waits; says whether it was that.
    pub(crate) fn cancel_held(&mut self, id: OpId) -> bool {
        let Self { held, ended, caps, .. } = self;
        for (peer, held) in held {
            let Some(waiting) = held.cancel(id) else { continue };
            ended.push(waiting.fail(Error::Cancelled));
            held.tell_room(*peer, caps.queue_depth, ended);
            return true;
        }
        false
    }

    /// The peer is gone: ends what waits for it, receives last, or not yet.
    pub(crate) fn fail_held(
        &mut self,
        peer: Peer,
        also_receives: bool,
        reason: &GoneReason,
        done: &mut Vec<Completion>,
    ) {
        let Some(held) = self.held.get_mut(&peer) else { return };
        held.fail(also_receives, reason, done);
        if held.is_empty() {
            self.held.remove(&peer);
        }
    }
}
