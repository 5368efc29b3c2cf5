//! The origin's side of a call, as a state machine: completions and timeouts in, effects out.
//!
//! ```text
//!   begin -> Open --answer, failure, deadline, cancel--> Settled --outcome taken or handle dropped--> Spent
//!             |                                             |                                          |
//!             +--- both transport operations may still be open in every state; the entry is freed -----+
//!                  when it is spent and neither is open
//! ```
//! A call settles exactly once. What happens later to its operations changes nothing: a late answer
//! is dropped, a cancelled operation is only waited for.

mod answer;
mod outcome;
mod owner;
mod untold;

use std::{task::Waker, time::Instant};

use hg_na::{Failure as NaFailure, GoneReason, OpId, Peer, Reached, Returned};

use self::{
    answer::{plain_answer, read_answer, transport_failure},
    untold::Untold,
};
pub use self::{
    outcome::{BulkAnswer, Outcome},
    owner::Owner,
};
use crate::{
    error::{Failure, Started},
    table::{ENTRIES_MAX, Key, Table},
    timers::Timers,
};

/// Names a call of this engine's context; its bits are the id on the wire and the tag of the answer.
pub type CallId = Key;

/// One of the two transport operations of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// The request.
    Send,
    /// The answer.
    Receive,
}

/// What the driver has to do.
#[derive(Debug)]
pub enum Effect {
    /// Cancel a transport operation.
    CancelOp(OpId),
    /// Tell the target that nobody waits for this call any more.
    TellCancelled {
        /// The target.
        peer: Peer,
        /// Id of the call.
        id: CallId,
    },
    /// Somebody waits for this call.
    Wake(Waker),
}

#[derive(Debug)]
struct Call {
    peer: Peer,
    name: &'static str,
    phase: Phase,
    two_way: bool,
    send: OpState,
    receive: OpState,
    deadline: Option<Instant>,
    /// Only while it is open.
    waker: Option<Waker>,
    /// Nobody will take the outcome.
    detached: bool,
}

#[derive(Debug)]
enum Phase {
    Open,
    Settled(Outcome),
    Spent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpState {
    /// Not posted yet, or never.
    None,
    Open(OpId),
    /// Posted, and its success will perhaps not be told.
    Quiet(OpId),
    Done,
}

/// All calls of one context.
#[derive(Debug)]
pub struct Calls {
    table: Table<Call>,
    timers: Timers,
    effects: Vec<Effect>,
    untold: Untold,
    /// Calls that have settled and whose outcome was not taken.
    settled: usize,
    max: usize,
}

/// What [`Calls::take_into`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    Not,
    Outcome,
    Nothing,
}

impl Call {
    /// Whether nobody is to be told when it settles.
    #[inline]
    fn is_plain(&self) -> bool {
        matches!(self.phase, Phase::Open) && self.waker.is_none() && !self.detached
    }

    /// Whether nothing of it is under way.
    #[inline]
    fn is_idle(&self) -> bool {
        !matches!(self.send, OpState::Open(_)) && !matches!(self.receive, OpState::Open(_))
    }
}

impl Calls {
    /// An empty set that holds at most `max` calls at a time.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            table: Table::default(),
            timers: Timers::default(),
            effects: Vec::new(),
            untold: Untold::default(),
            settled: 0,
            max: max.min(ENTRIES_MAX),
        }
    }

    /// Calls that are not freed yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Calls that there is room for.
    #[must_use]
    pub fn room(&self) -> usize {
        self.max - self.table.len()
    }

    /// The id that the next call will have; `None` when there are too many.
    #[inline(always)]
    pub fn next_id(&mut self) -> Option<CallId> {
        (self.table.len() < self.max).then(|| self.table.next_key())
    }

    /// Starts a call, under [`Calls::next_id`]; `None` when there are too many.
    pub fn begin(
        &mut self,
        peer: Peer,
        name: &'static str,
        two_way: bool,
        deadline: Option<Instant>,
    ) -> Option<CallId> {
        let ops = [OpState::None; 2];
        let has_room = self.table.len() < self.max;
        has_room.then(|| self.begin_with(peer, name, two_way, deadline, ops))
    }

    /// When a call ends at the latest.
    #[must_use]
    pub fn deadline(&self, id: CallId) -> Option<Instant> {
        self.table.get(id)?.deadline
    }

    /// Starts a two-way call of which the transport has accepted both halves already, under
    /// [`Calls::next_id`].
    #[inline(always)]
    pub fn begin_exchanged(
        &mut self,
        peer: Peer,
        name: &'static str,
        deadline: Option<Instant>,
        (send, receive): (OpId, OpId),
    ) -> CallId {
        let ops = [OpState::Quiet(send), OpState::Open(receive)];
        self.begin_with(peer, name, true, deadline, ops)
    }

    #[inline(always)]
    fn begin_with(
        &mut self,
        peer: Peer,
        name: &'static str,
        two_way: bool,
        deadline: Option<Instant>,
        [send, receive]: [OpState; 2],
    ) -> CallId {
        let id = self.table.insert_with(|| Call {
            peer,
            name,
            phase: Phase::Open,
            two_way,
            send,
            receive,
            deadline,
            waker: None,
            detached: false,
        });
        if let Some(at) = deadline {
            let table = &self.table;
            self.timers.arm(at, id, |key| is_awaited(table, key));
        }
        id
    }

    /// The transport has accepted one half.
    #[inline]
    pub fn handle_posted(&mut self, id: CallId, half: Half, op: OpId) {
        let Some(call) = self.table.get_mut(id) else { return };
        match half {
            Half::Send if call.two_way => call.send = OpState::Quiet(op),
            Half::Send => call.send = OpState::Open(op),
            Half::Receive => call.receive = OpState::Open(op),
        }
        if !matches!(call.phase, Phase::Open) {
            self.effects.push(Effect::CancelOp(op));
        }
    }

    /// The call could not be handed to the transport.
    pub fn handle_refused(&mut self, id: CallId, failure: Failure) {
        self.settle(id, Outcome::Failed(failure), false);
    }

    /// A call that has begun was not posted: there is none.
    pub(crate) fn forget(&mut self, id: CallId) {
        if self.table.remove(id).is_some_and(|call| call.deadline.is_some()) {
            self.timers.disarm();
        }
    }

    /// A transport operation has ended.
    #[inline]
    pub fn handle_done(
        &mut self,
        id: CallId,
        half: Half,
        result: &mut Result<(), Box<NaFailure>>,
        returned: &mut Returned,
    ) {
        let Some(call) = self.table.get_mut(id) else { return };
        // The common case: an answer for somebody who looks for it.
        if half == Half::Receive
            && result.is_ok()
            && call.is_plain()
            && let Some((bytes, len)) = plain_answer(id, returned)
        {
            call.receive = OpState::Done;
            if call.deadline.take().is_some() {
                self.timers.disarm();
            }
            // Nothing is dropped: the phase was `Open`.
            let before =
                std::mem::replace(&mut call.phase, Phase::Settled(Outcome::plain(bytes, len)));
            std::mem::forget(before);
            self.settled += 1;
            return;
        }
        self.handle_done_otherwise(id, half, result, returned);
    }

    /// The same for an answer whose taker is here: straight to its place. `false` leaves everything to
    /// [`Calls::handle_done`].
    #[inline(always)]
    pub fn take_answer(
        &mut self,
        id: CallId,
        returned: &Returned,
        place: &mut Option<Outcome>,
    ) -> bool {
        let timers = &mut self.timers;
        let taken = self.table.look_and_forget(id, |call| {
            if call.is_plain()
                && !matches!(call.send, OpState::Open(_))
                && let Some((bytes, len)) = plain_answer(id, returned)
            {
                // Nothing is dropped: the place was empty, and a plain call owns nothing.
                std::mem::forget(place.replace(Outcome::plain(bytes, len)));
                if call.deadline.is_some() {
                    timers.disarm();
                }
                return (true, true);
            }
            (false, false)
        });
        taken == Some(true)
    }

    #[inline(never)]
    fn handle_done_otherwise(
        &mut self,
        id: CallId,
        half: Half,
        result: &mut Result<(), Box<NaFailure>>,
        returned: &mut Returned,
    ) {
        if half == Half::Send
            && !self.untold.is_empty()
            && matches!(result, Err(failure) if failure.reached == Reached::Never)
        {
            self.untold.forget(id);
        }
        let Some(call) = self.table.get_mut(id) else { return };
        let two_way = call.two_way;
        match half {
            Half::Send => call.send = OpState::Done,
            Half::Receive => call.receive = OpState::Done,
        }
        if !matches!(call.phase, Phase::Open) {
            return self.free_if_spent(id);
        }
        let outcome = match (half, result) {
            (Half::Receive, Ok(())) => match read_answer(id, call.name, returned) {
                Outcome::Bulk(answer) => {
                    let (peer, deadline) = (call.peer, call.deadline);
                    Outcome::Bulk(Box::new(BulkAnswer { peer, deadline, ..*answer }))
                }
                outcome => outcome,
            },
            (Half::Send, Ok(())) if two_way => return,
            (Half::Send, Ok(())) => Outcome::Sent,
            (_, Err(failure)) => Outcome::Failed(transport_failure(failure)),
        };
        self.settle(id, outcome, false);
    }

    /// Ends the calls whose deadline has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(id) = self.timers.pop_due(now) {
            let Some(call) = self.table.get(id) else { continue };
            if matches!(call.phase, Phase::Open) {
                let started =
                    if call.send == OpState::None { Started::No } else { Started::Unknown };
                self.settle(id, Outcome::Failed(Failure::DeadlineExceeded(started)), true);
            }
        }
    }

    /// A peer has said why it closes the connection: its calls end with that.
    pub fn handle_fault(&mut self, peer: Peer, sentence: &str) {
        let of_peer = |(id, call): (CallId, &Call)| (call.peer == peer).then_some(id);
        let ids: Vec<CallId> = self.table.iter().filter_map(of_peer).collect();
        for id in ids {
            let reason = GoneReason::Refused(sentence.into());
            let failure = Failure::PeerGone { reason, started: Started::Unknown };
            self.settle(id, Outcome::Failed(failure), false);
        }
    }

    /// Ends a call on its caller's wish.
    pub fn cancel(&mut self, id: CallId) {
        self.settle(id, Outcome::Failed(Failure::Cancelled), true);
    }

    /// Nobody will take the outcome: an open call is cancelled, a settled one forgotten. Gives back the waker, which is a
    /// user's: it is not to be dropped under a lock.
    #[must_use = "it is to be dropped where it may do anything"]
    pub fn abandon(&mut self, id: CallId) -> Option<Waker> {
        let call = self.table.get_mut(id)?;
        let waker = call.waker.take();
        if matches!(call.phase, Phase::Open) {
            self.settle(id, Outcome::Failed(Failure::Cancelled), true);
        }
        self.spend(id);
        waker
    }

    /// Nobody will take the outcome, but the call goes on: a one-way call. Gives back the waker, as [`Calls::abandon`] does.
    #[must_use = "it is to be dropped where it may do anything"]
    pub fn detach(&mut self, id: CallId) -> Option<Waker> {
        let call = self.table.get_mut(id)?;
        let waker = call.waker.take();
        if matches!(call.phase, Phase::Open) {
            call.detached = true;
        } else {
            self.spend(id);
        }
        waker
    }

    /// Ends every open call with this failure: the engine shuts down.
    pub fn close(&mut self, failure: &Failure) {
        let open: Vec<CallId> = self.table.iter().map(|(id, _)| id).collect();
        for id in open {
            self.settle(id, Outcome::Failed(failure.clone()), false);
        }
    }

    /// Whether the outcome is there; unknown calls have none and never will.
    #[inline]
    #[must_use]
    pub fn is_settled(&self, id: CallId) -> bool {
        self.table.get(id).is_none_or(|call| !matches!(call.phase, Phase::Open))
    }

    /// Whether any outcome waits to be taken.
    #[inline]
    #[must_use]
    pub fn any_settled(&self) -> bool {
        self.settled != 0
    }

    /// Takes the outcome.
    #[inline]
    pub fn take(&mut self, id: CallId) -> Option<Outcome> {
        let call = self.table.get_mut(id)?;
        if matches!(call.phase, Phase::Open) {
            return None;
        }
        let phase = std::mem::replace(&mut call.phase, Phase::Spent);
        self.settled -= usize::from(matches!(phase, Phase::Settled(_)));
        self.free_if_spent(id);
        match phase {
            Phase::Settled(outcome) => Some(outcome),
            Phase::Open | Phase::Spent => None,
        }
    }

    /// Takes the outcome to its place; says whether the call has settled. Unknown calls have, and leave nothing.
    #[inline(always)]
    pub fn take_into(&mut self, id: CallId, place: &mut Option<Outcome>) -> bool {
        let taken = self.table.look_and_forget(id, |call| {
            if matches!(call.phase, Phase::Open) {
                return (Taken::Not, false);
            }
            let mut taken = Taken::Nothing;
            if let Phase::Settled(outcome) = &mut call.phase {
                // Nothing is dropped here: the place was empty, and `Sent` owns nothing.
                let outcome = std::mem::replace(outcome, Outcome::Sent);
                std::mem::forget(place.replace(outcome));
                std::mem::forget(std::mem::replace(&mut call.phase, Phase::Spent));
                taken = Taken::Outcome;
            }
            debug_assert!(call.waker.is_none(), "only an open call has one");
            (taken, call.is_idle())
        });
        self.settled -= usize::from(taken == Some(Taken::Outcome));
        taken != Some(Taken::Not)
    }

    /// Whether this waker, or one that does the same, is woken when the call settles.
    #[must_use]
    pub fn is_to_wake(&self, id: CallId, waker: &Waker) -> bool {
        let present = self.table.get(id).and_then(|call| call.waker.as_ref());
        present.is_some_and(|present| present.will_wake(waker))
    }

    /// Whom to wake when the call settles; the last one counts. Gives back the one before, or this one where the call has
    /// settled already: a waker is a user's, and is not to be dropped under a lock.
    #[must_use = "it is to be dropped where it may do anything"]
    pub fn set_waker(&mut self, id: CallId, waker: Waker) -> Option<Waker> {
        match self.table.get_mut(id) {
            Some(call) if matches!(call.phase, Phase::Open) => call.waker.replace(waker),
            _ => Some(waker),
        }
    }

    /// Whether there are effects, or targets to be told.
    #[inline]
    #[must_use]
    pub fn has_chores(&self) -> bool {
        !self.effects.is_empty() | self.needs_round()
    }

    /// A round of the transport's progress is over: what it has said of requests that were taken back before is known.
    pub fn handle_round(&mut self) {
        let tell = |(id, peer)| Effect::TellCancelled { peer, id };
        self.effects.extend(self.untold.turn().into_iter().map(tell));
    }

    /// Whether [`Calls::handle_round`] is still to be called: not to sleep before.
    #[inline]
    #[must_use]
    pub fn needs_round(&self) -> bool {
        !self.untold.is_empty()
    }

    /// What the driver has to do next.
    #[inline]
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop()
    }

    /// When [`Calls::handle_timeout`] wants to be called.
    #[must_use]
    pub fn next_deadline(&mut self) -> Option<Instant> {
        let table = &self.table;
        self.timers.next(|key| is_awaited(table, key))
    }

    #[inline]
    fn settle(&mut self, id: CallId, outcome: Outcome, tell_target: bool) {
        let Some(call) = self.table.get_mut(id) else { return };
        if !matches!(call.phase, Phase::Open) {
            return;
        }
        let failed = matches!(outcome, Outcome::Failed(_));
        call.phase = Phase::Settled(outcome);
        self.settled += 1;
        if let Some(waker) = call.waker.take() {
            self.effects.push(Effect::Wake(waker));
        }
        if failed {
            if tell_target && matches!(call.send, OpState::Quiet(_) | OpState::Done) {
                self.untold.add(id, call.peer);
            }
            for op in [call.send, call.receive] {
                if let OpState::Open(op) | OpState::Quiet(op) = op {
                    self.effects.push(Effect::CancelOp(op));
                }
            }
        }
        if call.deadline.take().is_some() {
            self.timers.disarm();
        }
        if self.table.get(id).is_some_and(|call| call.detached) {
            self.spend(id);
        }
    }

    fn spend(&mut self, id: CallId) {
        if let Some(call) = self.table.get_mut(id) {
            let phase = std::mem::replace(&mut call.phase, Phase::Spent);
            self.settled -= usize::from(matches!(phase, Phase::Settled(_)));
            self.free_if_spent(id);
        }
    }

    #[inline]
    fn free_if_spent(&mut self, id: CallId) {
        let Some(call) = self.table.get(id) else { return };
        if matches!(call.phase, Phase::Spent) && call.is_idle() {
            self.table.discard(id);
        }
    }
}

/// Whether a call is to end at its deadline.
fn is_awaited(table: &Table<Call>, id: CallId) -> bool {
    table.get(id).is_some_and(|call| matches!(call.phase, Phase::Open))
}

#[cfg(test)]
mod tests;
