//! Calls and one-way calls: two operations of the transport each at most.

use std::time::Instant;

use hg_na::{Failure as NaFailure, GoneReason, Message, OpId, Peer, Reached, Returned};

use super::{
    Effect, Extra, Kind, OperationId, Operations, Outcome, Phase,
    answer::{is_plain_answer, read_answer, transport_failure},
};
use crate::{
    deferred::Action,
    error::{Failure, Started},
    kept::Lent,
};

/// One of the two transport operations of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// The request.
    Send,
    /// The answer.
    Receive,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpState {
    /// Not posted yet, or never.
    None,
    /// Waits for room in the transport, under this number.
    Waits(u64),
    Open(OpId),
    /// Posted, and its success will perhaps not be told.
    Quiet(OpId),
    Done,
}

impl Operations {
    /// The id that the next call will have; `None` when there are too many.
    #[inline(always)]
    pub fn next_id(&mut self) -> Option<OperationId> {
        (self.calls() < self.max).then(|| self.table.next_key())
    }

    /// Starts a call, under [`Operations::next_id`]; `None` when there are too many. What it lends its target is kept until it has
    /// settled.
    pub fn begin_call(
        &mut self,
        (peer, name): (Peer, &'static str),
        two_way: bool,
        deadline: Option<Instant>,
        lent: Option<Lent>,
    ) -> Option<OperationId> {
        let ops = [OpState::None; 2];
        let kind = if two_way { Kind::Call } else { Kind::OneWay };
        let extra = lent.map(|it| Extra::Arguments(Box::new(it)));
        let id = self.next_id()?;
        self.begin(id, (kind, peer, name), deadline, ops, extra);
        Some(id)
    }

    /// Starts a two-way call of which the transport has accepted both halves already, under
    /// [`Operations::next_id`], which this is.
    #[inline(always)]
    pub fn begin_exchanged(
        &mut self,
        id: OperationId,
        (peer, name): (Peer, &'static str),
        deadline: Option<Instant>,
        (send, receive): (OpId, OpId),
    ) {
        let ops = [OpState::Quiet(send), OpState::Open(receive)];
        self.begin(id, (Kind::Call, peer, name), deadline, ops, None);
    }

    /// The transport has accepted one half.
    #[inline]
    pub fn handle_posted(&mut self, id: OperationId, half: Half, op: OpId) {
        let Some(call) = self.table.get_mut(id) else { return };
        match half {
            Half::Send if call.kind == Kind::Call => call.send = OpState::Quiet(op),
            Half::Send => call.send = OpState::Open(op),
            Half::Receive => call.receive = OpState::Open(op),
        }
        if !call.is_open() {
            self.effects.push(Effect::CancelOp(op));
        }
    }

    /// The transport has no room for its request, which waits under this number.
    pub(crate) fn handle_waits(&mut self, id: OperationId, number: u64) {
        if let Some(call) = self.table.get_mut(id) {
            call.send = OpState::Waits(number);
        }
    }

    /// The call could not be handed to the transport.
    pub fn handle_refused(&mut self, id: OperationId, failure: Failure) {
        self.settle(id, Outcome::Failed(failure), false);
    }

    /// A call that has begun was not posted: there is none. Gives back what it lends, which is not to be dropped under a lock.
    #[must_use = "it is to be dropped where it may do anything"]
    pub(crate) fn forget(&mut self, id: OperationId) -> Option<Action> {
        let call = self.table.remove(id)?;
        if call.deadline.is_some() {
            self.timers.disarm();
        }
        call.extra.map(Extra::dropped)
    }

    /// A transport operation of a call's has ended.
    #[inline]
    pub fn handle_done(
        &mut self,
        id: OperationId,
        half: Half,
        result: &mut Result<(), Box<NaFailure>>,
        returned: &mut Returned,
    ) {
        let Some(call) = self.table.get_mut(id) else { return };
        // The common case: an answer for somebody who looks for it.
        if half == Half::Receive
            && result.is_ok()
            && call.is_plain()
            && !matches!(call.send, OpState::Waits(_))
            && let Returned::Message(message) = returned
            && is_plain_answer(id, message)
        {
            call.receive = OpState::Done;
            if call.deadline.take().is_some() {
                self.timers.disarm();
            }
            let message = std::mem::replace(message, Message::inline(0));
            let answer = Phase::Settled(Outcome::plain(message));
            // Nothing is dropped: the phase was `Open`.
            std::mem::forget(std::mem::replace(&mut call.phase, answer));
            self.settled += 1;
            return;
        }
        self.handle_done_otherwise(id, half, result, returned);
    }

    /// Takes the answer to a call of which nobody is to be told to its place, where `next` puts it there; says whether the call
    /// has settled by it.
    #[inline(always)]
    pub fn collect(
        &mut self,
        id: OperationId,
        place: &mut Option<Outcome>,
        next: impl FnOnce(Peer, &mut Message) -> bool,
    ) -> bool {
        let Some(call) = self.table.get_mut(id) else { return false };
        let is_awaited = call.is_plain()
            && matches!(call.receive, OpState::Open(_))
            && !matches!(call.send, OpState::Open(_) | OpState::Waits(_));
        if !is_awaited {
            return false;
        }
        // Nothing is dropped: the place was empty.
        std::mem::forget(place.replace(Outcome::plain(Message::inline(0))));
        let Some(Outcome::Answered { message, .. }) = place else { return false };
        if !next(call.peer, message) {
            *place = None;
            return false;
        }
        if !is_plain_answer(id, message) {
            return false;
        }
        if call.deadline.is_some() {
            self.timers.disarm();
        }
        self.table.forget(id); // A plain call owns nothing.
        true
    }

    /// An answer has come to its place that is to be read.
    pub(crate) fn read_collected(&mut self, id: OperationId, place: &mut Option<Outcome>) -> bool {
        if let Some(Outcome::Answered { message, .. }) = place.take() {
            let returned = &mut Returned::Message(message);
            self.handle_done_otherwise(id, Half::Receive, &mut Ok(()), returned);
        }
        self.take_into(id, place)
    }

    #[inline(never)]
    fn handle_done_otherwise(
        &mut self,
        id: OperationId,
        half: Half,
        result: &mut Result<(), Box<NaFailure>>,
        returned: &mut Returned,
    ) {
        if half == Half::Send
            && !self.untold.is_empty()
            && matches!(result, Err(failure) if failure.reached == Reached::Never)
        {
            self.untold.remove(&id);
        }
        let Some(call) = self.table.get_mut(id) else { return };
        match half {
            Half::Send => call.send = OpState::Done,
            Half::Receive => call.receive = OpState::Done,
        }
        if !call.is_open() {
            return self.free_if_spent(id);
        }
        let outcome = match (half, result) {
            (Half::Receive, Ok(())) => read_answer(id, call, returned),
            (Half::Send, Ok(())) if call.kind == Kind::Call => return,
            (Half::Send, Ok(())) => Outcome::Sent,
            (_, Err(failure)) => {
                let peer = call.peer;
                if matches!(call.send, OpState::Waits(_)) {
                    failure.reached = Reached::Never; // Of the receive alone the transport cannot know.
                }
                Outcome::Failed(self.judge(peer, transport_failure(failure)))
            }
        };
        self.settle(id, outcome, false);
    }

    /// The deadline of a call has passed. `was_connected`: whether a connection to its target stands or has stood.
    pub(super) fn end_call_in_time(
        &mut self,
        id: OperationId,
        was_connected: impl FnOnce(Peer) -> bool,
    ) {
        let Some(call) = self.table.get(id) else { return };
        let is_posted = !matches!(call.send, OpState::None | OpState::Waits(_));
        let started =
            if is_posted && was_connected(call.peer) { Started::Unknown } else { Started::No };
        self.settle(id, Outcome::Failed(Failure::DeadlineExceeded(started)), true);
    }

    /// A peer has said that all that it had begun is answered, and that it begins nothing any more.
    pub fn handle_peer_drained(&mut self, peer: Peer) {
        self.drained.insert(peer);
    }

    /// A peer has hung up: what it has said of itself is not true of who comes after it.
    pub fn forget_peer(&mut self, peer: Peer) {
        self.drained.remove(&peer);
    }

    /// A call that ends with the connection to a peer that has drained was not begun: its answer would have come before. Where this
    /// side has ended the connection, an answer may not have been read.
    fn judge(&self, peer: Peer, failure: Failure) -> Failure {
        match failure {
            Failure::PeerGone { reason: GoneReason::Closed | GoneReason::Exited, .. }
                if self.drained.contains(&peer) =>
            {
                Failure::Draining
            }
            other => other,
        }
    }

    /// A peer has said why it closes the connection: its calls end with that.
    pub fn handle_fault(&mut self, peer: Peer, sentence: &str) {
        for id in self.of(peer, |kind| matches!(kind, Kind::Call | Kind::OneWay)) {
            let reason = GoneReason::Refused(sentence.into());
            let waits = self.table.get(id).is_some_and(|it| matches!(it.send, OpState::Waits(_)));
            let started = if waits { Started::No } else { Started::Unknown };
            let failure = Failure::PeerGone { reason, started };
            self.settle(id, Outcome::Failed(failure), false);
        }
    }
}
