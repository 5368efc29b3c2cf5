//! What the network has said, by the names that the user knows.

use std::time::Instant;

use hg_na::{Completion, Done, Error, GoneReason, Peer};

use crate::{context::RouteContext, names::outer};

impl RouteContext {
    /// A round of the network's progress.
    #[inline(never)]
    pub(crate) fn progress_network(
        &mut self,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<bool, Error> {
        self.network.asleep = false;
        if self.waiter.network_is_ready() {
            self.waiter.collect()?;
            self.network.rang(now);
        }
        let start = done.len();
        let moved = self.network.context.progress(now, done);
        self.heard_network(start, now, matches!(moved, Ok(true)), done);
        moved
    }

    /// What there is to do after a look at the network, which has said what stands from `start` on.
    pub(crate) fn heard_network(
        &mut self,
        start: usize,
        now: Instant,
        moved: bool,
        done: &mut Vec<Completion>,
    ) {
        if done.len() > start {
            self.take_from_network(start, done);
        }
        self.network.looked(now, moved, &self.waiter);
    }

    /// Gives what the network has said, from `start` on, the names that the user knows.
    fn take_from_network(&mut self, start: usize, done: &mut Vec<Completion>) {
        if !self.slices.is_empty() {
            self.slices.restore(&mut done[start..]);
        }
        let mut at = start;
        if self.names.is_empty() {
            let is_marked = self.network.is_marked;
            for completion in &mut done[start..] {
                match completion {
                    Completion::Done(_) if is_marked => {}
                    Completion::Done(ended) => ended.id.scope |= Peer::SECOND,
                    Completion::Unexpected { from, .. } | Completion::Control { from, .. } => {
                        // A name that is read as one, right after it was written in two parts, is waited for.
                        let sender = self.moves.sender(*from);
                        if *from != sender {
                            *from = sender;
                        }
                    }
                    _ => break,
                }
                at += 1;
            }
        }
        if at < done.len() {
            self.sort_from_network(at, done);
        }
    }

    /// The same from where one may become none or several.
    #[cold]
    fn sort_from_network(&mut self, start: usize, done: &mut Vec<Completion>) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.extend(done.drain(start..));
        for completion in batch.drain(..) {
            match completion {
                Completion::Done(ended) => self.take_done_from_network(ended, done),
                Completion::Unexpected { from, message } => {
                    let from = self.moves.sender(from);
                    done.push(Completion::Unexpected { from, message });
                }
                Completion::Control { from, message } => {
                    let from = self.moves.sender(from);
                    done.push(Completion::Control { from, message });
                }
                Completion::Room { peer } => self.take_room(peer, done),
                Completion::HungUp { peer, reason } => self.take_hang_up(peer, &reason, done),
                Completion::Gone { peer, reason } => self.take_gone(peer, &reason, done),
                other => done.push(other),
            }
        }
        self.batch = batch;
    }

    fn take_done_from_network(&mut self, mut ended: Done, done: &mut Vec<Completion>) {
        ended.id.scope |= Peer::SECOND;
        self.take_done(ended, done);
    }

    /// A peer of the network has hung up, which is known by one handle or by several.
    fn take_hang_up(&mut self, inner: Peer, reason: &GoneReason, done: &mut Vec<Completion>) {
        let (moved, shown) = self.moves.known_as(inner);
        let is_known = shown || moved.is_empty();
        // What was cancelled meanwhile ends before.
        done.append(&mut self.ended);
        for peer in moved {
            self.fail_held(peer, true, reason, done);
            self.moves.hang_up(peer);
            done.push(Completion::HungUp { peer, reason: reason.clone() });
        }
        if is_known {
            done.push(Completion::HungUp { peer: outer(inner), reason: reason.clone() });
        }
    }

    /// The same, and it is gone.
    fn take_gone(&mut self, inner: Peer, reason: &GoneReason, done: &mut Vec<Completion>) {
        let (moved, shown) = self.moves.known_as(inner);
        let is_known = shown || moved.is_empty();
        for peer in moved {
            self.moves.remove(peer);
            self.marks.end(peer);
            done.push(Completion::Gone { peer, reason: reason.clone() });
        }
        if is_known {
            done.push(Completion::Gone { peer: outer(inner), reason: reason.clone() });
        }
    }
}
