//! What a context has under way for its users: calls, one-way calls, transfers, and waits for room for another call. One table, one
//! waker, one deadline and one way to abandon for all of them.
//!
//! ```text
//!   begin -> Open --answer, end of the bytes, failure, deadline, cancel--> Settled --outcome taken or abandoned--> Spent
//!             |                                                                |                                     |
//!             +--- operations of the transport may still be open in every state; the entry is freed -----------------+
//!                  when it is spent and none is open
//! ```
//! Each settles exactly once. What happens later to its transport's operations changes nothing: a late answer is dropped, a
//! cancelled operation is only waited for. Completions and times come in, [`Effect`]s go out.

mod answer;
mod call;
mod outcome;
mod owner;
#[cfg(test)]
mod tests;
mod transfer;
mod waits;

use std::{collections::VecDeque, task::Waker, time::Instant};

use hg_bulk::TransferError;
use hg_na::{OpId, Peer};
use rustc_hash::{FxHashMap, FxHashSet};

pub(crate) use self::transfer::{MOVE_MAX, start_of};
pub use self::{
    call::Half,
    outcome::{BulkAnswer, Moved, Outcome},
    owner::Owner,
    transfer::{Came, Move, Near},
};
use self::{call::OpState, transfer::Transfer};
use crate::{
    deferred::Action,
    error::Failure,
    header,
    kept::Lent,
    table::{ENTRIES_MAX, Key, Table},
    timers::Timers,
};

/// Names what is under way; the bits of a call's are its id on the wire and the tag of its answer.
pub type OperationId = Key;

/// What the driver has to do.
#[derive(Debug)]
pub enum Effect {
    /// Cancel an operation of the transport.
    CancelOp(OpId),
    /// Tell a target that nobody waits for this call any more, or for its result.
    Tell {
        /// The target.
        peer: Peer,
        /// Which of both.
        what: header::Kind,
        /// Id of the call.
        id: OperationId,
    },
    /// A call has settled whose request waits for room in the transport: it waits no more.
    DropRequest {
        /// The target.
        peer: Peer,
        /// Of the request among those that wait.
        number: u64,
    },
    /// Wake who waits for it, drop what nobody needs any more: not under a lock.
    Defer(Action),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Call,
    OneWay,
    Transfer,
    /// A wait for room for another call.
    Room,
    /// The same, which was told of some.
    Granted,
    /// A wait for the end of all that is in service.
    Drain,
}

#[derive(Debug)]
struct Operation {
    peer: Peer,
    /// Of the RPC.
    name: &'static str,
    kind: Kind,
    phase: Phase,
    send: OpState,
    receive: OpState,
    deadline: Option<Instant>,
    /// Only while it is open.
    waker: Option<Waker>,
    /// Nobody will take the outcome.
    detached: bool,
    extra: Option<Extra>,
}

/// What only some have.
#[derive(Debug)]
enum Extra {
    Transfer(Box<Transfer>),
    /// Of a call, for its target to take.
    Arguments(Box<Lent>),
}

impl Extra {
    /// To be dropped without a lock.
    fn dropped(self) -> Action {
        match self {
            Self::Transfer(transfer) => Action::Drop(transfer),
            Self::Arguments(lent) => Action::Drop(lent),
        }
    }
}

#[derive(Debug)]
enum Phase {
    Open,
    Settled(Outcome),
    Spent,
}

/// Room for so many cancellations is kept after a burst of them.
const UNTOLD_KEPT: usize = 64;

/// All that one context has under way.
#[derive(Debug, Default)]
pub struct Operations {
    table: Table<Operation>,
    timers: Timers,
    effects: Vec<Effect>,
    /// Calls that have ended before their answer, and whose targets are to be told: a round later, when the transport has said of
    /// those requests that it has taken back that they never left. Whether that round is over.
    untold: FxHashMap<OperationId, (Peer, bool)>,
    /// Those that have settled and whose outcome was not taken.
    settled: usize,
    /// Something has settled since whoever makes progress was about to sleep: it may be what that one waits for.
    has_settled: bool,
    /// Those that are no calls.
    others: usize,
    /// Calls at a time.
    max: usize,
    /// Transfers that the transport had no room for, by peer; among them some that have ended since.
    stalled: FxHashMap<Peer, VecDeque<OperationId>>,
    /// Those of which a piece is to be moved by this side.
    to_move: VecDeque<OperationId>,
    /// Peers with which a piece is being moved, and transfers whose turn has come meanwhile.
    moving: FxHashMap<Peer, VecDeque<OperationId>>,
    /// Bytes that were moved at once since a round was due for it.
    moved_at_once: u64,
    /// Who waits for room, in the order in which they came.
    waiting: VecDeque<OperationId>,
    /// So many have waited, were told of some, and have not looked.
    granted: usize,
    /// Who waits for the end of all that is in service.
    drains: VecDeque<OperationId>,
    /// Peers that have drained, and are connected still.
    drained: FxHashSet<Peer>,
}

impl Operation {
    /// Whether nobody is to be told when it settles, and it holds nothing.
    #[inline]
    fn is_plain(&self) -> bool {
        matches!(self.phase, Phase::Open)
            && self.waker.is_none()
            && !self.detached
            && self.extra.is_none()
    }

    #[inline]
    fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Whether nothing of it is under way.
    #[inline]
    fn is_idle(&self) -> bool {
        !matches!(self.send, OpState::Open(_))
            && !matches!(self.receive, OpState::Open(_))
            && self.extra.is_none()
    }

    fn transfer(&mut self) -> Option<&mut Transfer> {
        match &mut self.extra {
            Some(Extra::Transfer(transfer)) => Some(transfer),
            _ => None,
        }
    }
}

impl Operations {
    /// An empty set that holds at most `calls_max` calls at a time.
    #[must_use]
    pub fn new(calls_max: usize) -> Self {
        Self { max: calls_max.min(ENTRIES_MAX / 2), ..Self::default() }
    }

    /// Calls that are not freed yet.
    #[inline]
    #[must_use]
    pub fn calls(&self) -> usize {
        self.table.len() - self.others
    }

    /// Transfers that are not freed yet.
    #[must_use]
    pub fn transfers(&self) -> usize {
        self.table.iter().filter(|(_, it)| it.kind == Kind::Transfer).count()
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Calls that there is room for, without that of which somebody who waits for it was told just now.
    #[must_use]
    pub fn room(&self) -> usize {
        (self.max - self.calls()).saturating_sub(self.granted)
    }

    /// Begins the next one, whose id this is ([`Table::next_key`]).
    #[inline(always)]
    fn begin(
        &mut self,
        id: OperationId,
        (kind, peer, name): (Kind, Peer, &'static str),
        deadline: Option<Instant>,
        [send, receive]: [OpState; 2],
        extra: Option<Extra>,
    ) {
        self.table.insert_next(id, || Operation {
            peer,
            name,
            kind,
            phase: Phase::Open,
            send,
            receive,
            deadline,
            waker: None,
            detached: false,
            extra,
        });
        if let Some(at) = deadline {
            let table = &self.table;
            self.timers.arm(at, id, |key| is_awaited(table, key));
        }
    }

    /// When it ends at the latest.
    #[must_use]
    pub fn deadline(&self, id: OperationId) -> Option<Instant> {
        self.table.get(id)?.deadline
    }

    /// Sets when it ends at the latest; the earlier one counts.
    pub fn set_deadline(&mut self, id: OperationId, at: Instant) {
        let Some(operation) = self.table.get_mut(id) else { return };
        if !operation.is_open() || operation.deadline.is_some_and(|before| before <= at) {
            return;
        }
        self.arm(id, at);
    }

    fn arm(&mut self, id: OperationId, at: Instant) {
        let Some(operation) = self.table.get_mut(id) else { return };
        if operation.deadline.replace(at).is_some() {
            self.timers.disarm();
        }
        let table = &self.table;
        self.timers.arm(at, id, |key| is_awaited(table, key));
    }

    /// Ends what has a deadline that has passed. `was_connected`: see [`hg_na::Context::was_connected`].
    pub fn handle_timeout(&mut self, now: Instant, mut was_connected: impl FnMut(Peer) -> bool) {
        while let Some(id) = self.timers.pop_due(now) {
            let Some(operation) = self.table.get(id) else { continue };
            if !operation.is_open() || operation.deadline.is_none_or(|at| at > now) {
                continue;
            }
            match operation.kind {
                Kind::Transfer => self.end_transfer_in_time(id, now),
                _ => self.end_call_in_time(id, &mut was_connected),
            }
        }
    }

    /// Ends a call, or a wait, whose deadline has passed, out of turn; a transfer is ended by whoever makes progress and gets its
    /// memory back. Says whether it has settled.
    pub fn expire(
        &mut self,
        id: OperationId,
        now: Instant,
        was_connected: impl FnOnce(Peer) -> bool,
    ) -> bool {
        let is_due = self.table.get(id).is_some_and(|it| {
            it.is_open() && it.kind != Kind::Transfer && it.deadline.is_some_and(|at| at <= now)
        });
        if is_due {
            self.end_call_in_time(id, was_connected);
        }
        self.is_settled(id)
    }

    /// Ends it on its user's wish.
    pub fn cancel(&mut self, id: OperationId, now: Instant) {
        if self.table.get(id).is_some_and(|it| it.kind == Kind::Transfer) {
            self.stop_transfer(id, TransferError::Cancelled, now);
        } else {
            self.settle(id, Outcome::Failed(Failure::Cancelled), true);
        }
    }

    /// Nobody will take the outcome: what is open is cancelled, what has settled is forgotten. Gives back the waker, which is a
    /// user's: it is not to be dropped under a lock.
    #[must_use = "it is to be dropped where it may do anything"]
    pub fn abandon(&mut self, id: OperationId, now: Instant) -> Option<Waker> {
        let waker = self.detach(id);
        self.cancel(id, now);
        waker
    }

    /// Nobody will take the outcome, but it goes on: a one-way call. Gives back the waker, as [`Operations::abandon`] does.
    #[must_use = "it is to be dropped where it may do anything"]
    pub fn detach(&mut self, id: OperationId) -> Option<Waker> {
        let operation = self.table.get_mut(id)?;
        let waker = operation.waker.take();
        if operation.is_open() {
            operation.detached = true;
        } else {
            self.spend(id);
        }
        waker
    }

    /// Ends all that is open: the engine shuts down.
    pub fn close(&mut self, failure: &Failure, why: &TransferError) {
        self.to_move.clear();
        self.moving.clear();
        let open: Vec<OperationId> = self.table.iter().map(|(id, _)| id).collect();
        for id in open {
            if self.table.get(id).is_some_and(|it| it.kind == Kind::Transfer) {
                self.abort_transfer(id, why);
            } else {
                self.settle(id, Outcome::Failed(failure.clone()), false);
            }
        }
    }

    /// Those with this peer.
    fn of(&self, peer: Peer, is_meant: impl Fn(Kind) -> bool) -> Vec<OperationId> {
        let of_peer = self.table.iter().filter(|(_, it)| it.peer == peer && is_meant(it.kind));
        of_peer.map(|(id, _)| id).collect()
    }

    /// Whether the outcome is there; what is unknown has none and never will.
    #[inline]
    #[must_use]
    pub fn is_settled(&self, id: OperationId) -> bool {
        self.table.get(id).is_none_or(|operation| !operation.is_open())
    }

    /// Whether anything has settled since this was asked, other than by an answer that came in a round: not to sleep before
    /// another look.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_settled)
    }

    /// Whether any outcome waits to be taken.
    #[inline]
    #[must_use]
    pub fn any_settled(&self) -> bool {
        self.settled != 0
    }

    /// Whether anything has not settled yet.
    #[inline]
    #[must_use]
    pub fn any_open(&self) -> bool {
        self.table.len() > self.settled
    }

    /// Takes the outcome.
    #[inline]
    pub fn take(&mut self, id: OperationId) -> Option<Outcome> {
        let mut outcome = None;
        self.take_into(id, &mut outcome);
        outcome
    }

    /// Takes the outcome to its place; says whether it has settled. What is unknown has, and leaves nothing.
    #[inline(always)]
    pub fn take_into(&mut self, id: OperationId, place: &mut Option<Outcome>) -> bool {
        let Some(operation) = self.table.get_mut(id) else { return true };
        if operation.is_open() {
            return false;
        }
        if let Phase::Settled(outcome) = &mut operation.phase {
            // Nothing is dropped here: the place was empty, and `Sent` owns nothing.
            let outcome = std::mem::replace(outcome, Outcome::Sent);
            std::mem::forget(place.replace(outcome));
            std::mem::forget(std::mem::replace(&mut operation.phase, Phase::Spent));
            self.settled -= 1;
        }
        self.free_if_spent(id);
        true
    }

    /// An entry is gone that was no call's.
    fn handle_freed(&mut self, kind: Kind) {
        self.others -= 1;
        if kind == Kind::Granted {
            self.granted -= 1;
        }
    }

    /// Whether this waker, or one that does the same, is woken when it settles.
    #[must_use]
    pub fn is_to_wake(&self, id: OperationId, waker: &Waker) -> bool {
        let present = self.table.get(id).and_then(|operation| operation.waker.as_ref());
        present.is_some_and(|present| present.will_wake(waker))
    }

    /// Whom to wake when it settles; the last one counts. Gives back the one before, or this one where it has settled already: a
    /// waker is a user's, and is not to be dropped under a lock.
    #[must_use = "it is to be dropped where it may do anything"]
    pub fn set_waker(&mut self, id: OperationId, waker: Waker) -> Option<Waker> {
        match self.table.get_mut(id) {
            Some(operation) if operation.is_open() => operation.waker.replace(waker),
            _ => Some(waker),
        }
    }

    /// Whether there are effects, or targets to be told, or anybody waits for room.
    #[inline]
    #[must_use]
    pub fn has_chores(&self) -> bool {
        !self.effects.is_empty()
            | self.needs_round()
            | !self.waiting.is_empty()
            | !self.drains.is_empty()
    }

    /// A round of the transport's progress is over: what it has said of requests that were taken back before is known.
    pub fn handle_round(&mut self) {
        self.untold.retain(|&id, (peer, is_due)| {
            let was_due = std::mem::replace(is_due, true);
            if was_due {
                self.effects.push(Effect::Tell { peer: *peer, what: header::Kind::Cancel, id });
            }
            !was_due
        });
        self.untold.shrink_to(UNTOLD_KEPT);
    }

    /// Whether [`Operations::handle_round`] is still to be called: not to sleep before.
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

    /// When [`Operations::handle_timeout`] wants to be called.
    #[must_use]
    pub fn next_deadline(&mut self) -> Option<Instant> {
        let table = &self.table;
        self.timers.next(|key| is_awaited(table, key))
    }

    #[inline]
    fn settle(&mut self, id: OperationId, outcome: Outcome, tell_target: bool) {
        let Some(operation) = self.table.get_mut(id) else { return };
        if !operation.is_open() {
            return;
        }
        let failed = matches!(outcome, Outcome::Failed(_));
        operation.phase = Phase::Settled(outcome);
        self.settled += 1;
        self.has_settled = true;
        if operation.kind == Kind::Room && !failed {
            operation.kind = Kind::Granted;
            self.granted += 1;
        }
        if let OpState::Waits(number) = operation.send {
            self.effects.push(Effect::DropRequest { peer: operation.peer, number });
        }
        if let Some(waker) = operation.waker.take() {
            self.effects.push(Effect::Defer(Action::Wake(waker)));
        }
        if failed {
            if tell_target && matches!(operation.send, OpState::Quiet(_) | OpState::Done) {
                self.untold.insert(id, (operation.peer, false));
            }
            for op in [operation.send, operation.receive] {
                if let OpState::Open(op) | OpState::Quiet(op) = op {
                    self.effects.push(Effect::CancelOp(op));
                }
            }
        }
        if operation.deadline.take().is_some() {
            self.timers.disarm();
        }
        if matches!(operation.extra, Some(Extra::Arguments(_))) {
            let extra = operation.extra.take();
            self.effects.extend(extra.map(|it| Effect::Defer(it.dropped())));
        }
        if operation.detached {
            self.spend(id);
        }
    }

    fn spend(&mut self, id: OperationId) {
        let Some(operation) = self.table.get_mut(id) else { return };
        let phase = std::mem::replace(&mut operation.phase, Phase::Spent);
        if let Phase::Settled(outcome) = phase {
            self.settled -= 1;
            match outcome {
                Outcome::Moved(moved) => {
                    self.effects.push(Effect::Defer(Action::Drop(Box::new(moved))))
                }
                Outcome::Bulk(answer) => {
                    let (peer, what) = (answer.peer, header::Kind::ResultTaken);
                    self.effects.push(Effect::Tell { peer, what, id });
                }
                Outcome::Answered { .. } | Outcome::Sent | Outcome::Failed(_) => {}
            }
        }
        self.free_if_spent(id);
    }

    #[inline]
    fn free_if_spent(&mut self, id: OperationId) {
        let Some(operation) = self.table.get(id) else { return };
        if matches!(operation.phase, Phase::Spent) && operation.is_idle() {
            debug_assert!(operation.waker.is_none(), "only what is open has one");
            debug_assert!(operation.deadline.is_none(), "only what is open has a timer");
            let kind = operation.kind;
            self.table.forget(id); // It owns nothing any more.
            if !matches!(kind, Kind::Call | Kind::OneWay) {
                self.handle_freed(kind);
            }
        }
    }
}

/// Whether it is to end at its deadline.
fn is_awaited(table: &Table<Operation>, id: OperationId) -> bool {
    table.get(id).is_some_and(|it| it.is_open() && it.deadline.is_some())
}
