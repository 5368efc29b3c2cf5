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

use hg_na::{Context, OpId, Peer};

use crate::waiter::RouteWaiter;

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
    pub(crate) asleep: bool,
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

    /// The kernel has told of it.
    pub(crate) fn rang(&mut self, now: Instant) {
        self.active_until = Some(now + ACTIVE);
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

    /// Its context, which is about to be given something to do.
    #[inline]
    pub(crate) fn touch(&mut self) -> &mut dyn Context {
        self.touched = true;
        self.context.as_mut()
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
    pub(crate) fn looked(&mut self, now: Instant, moved: bool, waiter: &RouteWaiter) {
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
        let agrees = self.asleep;
        // Where nobody tells of it, the next round looks at it, too.
        self.asleep &= self.joined;
        agrees
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
