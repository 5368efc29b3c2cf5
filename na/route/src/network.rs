//! When the network is looked at: in every round while it is busy, and not at all while it is idle.
//!
//! An idle network has *agreed to sleep* ([`Context::may_sleep`]): whatever arrives then is told to the local plugin,
//! which asks the kernel for both. So a sleeper wakes, and a thread that spins learns of it
//! when the local plugin looks at the kernel by itself: with `sm` after 256 to 2,048 empty rounds or 1,024
//! messages, some tens to hundreds of microseconds. No round makes a system call for an idle network's sake.
//! It is asked to sleep when it has found nothing for [`ACTIVE`], and before every sleep of the context.
//! A busy one is looked at in each round that has found nothing locally, and in every [`SHARE`]th of the others. One
//! that stays busy ([`BUSY`]) is not watched until it sleeps, where its wait set stands inside the local one: that costs
//! the kernel a second wake-up for each message, whether anybody sleeps or not. Beside it, a local plugin that has found nothing for long is
//! looked at in every few rounds only.

use std::time::{Duration, Instant};

use hg_na::{Completion, Context, Done, Error, GoneReason, OpId, Peer, QUIET};

use crate::{
    context::{RouteContext, outer},
    waiter::RouteWaiter,
};

/// How long a network that finds nothing is looked at in every round.
const ACTIVE: Duration = Duration::from_millis(1);
/// Looks at a network that have found something, without a sleep, after which it counts as busy. Not to watch its set
/// any more, where that stands inside the local one, and to go on are a system call each: a small part of what so many messages cost.
const BUSY: u32 = 64;
/// Rounds with local messages that share one look at a busy network.
const SHARE: u32 = 8;

/// The network's context, and whether it sleeps.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) context: Box<dyn Context>,
    /// Its handles and names are marked by itself: they are the user's.
    pub(crate) is_marked: bool,
    /// It can be left asleep while this process goes on.
    joined: bool,
    asleep: bool,
    /// When it wants to be looked at although nothing arrives; known while it sleeps.
    deadline: Option<Instant>,
    /// It has been given something to do since it was looked at.
    touched: bool,
    active_until: Option<Instant>,
    passed_over: u32,
    /// Looks that have found something since it slept.
    busy: u32,
    /// The local plugin's wait set has its descriptor.
    watched: bool,
}

impl Network {
    /// A network that is awake.
    pub(crate) fn new((context, is_marked): (Box<dyn Context>, bool), joined: bool) -> Self {
        Self {
            context,
            is_marked,
            joined,
            asleep: false,
            deadline: None,
            touched: false,
            active_until: None,
            passed_over: 0,
            busy: 0,
            watched: joined,
        }
    }

    /// Its own handle of a peer that the user knows by this one.
    #[inline(always)]
    pub(crate) fn inner(&self, peer: Peer) -> Peer {
        let mark = if self.is_marked { 0 } else { Peer::SECOND };
        Peer::new(peer.index() & !mark, peer.generation())
    }

    /// Its own name of an operation that the user knows by this one.
    pub(crate) fn own(&self, id: OpId) -> OpId {
        let mark = if self.is_marked { 0 } else { Peer::SECOND };
        OpId { scope: id.scope & !mark, ..id }
    }

    /// Whether its flush has ended; if not, it may want to be looked at soon.
    pub(crate) fn flush(&mut self) -> bool {
        let is_over = self.context.flush();
        if self.asleep {
            self.deadline = self.context.next_deadline();
        }
        is_over
    }

    /// It is about to be given something to do.
    #[inline]
    pub(crate) fn touch(&mut self) {
        self.touched = true;
    }

    /// Whether this round looks at it.
    #[inline(always)]
    pub(crate) fn is_due(&mut self, now: Instant, local_moved: bool, waiter: &RouteWaiter) -> bool {
        if self.asleep {
            return self.touched || waiter.network_is_ready() || self.is_late(now);
        }
        let passes = local_moved && self.passed_over + 1 < SHARE;
        self.passed_over = if passes { self.passed_over + 1 } else { 0 };
        !passes
    }

    /// A round has looked at it.
    fn looked(&mut self, now: Instant, moved: bool, waiter: &RouteWaiter) {
        if moved && self.watched {
            self.busy += 1;
            if self.busy >= BUSY {
                self.busy = 0;
                // Where that cannot be had, it stays as it is.
                self.watched = waiter.watch(false).is_err();
            }
        }
        if moved || self.touched {
            self.touched = false;
            self.active_until = Some(now + ACTIVE);
        } else if self.joined && self.active_until.is_none_or(|until| until <= now) {
            self.try_sleep(waiter);
        }
    }

    /// Whether it has been busy for so long that nobody watches its descriptor.
    #[inline(always)]
    pub(crate) fn is_engaged(&self) -> bool {
        !self.watched && !self.asleep
    }

    /// Whether it sleeps longer than it wanted to.
    #[inline(always)]
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Whether it sleeps, and was given nothing to do.
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep && !self.touched
    }

    /// Whether it sleeps, or agrees to.
    pub(crate) fn may_sleep(&mut self, waiter: &RouteWaiter) -> bool {
        if self.touched {
            return false; // The next round looks at it.
        }
        if !self.asleep {
            self.try_sleep(waiter);
        }
        self.asleep
    }

    fn try_sleep(&mut self, waiter: &RouteWaiter) {
        self.asleep = self.context.may_sleep();
        if self.asleep {
            self.busy = 0;
            if !self.watched {
                // Without being watched it must be polled on.
                self.watched = waiter.watch(true).is_ok();
                self.asleep = self.watched;
            }
        }
        self.deadline = self.context.next_deadline();
    }
}

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
            self.network.active_until = Some(now + ACTIVE);
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
        if !self.moves.renames() {
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
        let Some(renamed) = self.moves.take_renamed(ended.id) else {
            ended.id.scope |= Peer::SECOND;
            done.push(Completion::Done(ended));
            return;
        };
        if let Err(failure) = &ended.result
            && let Error::PeerGone(reason) = &failure.error
        {
            // Sends end before receives.
            self.fail_held(renamed.peer, false, reason, done);
        }
        let is_silent = renamed.token & QUIET != 0 && ended.result.is_ok();
        if !is_silent {
            (ended.id, ended.token) = (renamed.id, renamed.token);
            done.push(Completion::Done(ended));
        }
    }

    /// A peer of the network has hung up, which is known by one handle or by several.
    fn take_hang_up(&mut self, inner: Peer, reason: &GoneReason, done: &mut Vec<Completion>) {
        let (moved, shown) = self.moves.known_as(inner);
        let is_known = shown || moved.is_empty();
        // What was cancelled meanwhile ends before.
        done.append(&mut self.ended);
        for peer in moved {
            self.fail_held(peer, false, reason, done);
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
