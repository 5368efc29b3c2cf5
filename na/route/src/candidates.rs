//! Peers that the local plugin is tried for, and what was posted to them meanwhile.
//!
//! ```text
//! lookup -> Candidate -- something was exchanged ---------------> Settled (local for good)
//!              |
//!              +------ refused, or nobody is there --------------> Moved (`crate::moved`)
//!              +------ anything else, or forgotten --------------> gone
//! ```
//! Each operation is logged until the trial ends. The local plugin gives back what it refused: sends with
//! [`Reached::Never`] and their buffers, then receives, then `HungUp`. They are kept here, and at `HungUp` they are
//! either posted to the network, in the order of their posting, or handed out as they were. So nothing is sent
//! twice: an operation that may have reached the peer ends the trial. Quiet sends are posted aloud while the
//! trial lasts, because their success is what ends it; their poster is not told.

use hg_na::{
    Completion, Done, Error, Failure, GoneReason, Message, Op, OpId, Peer, QUIET, Reached,
    Rejected, Returned, Tag, Token,
};
use rustc_hash::FxHashSet;

use crate::{
    Way,
    context::{RouteContext, failed},
    full::Full,
    uid::Uid,
};

/// What became of a peer of the local plugin's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Mark {
    /// It was never looked up: it has connected by itself.
    #[default]
    None,
    /// It is reached locally.
    Settled,
    /// It is tried locally.
    Candidate,
    /// It is reached by the network.
    Moved,
}

/// Marks by place; of another generation, they mean nothing.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    places: Vec<(u32, Mark)>,
    /// Peers that took the network, and whose places the local plugin has given to others since.
    moved: FxHashSet<Peer>,
}

impl Marks {
    /// The mark of a peer.
    #[inline]
    pub(crate) fn of(&self, peer: Peer) -> Mark {
        match self.places.get(peer.index() as usize) {
            Some((generation, mark)) if *generation == peer.generation() => *mark,
            _ if self.moved.contains(&peer) => Mark::Moved,
            _ => Mark::None,
        }
    }

    /// Whether the local plugin takes its operations as they are.
    #[inline]
    pub(crate) fn is_direct(&self, peer: Peer) -> bool {
        self.is_free(peer) && (self.moved.is_empty() || self.of(peer) != Mark::Moved)
    }

    /// The same where no search is needed to say so, as mostly none is: a short cut that has one in its way saves and
    /// restores all registers for it, at each message.
    #[inline(always)]
    pub(crate) fn is_plainly_direct(&self, peer: Peer) -> bool {
        self.is_free(peer) && self.moved.is_empty()
    }

    /// Whether its place has no mark of its own that sends it elsewhere.
    #[inline(always)]
    fn is_free(&self, peer: Peer) -> bool {
        match self.places.get(peer.index() as usize) {
            Some((_, Mark::None | Mark::Settled)) | None => true,
            Some((generation, _)) => *generation != peer.generation(),
        }
    }

    /// Marks a peer.
    pub(crate) fn set(&mut self, peer: Peer, mark: Mark) {
        let place = peer.index() as usize;
        if self.places.len() <= place {
            self.places.resize(place + 1, (0, Mark::None));
        }
        let (generation, before) =
            std::mem::replace(&mut self.places[place], (peer.generation(), mark));
        if before == Mark::Moved && generation != peer.generation() {
            self.moved.insert(Peer::new(peer.index(), generation));
        }
    }

    /// A peer that took the network is gone.
    pub(crate) fn end(&mut self, peer: Peer) {
        if !self.moved.remove(&peer) && self.of(peer) == Mark::Moved {
            self.set(peer, Mark::None);
        }
    }
}

/// A peer on trial.
#[derive(Debug)]
pub(crate) struct Candidate {
    uid: Uid,
    /// In the order of their posting.
    log: Vec<Logged>,
    /// What was refused because so many are logged, and what by the local plugin.
    full: Full,
    refused: Full,
    /// The trial can only end with the peer.
    hopeless: bool,
    pub(crate) forgotten: bool,
    pub(crate) is_admitted: bool,
}

/// An operation on trial.
#[derive(Debug)]
struct Logged {
    id: OpId,
    token: Token,
    /// What to post again; a message that is not inline comes back with the failure.
    op: Op,
    /// How the local plugin has ended it, as far as it is not handed out.
    failure: Option<Box<Failure>>,
}

/// An operation that waits for the network.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) id: OpId,
    pub(crate) token: Token,
    pub(crate) op: Op,
}

impl Candidate {
    /// Nothing was posted to it yet.
    pub(crate) fn new(uid: Uid) -> Self {
        Self {
            uid,
            log: Vec::new(),
            full: Full::default(),
            refused: Full::default(),
            hopeless: false,
            forgotten: false,
            is_admitted: true,
        }
    }

    /// An operation is not logged any more: tells whether there is room for others.
    fn take_room(&mut self, depth: usize) -> bool {
        self.full.take(self.log.iter().map(|it| &it.op), depth)
    }

    /// Whether anything was posted to it.
    pub(crate) fn is_used(&self) -> bool {
        !self.log.is_empty()
    }

    fn find(&self, id: OpId) -> Option<usize> {
        self.log.iter().position(|logged| logged.id == id)
    }
}

impl RouteContext {
    /// Says whether requests of one peer are taken, wherever it is.
    pub(crate) fn admit(&mut self, peer: Peer, open: bool) {
        let inner = if peer.index() & Peer::SECOND != 0 {
            Some(self.network.inner(peer))
        } else if self.marks.of(peer) == Mark::Moved {
            self.moves.inner(peer)
        } else {
            if let Some(candidate) = self.candidates.get_mut(&peer) {
                candidate.is_admitted = open;
            }
            return self.local.set_admission_of(peer, open);
        };
        if let Some(inner) = inner {
            self.network.touch();
            self.network.context.set_admission_of(inner, open);
        }
    }

    /// Posts to a peer on trial, and remembers it.
    pub(crate) fn post_candidate(
        &mut self,
        peer: Peer,
        token: Token,
        op: Op,
    ) -> Result<OpId, Rejected> {
        let depth = self.caps.queue_depth;
        let Some(candidate) = self.candidates.get_mut(&peer) else {
            return Err(Rejected { op, error: Error::UnknownPeer });
        };
        if let Some(error) = refusal(candidate.log.iter().map(|it| &it.op), &op, depth) {
            if matches!(error, Error::Again) {
                candidate.full.add(&op);
            }
            return Err(Rejected { op, error });
        }
        let op = in_own_memory(op);
        let copy = repeatable(&op);
        let (id, op, failure) = match self.post_to(Way::Local, token & !QUIET, op) {
            Ok(id) => (id, copy, None),
            Err(Rejected { op, error: Error::PeerGone(reason) }) if moves(&reason) => {
                let reached = Reached::Never;
                let failure = Failure { error: Error::PeerGone(reason), reached };
                (self.own_id(), op, Some(Box::new(failure)))
            }
            Err(rejected) => {
                if let (Error::Again, Some(candidate)) =
                    (&rejected.error, self.candidates.get_mut(&peer))
                {
                    candidate.refused.add(&rejected.op);
                }
                return Err(rejected);
            }
        };
        self.trying.insert(id, peer);
        if let Some(candidate) = self.candidates.get_mut(&peer) {
            candidate.log.push(Logged { id, token, op, failure });
        }
        Ok(id)
    }

    /// Cancels what is kept here, or waits for the network; says whether it was that.
    pub(crate) fn cancel_waiting(&mut self, id: OpId) -> bool {
        let Some(peer) = self.trying.get(&id) else { return self.cancel_held(id) };
        let Some(candidate) = self.candidates.get_mut(peer) else { return false };
        let Some(at) = candidate.find(id) else { return false };
        if candidate.log[at].failure.is_none() {
            return false;
        }
        let (peer, Logged { token, op, .. }) = (*peer, candidate.log.remove(at));
        self.ended.push(failed(id, token, op, Error::Cancelled));
        if candidate.take_room(self.caps.queue_depth) {
            self.ended.push(Completion::Room { peer });
        }
        self.trying.remove(&id);
        true
    }

    /// Takes what concerns a trial out of the local plugin's completions.
    pub(crate) fn sift(&mut self, start: usize, done: &mut Vec<Completion>) {
        let concerns = |completion: &Completion| match completion {
            Completion::Done(done) => {
                self.trying.contains_key(&done.id) || self.loud.contains_key(&done.id)
            }
            Completion::Unexpected { from: peer, .. }
            | Completion::Control { from: peer, .. }
            | Completion::HungUp { peer, .. }
            | Completion::Room { peer } => self.marks.of(*peer) == Mark::Candidate,
            Completion::Gone { peer, .. } => self.leaving.contains(peer),
            _ => false,
        };
        if !done[start..].iter().any(concerns) {
            return;
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.extend(done.drain(start..));
        for completion in batch.drain(..) {
            self.sift_one(completion, done);
        }
        self.batch = batch;
    }

    fn sift_one(&mut self, completion: Completion, done: &mut Vec<Completion>) {
        match &completion {
            Completion::Unexpected { from, .. } | Completion::Control { from, .. } => {
                self.settle(*from, done);
            }
            Completion::HungUp { peer, reason } if self.candidates.contains_key(peer) => {
                return self.end_trial(*peer, reason, done);
            }
            Completion::Gone { peer, .. } if self.leaving.remove(peer) => return,
            Completion::Room { peer } => {
                if let Some(candidate) = self.candidates.get_mut(peer) {
                    candidate.refused.clear();
                }
            }
            _ => {}
        }
        match completion {
            Completion::Done(mut ended) => {
                if let Some(token) = self.loud.remove(&ended.id) {
                    ended.token = token;
                    tell(ended, done);
                } else if let Some(peer) = self.trying.get(&ended.id).copied() {
                    self.tried(peer, ended, done);
                } else {
                    done.push(Completion::Done(ended));
                }
            }
            other => done.push(other),
        }
    }

    /// An operation on trial has ended.
    fn tried(&mut self, peer: Peer, mut ended: Done, done: &mut Vec<Completion>) {
        let found = self.candidates.get_mut(&peer).and_then(|it| Some((it.find(ended.id)?, it)));
        let Some((at, candidate)) = found else { return done.push(Completion::Done(ended)) };
        let logged = &mut candidate.log[at];
        let is_receive = is_receive(logged);
        ended.token = logged.token;
        match &ended.result {
            Err(failure) if matches!(failure.error, Error::Cancelled) => {
                candidate.log.remove(at);
                self.trying.remove(&ended.id);
                done.push(Completion::Done(ended));
                if candidate.take_room(self.caps.queue_depth) {
                    done.push(Completion::Room { peer });
                }
            }
            Err(failure)
                if !candidate.hopeless
                    && matches!(&failure.error, Error::PeerGone(reason) if moves(reason))
                    && (is_receive || failure.reached == Reached::Never) =>
            {
                logged.failure = Some(failure.clone());
                if let Returned::Message(message) = ended.returned {
                    give_back(&mut logged.op, message);
                }
            }
            Err(failure) if matches!(failure.error, Error::PeerGone(_)) => {
                candidate.hopeless = true;
                let log = std::mem::take(&mut candidate.log);
                self.trying.remove(&ended.id);
                let (kept, mut others): (Vec<_>, Vec<_>) =
                    log.into_iter().partition(|logged| logged.failure.is_some());
                others.retain(|logged| logged.id != ended.id);
                candidate.log = others;
                self.hand_out(kept, done);
                done.push(Completion::Done(ended));
            }
            // It was carried out, or failed in a way that only a peer can cause.
            _ => {
                candidate.log.remove(at);
                self.trying.remove(&ended.id);
                self.settle(peer, done);
                tell(ended, done);
            }
        }
    }

    /// Something was exchanged: the peer is reached locally for good.
    fn settle(&mut self, peer: Peer, done: &mut Vec<Completion>) {
        let Some(mut candidate) = self.candidates.remove(&peer) else { return };
        self.marks.set(peer, Mark::Settled);
        if candidate.full.clear() {
            done.push(Completion::Room { peer });
        }
        let (kept, open): (Vec<_>, Vec<_>) =
            candidate.log.into_iter().partition(|logged| logged.failure.is_some());
        for logged in open {
            self.trying.remove(&logged.id);
            if logged.token & QUIET != 0 {
                self.loud.insert(logged.id, logged.token);
            }
        }
        self.hand_out(kept, done);
    }

    /// Hands out what was kept, as the local plugin has ended it: sends before receives.
    fn hand_out(&mut self, kept: Vec<Logged>, done: &mut Vec<Completion>) {
        let (receives, sends): (Vec<_>, Vec<_>) = kept.into_iter().partition(is_receive);
        for Logged { id, token, op, failure } in sends.into_iter().chain(receives) {
            self.trying.remove(&id);
            if let Some(failure) = failure {
                let mut end = failed(id, token, op, Error::Cancelled);
                if let Completion::Done(ended) = &mut end {
                    ended.result = Err(failure);
                }
                done.push(end);
            }
        }
    }

    /// The local plugin's peer on trial has hung up: nothing of it will come.
    fn end_trial(&mut self, peer: Peer, reason: &GoneReason, done: &mut Vec<Completion>) {
        let Some(mut candidate) = self.candidates.remove(&peer) else { return };
        let is_over = candidate.log.iter().all(|logged| logged.failure.is_some());
        if is_over && !candidate.hopeless && !candidate.forgotten && moves(reason) {
            match self.network.context.lookup(&candidate.uid.network) {
                Ok(inner) => {
                    for logged in &candidate.log {
                        self.trying.remove(&logged.id);
                    }
                    let wait = |logged| {
                        let Logged { id, token, op, .. } = logged;
                        Waiting { id, token, op }
                    };
                    // Only the network's peer ends for the user from here on.
                    self.leaving.insert(peer);
                    if !candidate.is_admitted {
                        self.network.context.set_admission_of(inner, false);
                    }
                    let (receives, others): (Vec<_>, Vec<_>) =
                        candidate.log.into_iter().partition(is_receive);
                    let waiting = receives.into_iter().chain(others).map(wait).collect();
                    candidate.full.join(candidate.refused);
                    let held = (waiting, candidate.full);
                    return self.move_to_network(peer, inner, candidate.uid, held, reason);
                }
                Err(error) => {
                    tracing::info!(%error, "no way to a peer that is not reached locally")
                }
            }
        }
        self.marks.set(peer, Mark::Settled);
        self.hand_out(candidate.log, done);
        done.push(Completion::HungUp { peer, reason: reason.clone() });
    }
}

/// Whether the network is worth a try: refused (another user, a limit), or nobody there. Not where the peer has
/// died or is stopped: the network knows no better.
fn moves(reason: &GoneReason) -> bool {
    use GoneReason::{Exhausted, Refused, Unreachable};
    matches!(reason, Refused(_) | Unreachable(_) | Exhausted(_))
}

/// Why one more operation cannot wait behind those that wait.
pub(crate) fn refusal<'a>(
    waiting: impl Iterator<Item = &'a Op>,
    op: &Op,
    depth: usize,
) -> Option<Error> {
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

/// A message that lies in a transport's memory would not come back: then it is copied.
fn in_own_memory(mut op: Op) -> Op {
    if let Op::SendUnexpected { message, .. }
    | Op::SendControl { message, .. }
    | Op::SendExpected { message, .. } = &mut op
        && message.body().is_some()
    {
        *message = Message::copied(message.as_slice());
    }
    op
}

/// The operation once more, without a message that is not inline.
fn repeatable(op: &Op) -> Op {
    let copy = |message: &Message| match message.slot() {
        Some((bytes, len)) => Message::from_slot(*bytes, len),
        None => Message::inline(0),
    };
    match op {
        Op::SendUnexpected { to, message } => {
            Op::SendUnexpected { to: *to, message: copy(message) }
        }
        Op::SendControl { to, message } => Op::SendControl { to: *to, message: copy(message) },
        Op::SendExpected { to, tag, message } => {
            Op::SendExpected { to: *to, tag: *tag, message: copy(message) }
        }
        Op::RecvExpected { from, tag } => Op::RecvExpected { from: *from, tag: *tag },
        Op::Put { to, local, remote } => {
            Op::Put { to: *to, local: local.clone(), remote: remote.clone() }
        }
        Op::Get { from, local, remote } => {
            Op::Get { from: *from, local: local.clone(), remote: remote.clone() }
        }
        Op::View { from, remote } => Op::View { from: *from, remote: remote.clone() },
        _ => unreachable!("`is_plain` and `post_to` know every kind"),
    }
}

fn is_receive(logged: &Logged) -> bool {
    matches!(logged.op, Op::RecvExpected { .. })
}

fn give_back(op: &mut Op, returned: Message) {
    if let Op::SendUnexpected { message, .. }
    | Op::SendControl { message, .. }
    | Op::SendExpected { message, .. } = op
    {
        *message = returned;
    }
}

/// Tells the poster, unless it wanted silence.
fn tell(ended: Done, done: &mut Vec<Completion>) {
    if ended.token & QUIET == 0 || ended.result.is_err() {
        done.push(Completion::Done(ended));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn what_is_plainly_direct_is_direct_and_only_what_is_tried_or_has_moved_is_not(
            steps in proptest::collection::vec((0_u32..4, 0_u32..3, 0_usize..4, any::<bool>()), 0..60)
        ) {
            let mut marks = Marks::default();
            for (index, generation, mark, ends) in steps {
                let peer = Peer::new(index, generation);
                if ends {
                    marks.end(peer);
                } else {
                    let all = [Mark::None, Mark::Settled, Mark::Candidate, Mark::Moved];
                    marks.set(peer, all[mark]);
                }
                for (index, generation) in (0..5).flat_map(|at| (0..4).map(move |by| (at, by))) {
                    let peer = Peer::new(index, generation);
                    let goes_elsewhere = matches!(marks.of(peer), Mark::Candidate | Mark::Moved);
                    prop_assert_eq!(marks.is_direct(peer), !goes_elsewhere);
                    prop_assert!(marks.is_direct(peer) || !marks.is_plainly_direct(peer));
                }
            }
        }
    }
}
