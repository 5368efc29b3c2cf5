//! Peers that the local plugin is tried for, and what was posted to them meanwhile.
//!
//! ```text
//! lookup -> Candidate -- connected locally ----------------------> Settled (local for good)
//!              |
//!              +------ refused, or nobody is there --------------> Moved (`crate::moved`)
//!              +------ anything else, or forgotten --------------> gone
//! ```
//! Operations wait here until the trial ends. The local plugin is given a receive of this side's own, which makes it connect, and which
//! nobody answers. Once it is connected, it gets what waits, in the order of posting; if it refuses, the network does. So nothing is
//! sent twice, and nothing is taken back.

use hg_na::{
    Completion, Done, Error, GoneReason, Message, Op, OpId, Peer, QUIET, Rejected, Tag, Token,
    Waiter as _,
};

use crate::{Way, context::RouteContext, marks::Mark, names::Renamed, slices};

/// Tag of the receive that makes the local plugin connect. It is cancelled before anything of the user's is posted.
const TRIAL: Tag = Tag::MAX;

impl RouteContext {
    /// Has an operation wait for the end of the trial.
    pub(crate) fn post_candidate(
        &mut self,
        peer: Peer,
        token: Token,
        mut op: Op,
    ) -> Result<OpId, Rejected> {
        let refused = slices::parts(&mut op, Way::Local, self.scheme(Way::Local)).err();
        let refused = refused.or_else(|| self.refuses(&op));
        if let Some(error) = refused {
            return Err(Rejected { op, error });
        }
        let Some(candidate) = self.candidates.get_mut(&peer) else {
            return Err(Rejected { op, error: Error::UnknownPeer });
        };
        if candidate.trial.is_none() && !candidate.is_local {
            let receive = Op::RecvExpected { from: peer, tag: TRIAL };
            match self.local.post(0, receive) {
                Ok(trial) => {
                    candidate.trial = Some(trial);
                    self.trials.insert(trial);
                    self.undecided.push(peer);
                }
                // It has been refused already, which the next round tells.
                Err(Rejected { error: Error::PeerGone(reason), .. }) if moves(&reason) => {}
                Err(Rejected { error, .. }) => return Err(Rejected { op, error }),
            }
        }
        if self.is_sleeping {
            self.waiter.wake();
        }
        Ok(self.hold(token, in_own_memory(op)))
    }

    /// Looks whether peers on trial are connected by now; says whether any is.
    pub(crate) fn look_at_trials(&mut self) -> bool {
        if self.undecided.is_empty() {
            return false;
        }
        let before = self.undecided.len();
        for peer in std::mem::take(&mut self.undecided) {
            if self.local.is_connected(peer) {
                self.settle(peer);
            } else if self.candidates.contains_key(&peer) {
                self.undecided.push(peer);
            }
        }
        self.undecided.len() < before
    }

    /// The peer is reached locally for good.
    fn settle(&mut self, peer: Peer) {
        let Some(candidate) = self.candidates.get_mut(&peer) else { return };
        candidate.is_local = true;
        if let Some(trial) = candidate.trial.take() {
            self.local.cancel(trial);
        }
        self.flush_settled(peer);
    }

    /// Posts what waits for a peer that is reached locally, as far as there is room.
    fn flush_settled(&mut self, peer: Peer) {
        self.flush_held(peer, (Way::Local, peer));
        if !self.held.contains_key(&peer) {
            self.candidates.remove(&peer);
            self.marks.set(peer, Mark::Settled);
        }
    }

    /// Takes what concerns a trial, or what waited for one, out of the local plugin's completions.
    pub(crate) fn sift(&mut self, start: usize, done: &mut Vec<Completion>) {
        let concerns = |completion: &Completion| match completion {
            Completion::Done(done) => {
                self.trials.contains(&done.id) || self.names.is_renamed(done.id)
            }
            // Its place may be another's by now.
            Completion::HungUp { peer, .. } | Completion::Room { peer } => {
                self.candidates.contains_key(peer)
            }
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
        match completion {
            Completion::Done(ended) if self.trials.remove(&ended.id) => {}
            Completion::Done(ended) => self.take_done(ended, done),
            Completion::HungUp { peer, reason } if self.candidates.contains_key(&peer) => {
                self.end_trial(peer, &reason, done);
            }
            Completion::Gone { peer, .. } if self.leaving.remove(&peer) => {}
            Completion::Room { peer } if self.candidates.contains_key(&peer) => {
                self.flush_settled(peer);
                done.append(&mut self.ended);
            }
            other => done.push(other),
        }
    }

    /// An operation of a plugin's has ended, by the name that the user would know: it may have had another one here.
    pub(crate) fn take_done(&mut self, mut ended: Done, done: &mut Vec<Completion>) {
        let Some(Renamed { peer, id, token }) = self.names.take(ended.id) else {
            return done.push(Completion::Done(ended));
        };
        if let Err(failure) = &ended.result
            && let Error::PeerGone(reason) = &failure.error
        {
            // Sends end before receives.
            self.fail_held(peer, false, reason, done);
        }
        if token & QUIET == 0 || ended.result.is_err() {
            (ended.id, ended.token) = (id, token);
            done.push(Completion::Done(ended));
        }
    }

    /// The local plugin's peer on trial has hung up: nothing of it will come.
    fn end_trial(&mut self, peer: Peer, reason: &GoneReason, done: &mut Vec<Completion>) {
        let Some(candidate) = self.candidates.remove(&peer) else { return };
        // What was cancelled meanwhile ends before.
        done.append(&mut self.ended);
        if !candidate.is_local && !candidate.forgotten && moves(reason) {
            match self.network.context.lookup(&candidate.uid.network) {
                Ok(inner) => {
                    // Only the network's peer ends for the user from here on.
                    self.leaving.insert(peer);
                    if !candidate.is_admitted {
                        self.network.context.set_admission_of(inner, false);
                    }
                    return self.move_to_network(peer, inner, candidate.uid, reason);
                }
                Err(error) => {
                    tracing::info!(%error, "no way to a peer that is not reached locally")
                }
            }
        }
        self.marks.set(peer, Mark::Settled);
        self.fail_held(peer, true, reason, done);
        done.push(Completion::HungUp { peer, reason: reason.clone() });
    }
}

/// Whether the network is worth a try: refused (another user, a limit), or nobody there. Not where the peer has
/// died or is stopped: the network knows no better.
fn moves(reason: &GoneReason) -> bool {
    use GoneReason::{Exhausted, Refused, Unreachable};
    matches!(reason, Refused(_) | Unreachable(_) | Exhausted(_))
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
