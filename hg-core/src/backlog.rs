//! What waits because the transport has no room for it: one queue of requests and one of answers and control messages
//! for each peer, in order, until the transport tells of room ([`hg_na::Completion::Room`]).
//!
//! Nothing of one peer's is in the way of another's. Requests are bounded in bytes, by fair shares ([`Shares`]): one that
//! is over is refused. Each counts as many bytes at least as there are for each call that can be under way, so that short calls
//! that wait for one peer leave places to those of others. Answers are bounded in the same way, apart from requests: one that is
//! over is refused, unless it is a short one. Short ones, and control messages, are never refused; nothing more is taken from a
//! peer instead for which any wait ([`crate::serve`]), so that it asks for nothing more while it does not take what it has asked
//! for.

use std::{collections::VecDeque, time::Instant};

use hg_na::{Context, Error, Op, OpId, Peer, Token};
use rustc_hash::FxHashMap;

use crate::{
    header::Header,
    operations::{Operations, Owner},
    shares::Shares,
};

/// Bytes of messages that wait for room in the transport, for all peers of a context together; the default.
pub const BACKLOG_BYTES_MAX: u64 = 1 << 30;

/// An answer of up to so many bytes is never refused: a refusal is no longer. As many can wait as requests can be in service.
pub const SHORT_ANSWER: u64 = 1024;

/// What waits.
#[derive(Debug)]
pub struct Backlog {
    peers: FxHashMap<Peer, Waiting>,
    /// Of requests, by the peer that they wait for.
    requests: Shares<Peer>,
    /// Of answers and control messages.
    answers: Shares<Peer>,
    bytes_max: u64,
    /// What the shortest request counts.
    request_min: u64,
}

/// What waits for one peer.
#[derive(Debug, Default)]
struct Waiting {
    /// Answers and control messages: they never wait behind requests.
    answers: VecDeque<(Token, Op)>,
    requests: VecDeque<(Token, Op)>,
    /// Calls that have settled meanwhile, of whose requests some are here. Once they are half of them those are dropped: what
    /// waits stays within twice of what is under way, and each is looked at a few times.
    settled: usize,
}

/// What became of something that was posted, or has waited.
#[derive(Debug)]
pub enum Posted {
    /// The transport has it.
    Accepted(OpId),
    /// It waits.
    Waits,
    /// The transport will never take it.
    Refused(Op, Error),
}

/// What has left the backlog.
#[derive(Debug)]
pub struct Left {
    /// Whose it is; nobody's: an answer or a control message.
    pub owner: Owner,
    /// What became of it.
    pub posted: Posted,
}

impl Backlog {
    /// Nothing waits; at most so many bytes of requests may, and as many of answers, where so many calls can be under way.
    #[must_use]
    pub fn new(bytes_max: u64, calls_max: usize) -> Self {
        let request_min = bytes_max / (calls_max as u64).max(1);
        let [requests, answers] = [(); 2].map(|()| Shares::new(bytes_max));
        Self { peers: FxHashMap::default(), requests, answers, bytes_max, request_min }
    }

    /// Whether nothing waits.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// What the messages that wait count, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.requests.total() + self.answers.total()
    }

    /// Whether answers or control messages wait for a peer.
    #[must_use]
    pub fn has_answers(&self, peer: Peer) -> bool {
        self.peers.get(&peer).is_some_and(|waiting| !waiting.answers.is_empty())
    }

    /// Whether answers or control messages wait for anybody.
    #[must_use]
    pub fn has_any_answers(&self) -> bool {
        self.peers.values().any(|waiting| !waiting.answers.is_empty())
    }

    /// Whether requests wait for a peer.
    #[must_use]
    pub fn has_requests(&self, peer: Peer) -> bool {
        self.peers.get(&peer).is_some_and(|waiting| !waiting.requests.is_empty())
    }

    /// Hands a message to the transport, or lets it wait behind those of its kind. A request, or an answer of more than
    /// [`SHORT_ANSWER`] bytes, that is over its peer's share of bytes is refused with [`Error::Limit`].
    pub fn post(
        &mut self,
        context: &mut dyn Context,
        token: Token,
        op: Op,
        calls: &Operations,
    ) -> Posted {
        let waits = |waiting: &mut Waiting| !waiting.queue_of(&op).is_empty();
        if !self.is_empty() && self.peers.get_mut(&op.peer()).is_some_and(waits) {
            return self.push(token, op, calls);
        }
        match context.post(token, op) {
            Ok(id) => Posted::Accepted(id),
            Err(rejected) if matches!(rejected.error, Error::Again) => {
                self.push(token, rejected.op, calls)
            }
            Err(rejected) => Posted::Refused(rejected.op, rejected.error),
        }
    }

    fn push(&mut self, token: Token, mut op: Op, calls: &Operations) -> Posted {
        let (peer, len) = (op.peer(), cost_of(&op, self.request_min));
        let is_request = matches!(op, Op::SendUnexpected { .. });
        let shares = if is_request { &mut self.requests } else { &mut self.answers };
        if is_request
            && !shares.admits(peer, len)
            && let Some(waiting) = self.peers.get_mut(&peer)
            && waiting.settled > 0
        {
            shares.give(peer, waiting.drop_settled(calls, self.request_min));
        }
        if (is_request || len > SHORT_ANSWER) && !shares.admits(peer, len) {
            self.tidy(peer);
            return Posted::Refused(op, limit(is_request, self.bytes_max));
        }
        shares.take(peer, len);
        if let Op::SendUnexpected { message, .. }
        | Op::SendControl { message, .. }
        | Op::SendExpected { message, .. } = &mut op
        {
            // What is in the transport's queue before it may wait for the memory that it was made in.
            message.make_own();
        }
        self.peers.entry(peer).or_default().queue_of(&op).push_back((token, op));
        Posted::Waits
    }

    /// Hands on what waits for a peer, as far as there is room. Requests whose calls have settled meanwhile are dropped, and
    /// others say how much time is left `now`. Tells of each one that has left what became of it.
    pub fn hand_on(
        &mut self,
        context: &mut dyn Context,
        (peer, now): (Peer, Instant),
        calls: &mut Operations,
        mut left: impl FnMut(&mut Operations, Left),
    ) {
        let Some(waiting) = self.peers.get_mut(&peer) else { return };
        let Waiting { answers, requests, settled } = waiting;
        let queues = [(answers, &mut self.answers), (requests, &mut self.requests)];
        for (queue, shares) in queues {
            while let Some((token, mut op)) = queue.pop_front() {
                let (owner, len) = (Owner::of(token), cost_of(&op, self.request_min));
                if is_wanted(owner, calls) {
                    say_remaining(&mut op, owner, now, calls);
                    let posted = match context.post(token, op) {
                        Ok(id) => Posted::Accepted(id),
                        Err(rejected) if matches!(rejected.error, Error::Again) => {
                            queue.push_front((token, rejected.op));
                            break;
                        }
                        Err(rejected) => Posted::Refused(rejected.op, rejected.error),
                    };
                    left(calls, Left { owner, posted });
                } else {
                    *settled = settled.saturating_sub(1);
                }
                shares.give(peer, len);
            }
        }
        self.tidy(peer);
    }

    /// A call has settled whose request the transport never took: it may be here.
    pub fn handle_settled(&mut self, peer: Peer, calls: &Operations) {
        let Some(waiting) = self.peers.get_mut(&peer) else { return };
        waiting.settled += 1;
        if 2 * waiting.settled >= waiting.requests.len() {
            self.requests.give(peer, waiting.drop_settled(calls, self.request_min));
            self.tidy(peer);
        }
    }

    /// Something waits no more, and perhaps nothing does.
    fn tidy(&mut self, peer: Peer) {
        if self.peers.get(&peer).is_some_and(Waiting::is_empty) {
            self.peers.remove(&peer);
        }
    }

    /// The peer has hung up: what waits for it, which never left; answers first.
    pub fn remove(&mut self, peer: Peer) -> impl Iterator<Item = (Token, Op)> + use<> {
        let Waiting { answers, requests, .. } = self.peers.remove(&peer).unwrap_or_default();
        for shares in [&mut self.answers, &mut self.requests] {
            shares.give(peer, shares.of(peer));
        }
        answers.into_iter().chain(requests)
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.peers.clear();
        self.answers = Shares::new(self.bytes_max);
        self.requests = Shares::new(self.bytes_max);
    }
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.requests.is_empty()
    }

    fn queue_of(&mut self, op: &Op) -> &mut VecDeque<(Token, Op)> {
        if matches!(op, Op::SendUnexpected { .. }) { &mut self.requests } else { &mut self.answers }
    }

    /// Drops requests of calls that have settled; gives what they count.
    fn drop_settled(&mut self, calls: &Operations, request_min: u64) -> u64 {
        let mut freed = 0;
        self.requests.retain(|(token, op)| {
            let is_wanted = is_wanted(Owner::of(*token), calls);
            freed += if is_wanted { 0 } else { cost_of(op, request_min) };
            is_wanted
        });
        self.settled = 0;
        freed
    }
}

fn is_wanted(owner: Owner, calls: &Operations) -> bool {
    match owner {
        Owner::Call(id, _) => !calls.is_settled(id),
        Owner::Transfer(_) | Owner::Nobody => true,
    }
}

/// The time that a request has waited is not its target's.
fn say_remaining(op: &mut Op, owner: Owner, now: Instant, calls: &Operations) {
    if let (Op::SendUnexpected { message, .. }, Owner::Call(id, _)) = (op, owner)
        && let Some(deadline) = calls.deadline(id)
    {
        let left = deadline.saturating_duration_since(now);
        Header::set_remaining(message.as_mut_slice(), left);
    }
}

/// What a request or an answer is refused with that is over its peer's share.
fn limit(is_request: bool, bytes_max: u64) -> Error {
    let what = if is_request {
        "bytes of calls that wait for peers, of which one has a share"
    } else {
        "bytes of answers that wait for peers, of which one has a share"
    };
    Error::Limit {
        what,
        limit: bytes_max,
        remedy: "await calls and one-way calls as they leave, or raise `Builder::backlog_bytes_max` and `calls_max`: short ones that wait for one peer are about half of `calls_max`",
    }
}

/// What a message counts that waits, in bytes.
fn cost_of(op: &Op, request_min: u64) -> u64 {
    match op {
        Op::SendUnexpected { message, .. } => (message.len() as u64).max(request_min),
        Op::SendControl { message, .. } | Op::SendExpected { message, .. } => message.len() as u64,
        _ => 0,
    }
}
