//! What waits because the transport has no room for it: one queue of requests and one of answers and control messages
//! for each peer, in order, until the transport tells of room ([`hg_na::Completion::Room`]). The request of a call that settles
//! meanwhile is taken out by its number.
//!
//! Nothing of one peer's is in the way of another's. Requests are bounded in bytes, by fair shares ([`Shares`]): one that
//! is over is refused. Each counts as many bytes at least as there are for each call that can be under way, so that short calls
//! that wait for one peer leave places to those of others. Answers are bounded in the same way, apart from requests: one that is
//! over is refused, unless it is a short one. Short ones, and control messages, are never refused; nothing more is taken from a
//! peer instead for which any wait ([`crate::serve`]), so that it asks for nothing more while it does not take what it has asked
//! for.

use std::{collections::BTreeMap, time::Instant};

use hg_na::{Context, Error, Op, OpId, Peer, Token};
use rustc_hash::FxHashMap;

use crate::{
    header::Header,
    operations::{Operations, Owner},
    shares::Shares,
};

/// Bytes of messages that wait for room in the transport, for all peers of a context together; the most by default. As many may large
/// arguments of one-way calls have: four times the longest, which so find room beside whatever one other target has.
pub const BACKLOG_BYTES_MAX: u64 = 4 << 30;

/// An answer of up to so many bytes is never refused: a refusal is no longer. As many can wait as requests can be in service.
pub const SHORT_ANSWER: u64 = 1024;

/// What waits.
#[derive(Debug)]
pub struct Backlog {
    /// Answers and control messages: they never wait behind requests.
    answers: Queues,
    requests: Queues,
    bytes_max: u64,
    /// Of the next message that waits.
    next: u64,
}

/// What waits of one kind.
#[derive(Debug)]
struct Queues {
    /// By number, of each peer for which anything waits.
    peers: FxHashMap<Peer, BTreeMap<u64, (Token, Op)>>,
    bytes: Shares<Peer>,
    /// What the shortest message counts.
    least: u64,
}

/// What became of something that was posted, or has waited.
#[derive(Debug)]
pub enum Posted {
    /// The transport has it.
    Accepted(OpId),
    /// It waits, under this number.
    Waits(u64),
    /// The transport will never take it.
    Refused(Op, Error),
}

impl Backlog {
    /// Nothing waits; at most so many bytes of requests may, and as many of answers, where so many calls can be under way.
    #[must_use]
    pub fn new(bytes_max: u64, calls_max: usize) -> Self {
        let least = least(bytes_max, calls_max);
        let [answers, requests] = [0, least].map(|least| Queues::new(bytes_max, least));
        Self { answers, requests, bytes_max, next: 0 }
    }

    /// Whether nothing waits.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.answers.peers.is_empty() && self.requests.peers.is_empty()
    }

    /// What the messages that wait count, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.requests.bytes.total() + self.answers.bytes.total()
    }

    /// Whether answers or control messages wait for a peer.
    #[inline]
    #[must_use]
    pub fn has_answers(&self, peer: Peer) -> bool {
        self.answers.peers.contains_key(&peer)
    }

    /// Whether answers or control messages wait for anybody.
    #[must_use]
    pub fn has_any_answers(&self) -> bool {
        !self.answers.peers.is_empty()
    }

    /// Whether requests wait for a peer.
    #[inline]
    #[must_use]
    pub fn has_requests(&self, peer: Peer) -> bool {
        self.requests.peers.contains_key(&peer)
    }

    /// Hands a message to the transport, or lets it wait behind those of its kind. A request, or an answer of more than
    /// [`SHORT_ANSWER`] bytes, that is over its peer's share of bytes is refused with [`Error::Limit`].
    pub fn post(&mut self, context: &mut dyn Context, token: Token, mut op: Op) -> Posted {
        if !self.queues_of(&op).peers.contains_key(&op.peer()) {
            op = match context.post(token, op) {
                Ok(id) => return Posted::Accepted(id),
                Err(rejected) if matches!(rejected.error, Error::Again) => rejected.op,
                Err(rejected) => return Posted::Refused(rejected.op, rejected.error),
            };
        }
        self.push(token, op)
    }

    fn queues_of(&mut self, op: &Op) -> &mut Queues {
        if is_request(op) { &mut self.requests } else { &mut self.answers }
    }

    #[cold]
    fn push(&mut self, token: Token, mut op: Op) -> Posted {
        let (number, is_request) = (self.next, is_request(&op));
        let queues = self.queues_of(&op);
        let cost = queues.cost_of(&op);
        if (is_request || cost > SHORT_ANSWER) && !queues.bytes.admits(op.peer(), cost) {
            return Posted::Refused(op, limit(is_request, self.bytes_max));
        }
        if let Op::SendUnexpected { message, .. }
        | Op::SendControl { message, .. }
        | Op::SendExpected { message, .. } = &mut op
        {
            // What is in the transport's queue before it may wait for the memory that it was made in.
            message.make_own();
        }
        queues.insert(number, token, op);
        self.next += 1;
        Posted::Waits(number)
    }

    /// Hands on the first request, or the first of the others, that waits for a peer, if there is room; it says how much time is left
    /// `now`. Gives whose it is and what became of it.
    pub fn hand_on(
        &mut self,
        context: &mut dyn Context,
        (peer, is_request): (Peer, bool),
        now: Instant,
        calls: &Operations,
    ) -> Option<(Owner, Posted)> {
        let queues = if is_request { &mut self.requests } else { &mut self.answers };
        let (&first, _) = queues.peers.get(&peer)?.first_key_value()?;
        let (token, mut op) = queues.remove(peer, first)?;
        let owner = Owner::of(token);
        say_remaining(&mut op, owner, now, calls);
        match context.post(token, op) {
            Ok(id) => Some((owner, Posted::Accepted(id))),
            Err(rejected) if matches!(rejected.error, Error::Again) => {
                queues.insert(first, token, rejected.op);
                None
            }
            Err(rejected) => Some((owner, Posted::Refused(rejected.op, rejected.error))),
        }
    }

    /// A call has settled whose request waits under this number.
    pub fn drop_request(&mut self, peer: Peer, number: u64) {
        drop(self.requests.remove(peer, number));
    }

    /// The peer has hung up: what waits for it, which never left; answers first.
    pub fn remove(&mut self, peer: Peer) -> impl Iterator<Item = (Token, Op)> + use<> {
        let [answers, requests] = [&mut self.answers, &mut self.requests].map(|queues| {
            queues.bytes.give(peer, queues.bytes.of(peer));
            queues.peers.remove(&peer).unwrap_or_default()
        });
        answers.into_values().chain(requests.into_values())
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        for queues in [&mut self.answers, &mut self.requests] {
            *queues = Queues::new(self.bytes_max, queues.least);
        }
    }
}

impl Queues {
    fn new(bytes_max: u64, least: u64) -> Self {
        Self { peers: FxHashMap::default(), bytes: Shares::new(bytes_max), least }
    }

    fn insert(&mut self, number: u64, token: Token, op: Op) {
        let peer = op.peer();
        self.bytes.take(peer, self.cost_of(&op));
        self.peers.entry(peer).or_default().insert(number, (token, op));
    }

    fn remove(&mut self, peer: Peer, number: u64) -> Option<(Token, Op)> {
        let waiting = self.peers.get_mut(&peer)?;
        let removed = waiting.remove(&number)?;
        if waiting.is_empty() {
            self.peers.remove(&peer);
        }
        self.bytes.give(peer, self.cost_of(&removed.1));
        Some(removed)
    }

    /// What a message counts that waits, in bytes.
    fn cost_of(&self, op: &Op) -> u64 {
        match op {
            Op::SendUnexpected { message, .. }
            | Op::SendControl { message, .. }
            | Op::SendExpected { message, .. } => (message.len() as u64).max(self.least),
            _ => 0,
        }
    }
}

fn is_request(op: &Op) -> bool {
    matches!(op, Op::SendUnexpected { .. })
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

/// What a request counts at least, so that one peer's that wait are at most a half, rounded up, of the calls that may be under way. Of
/// one more than those, since the last unit of each is admitted by itself ([`Shares::admits`]).
fn least(bytes_max: u64, calls_max: usize) -> u64 {
    bytes_max / (calls_max as u64).saturating_add(1)
}

/// What a request or an answer is refused with that is over its peer's share.
fn limit(is_request: bool, bytes_max: u64) -> Error {
    let what = if is_request {
        "bytes of calls that wait for peers, of which one has a share, a half at most"
    } else {
        "bytes of answers that wait for peers, of which one has a share, a half at most"
    };
    Error::Limit {
        what,
        limit: bytes_max,
        remedy: "await calls and one-way calls as they leave, or raise `Builder::backlog_bytes_max` and `calls_max`: short ones that wait for one peer are about half of `calls_max`",
    }
}

#[cfg(test)]
mod tests;
