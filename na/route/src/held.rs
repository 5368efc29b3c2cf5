//! Operations that wait here for one peer, in the order of their posting.

use std::{
    collections::{HashSet, VecDeque},
    mem::{Discriminant, discriminant, take},
};

use hg_na::{
    Completion, Done, Error, Failure, GoneReason, Op, OpId, Peer, Reached, Returned, Tag, Token,
};

/// One of them.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) id: OpId,
    pub(crate) token: Token,
    pub(crate) op: Op,
}

impl Waiting {
    /// Ends it here.
    pub(crate) fn fail(self, error: Error) -> Completion {
        let Self { id, token, op } = self;
        let reached = match op {
            Op::RecvExpected { .. } => Reached::Unknown,
            _ => Reached::Never,
        };
        let returned = match op {
            Op::SendUnexpected { message, .. }
            | Op::SendControl { message, .. }
            | Op::SendExpected { message, .. } => Returned::Message(message),
            Op::Put { local, .. } | Op::Get { local, .. } => Returned::Slice(local),
            _ => Returned::Nothing,
        };
        let result = Err(Box::new(Failure { error, reached }));
        Completion::Done(Done { id, token, result, returned })
    }

    /// The tag of a receive.
    fn tag(&self) -> Option<Tag> {
        tag_of(&self.op)
    }
}

/// All of one peer.
#[derive(Debug, Default)]
pub(crate) struct Held {
    queue: VecDeque<Waiting>,
    /// Kinds of which no more could wait, and for which room was not told since.
    full: HashSet<Discriminant<Op>>,
}

impl Held {
    /// Whether none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether one waits that is no receive, and was accepted no later than the one with this serial.
    pub(crate) fn has_message_to(&self, serial: u64) -> bool {
        self.queue.iter().any(|it| it.tag().is_none() && it.id.serial <= serial)
    }

    /// Why one more cannot wait behind these, which is remembered where room is to be told.
    pub(crate) fn refuses(&mut self, op: &Op, depth: usize) -> Option<Error> {
        if let Some(tag) = tag_of(op) {
            let is_taken = self.queue.iter().any(|it| it.tag() == Some(tag));
            return is_taken.then_some(Error::TagInUse(tag));
        }
        let kind = discriminant(op);
        let is_full = self.count(kind) >= depth;
        if is_full {
            self.full.insert(kind);
        }
        is_full.then_some(Error::Again)
    }

    fn count(&self, kind: Discriminant<Op>) -> usize {
        self.queue.iter().filter(|it| discriminant(&it.op) == kind).count()
    }

    /// Adds one.
    pub(crate) fn push(&mut self, waiting: Waiting) {
        self.queue.push_back(waiting);
    }

    /// The next one.
    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        self.queue.pop_front()
    }

    /// There was no room for it.
    pub(crate) fn put_back(&mut self, waiting: Waiting) {
        self.queue.push_front(waiting);
    }

    /// Receives first: answers might else come before them.
    pub(crate) fn put_receives_first(&mut self) {
        // It keeps the order of what is equal.
        self.queue.make_contiguous().sort_by_key(|it| it.tag().is_none());
    }

    /// Takes one out.
    pub(crate) fn cancel(&mut self, id: OpId) -> Option<Waiting> {
        let at = self.queue.iter().position(|it| it.id == id)?;
        self.queue.remove(at)
    }

    /// Tells once that so few wait that others may.
    pub(crate) fn tell_room(&mut self, peer: Peer, depth: usize, done: &mut Vec<Completion>) {
        let mut full = take(&mut self.full);
        let before = full.len();
        full.retain(|kind| self.count(*kind) > depth / 2);
        if full.len() < before {
            done.push(Completion::Room { peer });
        }
        self.full = full;
    }

    /// The peer is gone: ends all but receives, and then those, too, or not yet.
    pub(crate) fn fail(
        &mut self,
        also_receives: bool,
        why: &GoneReason,
        done: &mut Vec<Completion>,
    ) {
        self.put_receives_first();
        let receives = self.queue.partition_point(|it| it.tag().is_some());
        let others = self.queue.split_off(receives);
        let ended = if also_receives { take(&mut self.queue) } else { VecDeque::new() };
        let fail = |it: Waiting| it.fail(Error::PeerGone(why.clone()));
        done.extend(others.into_iter().chain(ended).map(fail));
    }
}

/// The tag of a receive.
fn tag_of(op: &Op) -> Option<Tag> {
    if let Op::RecvExpected { tag, .. } = op { Some(*tag) } else { None }
}
