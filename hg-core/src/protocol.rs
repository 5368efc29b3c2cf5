//! The protocol of one context of the transport: calls, requests in service, transfers, and what waits for room.
//!
//! It is driven: completions and times in, operations of the transport out, and what is to be done outside of whatever lock the
//! driver holds ([`Deferred`]). It never waits, reads no clock and runs nothing of a user's.
//!
//! # What one peer can hold
//! | what | bound | what happens at it |
//! |---|---|---|
//! | messages that wait for room in the transport | [`Limits::backlog_bytes_max`], a fair share of it | a call or one-way call is refused |
//! | requests in service | [`Limits::in_service_max`], a fair share of it | nothing more is taken from it |
//! | answers that it does not take | [`Limits::backlog_bytes_max`] beside requests, a fair share of it | a refusal instead ([`Status::Rejected`]), unless it is short; nothing more is taken from it while any wait |
//! | large arguments of one-way calls that it has not pulled | [`Limits::backlog_bytes_max`], a fair share of it | a one-way call is refused |
//! | large arguments of its own that were pulled and are not served yet | [`Limits::results_bytes_max`], a fair share of it, in turn ([`crate::budget`]) | they are pulled later |
//! | large results that it has not pulled | [`Limits::results_bytes_max`], a fair share of it | the result is refused |
//!
//! A fair share is what [`crate::shares`] says: no more than is left for all others, so a half at most, also in one piece. So a peer
//! that is hung, slow or dead holds up nobody else.

mod answers;
mod drain;
mod limits;
mod transfers;

use std::time::Instant;

use hg_bulk::TransferError;
use hg_na::{
    Address, Completion, Context, Done, Exchange, Exchanged, GoneReason, Message, Op, Peer,
};
use rustc_hash::{FxHashMap, FxHashSet};

use self::answers::handle_untaken;
pub use self::{answers::status_message, limits::Limits};
use crate::{
    backlog::{Backlog, Posted},
    budget::Budget,
    deferred::Deferred,
    error::{Failure, Started, Status, bounded_text},
    header::{Header, Kind, PREFIX_LEN},
    kept::Kept,
    operations::{Effect, Half, OperationId, Operations, Outcome, Owner},
    serve::{Admission, Arrival, Serves, Stalled},
};

/// Of a peer's last sentence, so many characters are told.
const FAULT_CHARS_MAX: usize = 256;

/// No peer has this number.
const NOBODY: Peer = Peer::new(u32::MAX, u32::MAX);

/// A request whose handler is to run: its message is still among the round's completions.
#[derive(Debug)]
pub struct Ticket {
    /// Its origin.
    pub from: Peer,
    /// Where its message is; of one that was taken straight to its place, nowhere.
    pub at: usize,
    /// Its header.
    pub header: Header,
    /// Where its payload begins.
    pub payload: usize,
}

/// All that one context of the transport has under way.
#[derive(Debug)]
pub struct Protocol {
    /// `None` once it is closed, or broken.
    pub context: Option<Box<dyn Context>>,
    /// The transport is made of several, and finds its parts of descriptors by itself.
    routes: bool,
    /// Why the transport is broken, where it is.
    broken: Option<hg_na::Error>,
    /// The origin's side: calls, transfers, and who waits for room for another call.
    pub operations: Operations,
    /// The target's side.
    pub serves: Serves,
    /// What peers have not pulled yet.
    pub kept: Kept,
    /// For large arguments that were pulled and are not served yet.
    pub budget: Budget,
    /// Of peers that were looked up, for people to read.
    pub addresses: FxHashMap<Peer, Address>,
    backlog: Backlog,
    /// Wakers of calls that have settled, and what else is not for the driver's lock.
    pub deferred: Deferred,
    /// Longest last sentence in bytes: what a control message holds beside its header.
    fault_text_max: usize,
    /// Whose plain request has last come in a round, and no other with it.
    only_origin: Peer,
    /// The last round has left nothing to do, and only calls, answers and requests have come and gone since: the next round may be
    /// left out for one of those. Whoever does anything else takes it back.
    pub is_at_rest: bool,
    /// How far it has drained.
    drain: drain::Stage,
    /// Connected peers that were told so.
    told: FxHashSet<Peer>,
    /// Of the last round.
    now: Instant,
}

impl Protocol {
    /// Nothing under way. `max_control`: [`hg_na::Caps::max_control`].
    #[must_use]
    pub fn new(
        context: Box<dyn Context>,
        limits: &Limits,
        max_control: usize,
        now: Instant,
    ) -> Self {
        Self {
            routes: context.address().scheme() == hg_na::UID,
            context: Some(context),
            broken: None,
            operations: Operations::new(limits.calls_max),
            serves: Serves::new(limits.in_service_max, limits.reject_above),
            kept: Kept::new(limits.backlog_bytes_max, limits.results_bytes_max),
            budget: Budget::new(limits.results_bytes_max, now),
            addresses: FxHashMap::default(),
            backlog: Backlog::new(limits.backlog_bytes_max, limits.calls_max),
            deferred: Deferred::default(),
            fault_text_max: max_control.saturating_sub(PREFIX_LEN),
            only_origin: NOBODY,
            is_at_rest: false,
            drain: drain::Stage::default(),
            told: FxHashSet::default(),
            now,
        }
    }

    /// Whether there is a transport still.
    #[inline]
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.context.is_some()
    }

    /// The transport, while it is open.
    ///
    /// # Errors
    /// [`hg_na::Error::Closed`], or what has broken it.
    pub fn context(&mut self) -> Result<&mut dyn Context, hg_na::Error> {
        match &mut self.context {
            Some(context) => Ok(context.as_mut()),
            None => Err(closed(self.broken.as_ref())),
        }
    }

    /// Hands both halves of a two-way call to the transport in one step, where it can; otherwise they are to be
    /// posted ([`Protocol::post_call`]).
    #[inline(always)]
    pub fn exchange(
        &mut self,
        id: OperationId,
        to: Peer,
        message: &mut Message,
    ) -> Option<Exchanged> {
        if !self.backlog.is_empty() && self.backlog.has_requests(to) {
            return None;
        }
        let exchange = Exchange {
            to,
            tag: id.to_bits(),
            send: Owner::Call(id, Half::Send).quiet_token(),
            receive: Owner::Call(id, Half::Receive).token(),
        };
        self.context.as_mut()?.exchange(&exchange, message)
    }

    /// Takes the answer to a call straight to its place, where it is the next thing that the transport has of its target;
    /// says whether the call has settled by it.
    #[inline(always)]
    pub fn collect(&mut self, id: OperationId, place: &mut Option<Outcome>) -> bool {
        let Some(context) = &mut self.context else { return false };
        let next = |peer, it: &mut Message| context.collect(peer, id.to_bits(), it);
        self.operations.collect(id, place, next)
            || place.is_some() && self.read_collected(id, place)
    }

    /// An answer has come to its place that is to be read.
    #[cold]
    fn read_collected(&mut self, id: OperationId, place: &mut Option<Outcome>) -> bool {
        self.is_at_rest = false;
        self.operations.read_collected(id, place)
    }

    /// Posts a call that has begun: its request, which may wait, and the receive of its answer.
    ///
    /// # Errors
    /// Its request was refused: the call is forgotten, and what it lends the last that is deferred.
    #[inline(never)]
    pub fn post_call(
        &mut self,
        id: OperationId,
        to: Peer,
        two_way: bool,
        message: Message,
    ) -> Result<(), Failure> {
        let Some(context) = &mut self.context else {
            self.deferred.extend(self.operations.forget(id));
            return Err(closed(self.broken.as_ref()).into());
        };
        let owner = Owner::Call(id, Half::Send);
        let token = if two_way { owner.quiet_token() } else { owner.token() };
        let send = Op::SendUnexpected { to, message };
        match self.backlog.post(context.as_mut(), token, send) {
            Posted::Accepted(op) => self.operations.handle_posted(id, Half::Send, op),
            Posted::Waits(number) => self.operations.handle_waits(id, number),
            Posted::Refused(_, error) => {
                self.deferred.extend(self.operations.forget(id));
                return Err(Failure::of_transport(error, Started::No));
            }
        }
        if two_way {
            // Before the next round, in which its answer may come.
            let receive = Op::RecvExpected { from: to, tag: id.to_bits() };
            match context.post(Owner::Call(id, Half::Receive).token(), receive) {
                Ok(op) => self.operations.handle_posted(id, Half::Receive, op),
                Err(rejected) => {
                    self.operations.handle_refused(
                        id,
                        Failure::of_transport(rejected.error, Started::Unknown),
                    );
                }
            }
        }
        Ok(())
    }

    /// Does what the calls ask for.
    #[inline]
    pub fn run_effects(&mut self) {
        while let Some(effect) = self.operations.poll_effect() {
            match effect {
                Effect::CancelOp(op) => {
                    if let Some(context) = &mut self.context {
                        context.cancel(op);
                    }
                }
                Effect::Tell { peer, what, id } => self.tell(peer, what, id.to_bits()),
                Effect::Defer(action) => self.deferred.push(action),
                Effect::DropRequest { peer, number } => self.backlog.drop_request(peer, number),
            }
        }
    }

    /// Something that the transport reports, the `at`-th of its round, other than an answer that has found its taker.
    /// Requests to be run are added to `requests`; they are of this round.
    #[inline(always)]
    pub fn handle_completion(
        &mut self,
        completion: &mut Completion,
        at: usize,
        requests: &mut Vec<Ticket>,
    ) {
        match completion {
            Completion::Done(Done { id: op, token, result, returned }) => match Owner::of(*token) {
                Owner::Call(id, half) => self.operations.handle_done(id, half, result, returned),
                Owner::Transfer(id) => self.handle_transfer_done((id, *op), result, returned),
                Owner::Nobody => {}
            },
            Completion::Unexpected { from, message } => {
                self.handle_arrival(*from, message, at, requests);
            }
            other => self.handle_rare(other, requests),
        }
    }

    /// Takes a plain request straight to its place, where it is the next thing that the transport has of an origin whose requests come
    /// one by one. What turns out to be another message is among what is `done`, as if a round had brought it.
    #[inline(always)]
    pub fn take_request(
        &mut self,
        place: &mut Message,
        done: &mut Vec<Completion>,
        requests: &mut Vec<Ticket>,
    ) -> Option<Ticket> {
        let from = self.only_origin;
        if from == NOBODY || !self.serves.is_at_ease() {
            return None;
        }
        if !self.context.as_mut()?.take_request(from, place) {
            return None;
        }
        if let Some((header, payload)) = self.serves.handle_plain(place.as_slice()) {
            return Some(Ticket { from, at: usize::MAX, header, payload });
        }
        let mut message = std::mem::replace(place, Message::inline(0));
        self.handle_arrival(from, &mut message, done.len(), requests);
        done.push(Completion::Unexpected { from, message });
        None
    }

    /// An unexpected message of a round's.
    #[inline]
    fn handle_arrival(
        &mut self,
        from: Peer,
        message: &mut Message,
        at: usize,
        requests: &mut Vec<Ticket>,
    ) {
        match self.serves.handle_message(from, message.as_slice()) {
            Arrival::Run { header, payload } => {
                self.only_origin = if requests.is_empty() { from } else { NOBODY };
                requests.push(Ticket { from, at, header, payload });
            }
            Arrival::Hold => {
                let message = std::mem::replace(message, Message::inline(0));
                self.serves.hold(from, message, self.now);
            }
            refusal => self.handle_refusal(from, refusal),
        }
    }

    /// Takes up requests that have come in an earlier round, and for which there is room now: before the transport's progress,
    /// so that what it brings does not overtake them.
    #[cold]
    pub fn take_held(&mut self, done: &mut Vec<Completion>, requests: &mut Vec<Ticket>) {
        while let Some((from, message, arrival)) = self.serves.take_held(self.now) {
            if let Arrival::Run { header, payload } = arrival {
                requests.push(Ticket { from, at: done.len(), header, payload });
                done.push(Completion::Unexpected { from, message });
            } else {
                self.handle_refusal(from, arrival);
            }
        }
    }

    #[cold]
    fn handle_rare(&mut self, completion: &Completion, requests: &mut Vec<Ticket>) {
        match completion {
            Completion::Control { from, message } => self.handle_control(requests, *from, message),
            Completion::Room { peer } => self.handle_room(*peer),
            Completion::HungUp { peer, reason } => self.handle_hung_up(requests, *peer, reason),
            Completion::Gone { peer, .. } => {
                self.addresses.remove(peer);
                self.serves.handle_gone(*peer, arrived_of(requests, *peer));
            }
            // The enumeration may grow; what was never asked for concerns nobody here.
            _ => {}
        }
    }

    #[cold]
    fn handle_refusal(&mut self, from: Peer, arrival: Arrival) {
        match arrival {
            Arrival::Refuse { id, status, text } => {
                if status == Status::Draining {
                    self.tell_newcomer(from);
                }
                // Not in service: it goes out beside the answers of those that are.
                let message = status_message(id, status, bounded_text(&text), false);
                self.refuse(from, id, message);
            }
            Arrival::Disconnect(sentence) => self.disconnect(from, &sentence),
            Arrival::DropBulk { id } => self.tell(from, Kind::ArgumentsTaken, id),
            Arrival::Run { .. } | Arrival::Hold | Arrival::Drop => {}
        }
    }

    #[cold]
    fn handle_control(&mut self, requests: &[Ticket], from: Peer, message: &Message) {
        let message = message.as_slice();
        let (Header { kind, id, .. }, payload) = match Header::decode(message) {
            Ok(decoded) => decoded,
            Err(malformed) => return self.disconnect(from, &malformed.to_string()),
        };
        let Self { operations, serves, kept, deferred, .. } = self;
        match kind {
            Kind::Cancel => {
                let has_arrived = arrived_of(requests, from).any(|other| other == id);
                serves.handle_cancel(from, id, has_arrived, deferred);
                kept.results.free((from, id), deferred);
            }
            Kind::ResultTaken => kept.results.free((from, id), deferred),
            Kind::ArgumentsTaken => kept.arguments.free((from, id), deferred),
            Kind::Drained => operations.handle_peer_drained(from),
            Kind::Fault => {
                let text = String::from_utf8_lossy(&message[payload..]);
                let text: String = text.chars().take(FAULT_CHARS_MAX).collect();
                tracing::warn!(peer = ?from, "a peer closes the connection: {text}");
                operations.handle_fault(from, &text);
            }
            Kind::Request | Kind::OneWay | Kind::Answer => {
                self.disconnect(from, "a request or answer came as a control message");
            }
        }
    }

    /// The peer waits for nothing any more, and takes nothing: its handlers are told, requests of this round that it wants
    /// answered are dropped, and what waits for it ends.
    #[cold]
    fn handle_hung_up(&mut self, requests: &mut Vec<Ticket>, peer: Peer, reason: &GoneReason) {
        let address = self.addresses.get(&peer).map(ToString::to_string);
        tracing::debug!(?peer, address, %reason, "a peer has hung up");
        let Self { serves, deferred, .. } = self;
        requests.retain(|ticket| {
            let is_dropped = ticket.from == peer && ticket.header.kind == Kind::Request;
            if is_dropped {
                serves.end_in_round(peer, ticket.header.id);
            }
            !is_dropped
        });
        serves.handle_hung_up(peer, arrived_of(requests, peer), deferred);
        let why = TransferError::PeerGone { reason: reason.clone() };
        self.operations.stop_transfers_of(peer, &why, self.now);
        self.kept.free_all_of(Some(peer), &mut self.deferred);
        self.operations.forget_peer(peer);
        self.told.remove(&peer);
        self.drop_backlog(peer, reason);
    }

    /// What waits for a peer that has hung up never left.
    fn drop_backlog(&mut self, peer: Peer, reason: &GoneReason) {
        if self.backlog.is_empty() {
            return;
        }
        for (token, _) in self.backlog.remove(peer) {
            if let Owner::Call(id, _) = Owner::of(token) {
                let (reason, started) = (reason.clone(), Started::No);
                self.operations.handle_refused(id, Failure::PeerGone { reason, started });
            }
        }
        self.serves.handle_change(peer);
    }

    /// The transport has room at a peer: hands on what waits for that.
    fn handle_room(&mut self, peer: Peer) {
        self.run_effects(); // Requests of calls that have settled go nowhere any more.
        let Some(context) = &mut self.context else { return };
        for is_request in [false, true] {
            let (which, now) = ((peer, is_request), self.now);
            while let Some((owner, posted)) =
                self.backlog.hand_on(context.as_mut(), which, now, &self.operations)
            {
                if owner == Owner::Nobody {
                    self.serves.handle_change(peer);
                }
                match (posted, owner) {
                    (Posted::Accepted(op), Owner::Call(id, half)) => {
                        self.operations.handle_posted(id, half, op);
                    }
                    (Posted::Refused(_, error), Owner::Call(id, _)) => {
                        self.operations
                            .handle_refused(id, Failure::of_transport(error, Started::No));
                    }
                    (Posted::Refused(op, error), Owner::Nobody) => {
                        handle_untaken(&mut self.kept, &mut self.deferred, &op, &error);
                    }
                    (Posted::Accepted(_), Owner::Nobody)
                    | (_, Owner::Transfer(_))
                    | (Posted::Waits(_), _) => {}
                }
            }
        }
        self.operations.hand_on_transfers(peer, context.as_mut());
    }

    /// The clock was read.
    #[inline]
    pub fn handle_clock(&mut self, now: Instant) {
        self.now = now;
    }

    /// In a round in which the clock was read, after its completions: what is over by it ends, unless its answer has come.
    pub fn handle_timeout(&mut self) {
        let context = &mut self.context;
        let was_connected =
            |peer| context.as_mut().is_none_or(|context| context.was_connected(peer));
        self.operations.handle_timeout(self.now, was_connected);
        self.kept.arguments.handle_timeout(self.now, &mut self.deferred);
        self.budget.handle_timeout(self.now, &mut self.deferred);
        if let Some(stalled) = self.serves.handle_timeout(self.now) {
            self.log_stalled(&stalled);
        }
    }

    #[cold]
    fn log_stalled(&self, stalled: &Stalled) {
        let address = self.addresses.get(&stalled.origin).map(ToString::to_string);
        let (in_service, calls) = (self.serves.in_service(), self.operations.calls());
        tracing::warn!(origin = ?stalled.origin, address, in_service, calls, "{stalled}");
    }

    /// Whether a round has more to do than its completions.
    #[inline]
    #[must_use]
    pub fn has_chores(&self) -> bool {
        self.operations.has_chores() | self.serves.has_chores()
    }

    /// Whether the next round may be left out for an answer or a request.
    #[inline]
    #[must_use]
    pub fn may_rest(&self) -> bool {
        self.is_at_rest & !self.serves.has_chores()
    }

    /// A round is over: it may have left something to do.
    #[inline]
    pub fn end_round(&mut self) {
        let has_work = self.operations.has_moves() | self.serves.has_held() | self.has_chores();
        self.is_at_rest = !has_work & self.deferred.is_empty();
    }

    /// Bytes of messages that wait for room in the transport.
    #[must_use]
    pub fn backlog_bytes(&self) -> u64 {
        self.backlog.bytes()
    }

    /// What few rounds have to do.
    #[cold]
    pub fn do_chores(&mut self) {
        self.operations.handle_round();
        self.run_effects();
        self.change_admission();
        self.tell_waiting();
    }

    fn change_admission(&mut self) {
        while let Some(peer) = self.serves.poll_repeating() {
            self.disconnect(peer, "it has used the id of a request again that is still in service");
        }
        let Self { context: Some(context), backlog, serves, .. } = self else { return };
        while let Some(admission) = serves.poll_admission(|peer| !backlog.has_answers(peer)) {
            match admission {
                Admission::Of(open) => context.set_admission(open),
                Admission::OfPeer(peer, open) => context.set_admission_of(peer, open),
            }
        }
    }

    /// Calls, requests, queued operations: whether anybody is still owed something.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.operations.any_open() || self.serves.in_service() > 0 || !self.backlog.is_empty()
    }

    /// Whether to sleep, and until when.
    pub fn may_sleep(&mut self) -> Option<Option<Instant>> {
        if self.operations.needs_round() || self.operations.has_moves() {
            return None;
        }
        self.run_effects();
        self.tell_waiting();
        self.change_admission();
        if self.serves.can_take_held() {
            return None;
        }
        let has_news = self.operations.take_news();
        if has_news || !self.deferred.is_empty() || self.operations.needs_round() {
            return None;
        }
        let Some(context) = &mut self.context else { return Some(None) };
        if !context.may_sleep() {
            return None;
        }
        let of_context = context.next_deadline();
        let (of_calls, of_kept) =
            (self.operations.next_deadline(), self.kept.arguments.next_deadline());
        let (of_budget, notice) = (self.budget.next_deadline(), self.serves.next_notice(self.now));
        let deadlines = [of_calls, of_kept, of_budget, notice, of_context];
        Some(deadlines.into_iter().flatten().min())
    }

    /// Ends everything; what it gives is to be run without the lock.
    #[must_use = "it is to be run where it may do anything"]
    pub fn close(&mut self) -> Deferred {
        self.part();
        self.serves.close(&mut self.deferred);
        self.context = None;
        let why = closed(self.broken.as_ref());
        self.operations.close(&why.clone().into(), &why.into());
        self.run_effects();
        self.kept.free_all_of(None, &mut self.deferred);
        self.addresses.clear();
        self.backlog.clear();
        std::mem::take(&mut self.deferred)
    }

    /// The transport is of no use any more: the same, for this reason.
    pub fn fail(&mut self, error: &hg_na::Error) {
        self.broken = Some(error.clone());
        tracing::error!(%error, "the transport has failed; the engine is closed");
        self.deferred = self.close();
    }
}

/// The requests of a peer that have come in this round, by their ids: their handlers are still to be run.
fn arrived_of(requests: &[Ticket], origin: Peer) -> impl Iterator<Item = u64> {
    requests.iter().filter(move |it| it.from == origin).map(|it| it.header.id)
}

/// What is told when there is no transport any more.
fn closed(broken: Option<&hg_na::Error>) -> hg_na::Error {
    broken.cloned().unwrap_or(hg_na::Error::Closed)
}
