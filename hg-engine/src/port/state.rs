//! What anybody may touch for a moment: the transport's context, calls and requests.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use hg_core::{
    call::{CallId, Calls, Effect, Half, Owner},
    error::{Failure, Started},
    header::{Header, Kind, PREFIX_LEN},
    serve::Serves,
};
use hg_na::{
    Address, Context, Exchange, Exchanged, GoneReason, Message, Op, Peer, Rejected, Token,
};
use rustc_hash::FxHashMap;

use super::{Answered, Shared, Work, transfers::Transfers};
use crate::{handler::no_message, large::Kept, late::Late, role::Followers};

/// Operations that wait because the transport's queue to their peer is full, in order.
type Backlog = FxHashMap<Peer, Waiting>;

/// Those of one peer.
#[derive(Default)]
struct Waiting {
    queue: VecDeque<(Token, Op)>,
    /// At this length those whose calls have settled meanwhile are dropped: what waits stays within twice of what
    /// is under way, and each is looked at a few times.
    look_at: usize,
}

impl Waiting {
    /// Those of calls that have settled go before there are too many of them.
    fn push_request(&mut self, token: Token, op: Op, calls: &Calls) {
        self.queue.push_back((token, op));
        if self.queue.len() > self.look_at.max(LOOK_MIN) {
            self.queue.retain(|(token, _)| match Owner::of(*token) {
                Owner::Call(id, _) => !calls.is_settled(id),
                Owner::Nobody => true,
            });
            self.look_at = 2 * self.queue.len();
        }
    }
}

pub(crate) struct State {
    /// `None` once the engine is closed or the transport is broken.
    pub(super) context: Option<Box<dyn Context>>,
    /// The transport is made of several, and finds its parts of descriptors by itself.
    pub(super) routes: bool,
    /// Why the transport is broken, where it is.
    broken: Option<hg_na::Error>,
    pub(crate) calls: Calls,
    pub(crate) serves: Serves,
    pub(crate) transfers: Transfers,
    /// What peers have not pulled yet.
    pub(crate) kept: Kept,
    /// Of peers that were looked up, for people to read.
    pub(crate) addresses: FxHashMap<Peer, Address>,
    /// Requests that wait for credits, one queue a peer.
    requests: Backlog,
    /// Answers and control messages that do: they never wait behind requests.
    answers: Backlog,
    pub(super) admission_open: bool,
    /// The role, while nobody has it; see `role.rs`.
    pub(crate) work: Option<Box<Work>>,
    /// Threads and foreign loops that wait for what the holder finds, or for the role.
    pub(crate) followers: Followers,
    /// Longest last sentence in bytes: what a control message holds beside its header.
    fault_text_max: usize,
    /// Wakers of calls that have settled, and what else may not be done under the lock.
    pub(super) late: Late,
}

impl State {
    pub(super) fn new(context: Box<dyn Context>, work: Box<Work>, shared: &Shared) -> Self {
        let settings = &shared.settings;
        Self {
            routes: context.address().scheme() == hg_na::UID,
            context: Some(context),
            broken: None,
            calls: Calls::new(settings.calls_max),
            serves: Serves::new(settings.in_service_max, settings.reject_above),
            transfers: Transfers::default(),
            kept: Kept::new(Arc::clone(&shared.platform)),
            addresses: FxHashMap::default(),
            requests: Backlog::default(),
            answers: Backlog::default(),
            admission_open: true,
            fault_text_max: shared.caps.max_control.saturating_sub(PREFIX_LEN),
            work: Some(work),
            followers: Followers::default(),
            late: Late::default(),
        }
    }

    /// Whether there is a transport still.
    pub(crate) fn is_open(&self) -> bool {
        self.context.is_some()
    }

    /// Posts the answers that a round left over.
    #[inline]
    pub(crate) fn hand_in(&mut self, work: &mut Work) {
        // Last in, first out: answers have no order among each other.
        while let Some(Answered { origin, id, message }) = work.answers.pop() {
            self.post_answer(origin, id, message);
        }
    }

    /// The transport, while the engine is open.
    ///
    /// # Errors
    /// [`Failure::Closed`], or what has broken it.
    pub(crate) fn context(&mut self) -> Result<&mut dyn Context, Failure> {
        match &mut self.context {
            Some(context) => Ok(context.as_mut()),
            None => Err(closed(self.broken.as_ref())),
        }
    }

    /// Hands both halves of a two-way call to the transport in one step, where it can; otherwise they are to be
    /// posted ([`State::post_halves`]).
    #[inline(always)]
    pub(crate) fn exchange(
        &mut self,
        id: CallId,
        to: Peer,
        message: &Message,
    ) -> Option<Exchanged> {
        if !self.requests.is_empty() {
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

    /// Posts the halves of a call one after the other; a refusal settles it.
    #[inline(never)]
    pub(crate) fn post_halves(&mut self, id: CallId, to: Peer, two_way: bool, message: Message) {
        let Some(context) = &mut self.context else {
            let failure = closed(self.broken.as_ref());
            return self.calls.handle_refused(id, failure);
        };
        let send = Op::SendUnexpected { to, message };
        let owner = Owner::Call(id, Half::Send);
        let token = if two_way { owner.quiet_token() } else { owner.token() };
        if !self.requests.is_empty() && self.requests.contains_key(&to) {
            self.requests.entry(to).or_default().push_request(token, send, &self.calls);
        } else {
            match context.post(token, send) {
                Ok(op) => self.calls.handle_posted(id, Half::Send, op),
                Err(rejected) if matches!(rejected.error, hg_na::Error::Again) => {
                    let waiting = self.requests.entry(to).or_default();
                    waiting.push_request(token, rejected.op, &self.calls);
                }
                Err(rejected) => {
                    return self.calls.handle_refused(id, not_made(rejected.error, Started::No));
                }
            }
        }
        if two_way {
            // After the request, which is on its way meanwhile: a receive posted late still matches.
            let receive = Op::RecvExpected { from: to, tag: id.to_bits() };
            match context.post(Owner::Call(id, Half::Receive).token(), receive) {
                Ok(op) => self.calls.handle_posted(id, Half::Receive, op),
                Err(rejected) => {
                    self.calls.handle_refused(id, not_made(rejected.error, Started::Unknown));
                }
            }
        }
    }

    /// Hands an answer to the transport; what is left in its place is only to be overwritten.
    #[inline]
    pub(super) fn reply(&mut self, origin: Peer, id: u64, answer: &mut Message) {
        let token = Owner::Nobody.quiet_token();
        if self.answers.is_empty()
            && let Some(context) = &mut self.context
            && context.reply(origin, id, token, answer).is_some()
        {
            return;
        }
        self.reply_otherwise(origin, id, answer);
    }

    #[inline(never)]
    fn reply_otherwise(&mut self, origin: Peer, id: u64, answer: &mut Message) {
        let message = std::mem::replace(answer, no_message());
        self.post_or_queue(Op::SendExpected { to: origin, tag: id, message });
    }

    /// Hands an answer to the transport; the request is out of service.
    #[inline]
    pub(crate) fn post_answer(&mut self, origin: Peer, id: u64, message: Option<Message>) {
        if let Some(mut message) = message {
            self.reply(origin, id, &mut message);
        }
        self.serves.handle_answered(origin, id);
    }

    /// Answers a request that was never in service.
    pub(super) fn post_refusal(&mut self, origin: Peer, id: u64, message: Message) {
        self.post_or_queue(Op::SendExpected { to: origin, tag: id, message });
    }

    /// The peer is gone: what waits for it never left.
    pub(super) fn drop_backlog(&mut self, peer: Peer, failure: &Failure) {
        self.answers.remove(&peer);
        let requests = self.requests.remove(&peer).unwrap_or_default();
        for (token, _) in requests.queue {
            if let Owner::Call(id, _) = Owner::of(token) {
                self.calls.handle_refused(id, failure.clone());
            }
        }
    }

    /// Posts an answer or control message; waits in the backlog when there is no room.
    #[inline]
    fn post_or_queue(&mut self, op: Op) {
        let peer = op.peer();
        let Some(context) = &mut self.context else { return };
        if !self.answers.is_empty() && self.answers.contains_key(&peer) {
            let waiting = self.answers.entry(peer).or_default();
            return waiting.queue.push_back((Owner::Nobody.quiet_token(), op));
        }
        match context.post(Owner::Nobody.quiet_token(), op) {
            Ok(_) => {}
            Err(rejected) if matches!(rejected.error, hg_na::Error::Again) => {
                let waiting = self.answers.entry(peer).or_default();
                waiting.queue.push_back((Owner::Nobody.quiet_token(), rejected.op));
            }
            Err(rejected) => self.handle_untaken(&rejected),
        }
    }

    /// The transport will never take this answer or control message.
    #[cold]
    fn handle_untaken(&mut self, rejected: &Rejected) {
        tracing::debug!(error = %rejected.error, "an answer found no taker");
        if let Op::SendExpected { to, tag, .. } = rejected.op {
            self.kept.free_result(to, tag);
        }
    }

    /// Answers and control messages that wait for room: they count as in service for admission.
    pub(super) fn answers_waiting(&self) -> usize {
        if self.answers.is_empty() {
            0
        } else {
            self.answers.values().map(|waiting| waiting.queue.len()).sum()
        }
    }

    fn control(&mut self, peer: Peer, header: &Header, text: &[u8]) {
        let len = header.encoded_len();
        let mut message = Message::from(vec![0; len + text.len()]);
        message.as_mut_slice()[len..].copy_from_slice(text);
        header.encode(message.as_mut_slice());
        self.post_or_queue(Op::SendControl { to: peer, message });
    }

    /// Tells a peer something about a call, in a control message without a payload.
    #[cold]
    pub(crate) fn tell(&mut self, peer: Peer, kind: Kind, id: u64) {
        self.control(peer, &Header::control(kind, id), &[]);
    }

    /// Says a last sentence to a peer and closes the connection.
    pub(super) fn disconnect(&mut self, peer: Peer, sentence: &str) {
        tracing::warn!(?peer, "disconnecting a peer: {sentence}");
        let header = Header::control(Kind::Fault, 0);
        let mut end = sentence.len().min(self.fault_text_max);
        while !sentence.is_char_boundary(end) {
            end -= 1;
        }
        self.control(peer, &header, &sentence.as_bytes()[..end]);
        if let Some(context) = &mut self.context {
            context.forget(peer);
        }
        self.addresses.remove(&peer);
    }

    /// Does what the calls ask for.
    #[inline]
    pub(super) fn run_effects(&mut self) {
        while let Some(effect) = self.calls.poll_effect() {
            match effect {
                Effect::CancelOp(op) => {
                    if let Some(context) = &mut self.context {
                        context.cancel(op);
                    }
                }
                Effect::TellCancelled { peer, id } => {
                    self.control(peer, &Header::control(Kind::Cancel, id.to_bits()), &[]);
                }
                Effect::Wake(waker) => self.late.wake(waker),
            }
        }
    }

    /// Tries the backlog again; says whether anything left it. Requests whose calls have settled meanwhile
    /// are dropped.
    pub(super) fn retry_backlog(&mut self) -> bool {
        let mut moved = false;
        let mut answers = std::mem::take(&mut self.answers);
        answers.retain(|_, waiting| {
            moved |= self.retry(&mut waiting.queue);
            !waiting.queue.is_empty()
        });
        self.answers = answers;
        let mut requests = std::mem::take(&mut self.requests);
        requests.retain(|_, waiting| {
            moved |= self.retry(&mut waiting.queue);
            !waiting.queue.is_empty()
        });
        self.requests = requests;
        moved
    }

    fn retry(&mut self, queue: &mut VecDeque<(Token, Op)>) -> bool {
        let before = queue.len();
        while let Some((token, op)) = queue.pop_front() {
            let Some(context) = &mut self.context else { return true };
            let owner = Owner::of(token);
            if let Owner::Call(id, _) = owner
                && self.calls.is_settled(id)
            {
                continue;
            }
            match (context.post(token, op), owner) {
                (Ok(op), Owner::Call(id, half)) => self.calls.handle_posted(id, half, op),
                (Ok(_), Owner::Nobody) => {}
                (Err(rejected), _) if matches!(rejected.error, hg_na::Error::Again) => {
                    queue.push_front((token, rejected.op));
                    break;
                }
                (Err(rejected), Owner::Call(id, _)) => {
                    self.calls.handle_refused(id, not_made(rejected.error, Started::No));
                }
                (Err(rejected), Owner::Nobody) => self.handle_untaken(&rejected),
            }
        }
        queue.len() != before
    }

    /// Whether a round has more to do than its completions.
    #[inline]
    pub(super) fn has_chores(&self) -> bool {
        self.calls.has_chores() | self.has_backlog() | !self.serves.admits() | !self.admission_open
    }

    #[inline]
    pub(super) fn has_backlog(&self) -> bool {
        !self.requests.is_empty() | !self.answers.is_empty()
    }

    /// Calls, requests, queued operations: whether anybody is still owed something.
    pub(crate) fn is_busy(&self) -> bool {
        !self.calls.is_empty()
            || self.serves.in_service() > 0
            || self.has_backlog()
            || self.transfers.len() > 0
    }

    /// Whether to sleep, and until when.
    pub(super) fn may_sleep(&mut self) -> Option<Option<Instant>> {
        // Room in the transport's queue may have come without a completion: what is sent quietly has none.
        if self.has_backlog() && self.retry_backlog() {
            return None;
        }
        if self.retry_transfers() {
            return None;
        }
        self.run_effects();
        if !self.late.is_empty() {
            return None;
        }
        // Room may have been made outside of a round that reported something: by a post, or a second look.
        if self.has_backlog() && self.retry_backlog() {
            return None;
        }
        let Some(context) = &mut self.context else { return Some(None) };
        if !context.may_sleep() {
            return None;
        }
        let of_transfers = self.transfers.next_deadline();
        let deadlines = [self.calls.next_deadline(), of_transfers, context.next_deadline()];
        Some(deadlines.into_iter().flatten().min())
    }

    /// Ends everything; what it gives is to be run without the lock.
    pub(crate) fn close(&mut self) -> Late {
        self.calls.close(&closed(self.broken.as_ref()));
        self.serves.close(&mut self.late);
        self.run_effects();
        self.context = None;
        self.close_transfers();
        self.kept.free_all();
        self.addresses.clear();
        self.requests.clear();
        self.answers.clear();
        std::mem::take(&mut self.late)
    }

    /// The transport is of no use any more: the same, with the reason in the log.
    pub(super) fn fail(&mut self, error: &hg_na::Error) {
        self.broken = Some(error.clone());
        tracing::error!(%error, "the transport has failed; the engine is closed");
        self.late = self.close();
    }
}

/// What a call is told when there is no transport any more.
#[cold]
fn closed(broken: Option<&hg_na::Error>) -> Failure {
    broken.cloned().map_or(Failure::Closed, Failure::NotMade)
}

#[cold]
fn not_made(error: hg_na::Error, started: Started) -> Failure {
    match error {
        hg_na::Error::PeerGone(reason) => Failure::PeerGone { reason, started },
        hg_na::Error::UnknownPeer => Failure::PeerGone { reason: GoneReason::Ended, started },
        other => Failure::NotMade(other),
    }
}

/// A queue of requests is not looked through before it is longer.
const LOOK_MIN: usize = 256;
