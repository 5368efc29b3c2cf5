//! Operations that wait here for one peer, in the order of their posting.

use std::collections::VecDeque;

use hg_na::{
    Completion, Done, Error, Failure, GoneReason, Op, OpId, Peer, Reached, Returned, Tag, Token,
};

use crate::full::Full;

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
        failed(self.id, self.token, self.op, error)
    }

    fn is_receive(&self) -> bool {
        matches!(self.op, Op::RecvExpected { .. })
    }
}

/// All of one peer.
#[derive(Debug, Default)]
pub(crate) struct Held {
    queue: VecDeque<Waiting>,
    /// What was refused because so many wait.
    full: Full,
}

impl Held {
    /// Whether none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether one waits that is no receive, and was accepted no later than the one with this serial.
    pub(crate) fn has_message_to(&self, serial: u64) -> bool {
        self.queue.iter().any(|it| !it.is_receive() && it.id.serial <= serial)
    }

    /// Why one more cannot wait behind these, which is remembered where room is to be told.
    pub(crate) fn refuses(&mut self, op: &Op, depth: usize) -> Option<Error> {
        let error = refusal(self.queue.iter().map(|it| &it.op), op, depth);
        if matches!(error, Some(Error::Again)) {
            self.full.add(op);
        }
        error
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
        let all = std::mem::take(&mut self.queue);
        let (receives, others): (Vec<_>, Vec<_>) = all.into_iter().partition(Waiting::is_receive);
        self.queue = receives.into_iter().chain(others).collect();
    }

    /// Takes one out.
    pub(crate) fn cancel(&mut self, id: OpId) -> Option<Waiting> {
        let at = self.queue.iter().position(|it| it.id == id)?;
        self.queue.remove(at)
    }

    /// Tells once that so few wait that others may.
    pub(crate) fn tell_room(&mut self, peer: Peer, depth: usize, done: &mut Vec<Completion>) {
        if self.full.take(self.queue.iter().map(|it| &it.op), depth) {
            done.push(Completion::Room { peer });
        }
    }

    /// The peer is gone: ends receives, or everything else.
    pub(crate) fn fail(&mut self, receives: bool, why: &GoneReason, done: &mut Vec<Completion>) {
        let all = std::mem::take(&mut self.queue).into_iter();
        let (ended, kept): (Vec<_>, Vec<_>) = all.partition(|it| it.is_receive() == receives);
        self.queue = kept.into();
        done.extend(ended.into_iter().map(|it| it.fail(Error::PeerGone(why.clone()))));
    }
}

/// Why one more operation cannot wait behind those that wait.
fn refusal<'a>(waiting: impl Iterator<Item = &'a Op>, op: &Op, depth: usize) -> Option<Error> {
    let mut alike =
        waiting.filter(|other| std::mem::discriminant::<Op>(other) == std::mem::discriminant(op));
    let tag_of = |op: &Op| -> Option<Tag> {
        if let Op::RecvExpected { tag, .. } = op { Some(*tag) } else { None }
    };
    match tag_of(op) {
        Some(tag) => {
            let is_taken = alike.any(|other| tag_of(other) == Some(tag));
            is_taken.then_some(Error::TagInUse(tag))
        }
        None => (alike.count() >= depth).then_some(Error::Again),
    }
}

/// The end of an operation that waited here.
fn failed(id: OpId, token: Token, op: Op, error: Error) -> Completion {
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
