//! Rounds of progress, and sleep: which connections are polled directly, and which ring.
//!
//! A connection is *hot* (polled in each round) from its first message, ring or posted receive on. It
//! is *parked* (its peer rings, epoll tells) when the context sleeps, when others are needed and it is
//! the least recently active one, or when it stayed empty for long while another was busy. Parking
//! follows the protocol of [`crate::wake`].
//! The kernel is asked only after many empty rounds, or when a while has passed: see [`POLL_EVERY`].

use std::time::{Duration, Instant};

use hg_na::{Completion, Error, Message, Peer, Tag};

use crate::{
    context::{Moved, SmContext},
    link::{Link, REQUESTS, misbehaved},
    sync::Ordering,
    wake::before_second_look,
};

/// Connections that are hot at a time, unless more than these are really busy.
const HOT_MAX: usize = 16;
/// A connection that found nothing for so many rounds gives its place to another one.
const QUIET_ROUNDS: u32 = 256;
/// A connection that found nothing for so many rounds is parked while another one is busy.
const PARK_ROUNDS: u32 = 20_000;
/// After so many empty rounds positions are written back that a producer may wait for.
const WRITE_BACK_ROUNDS: u32 = 64;
/// The kernel is asked for events after so long, however long what comes keeps the user: newcomers and parked peers wait for it ...
const POLL_EVERY: Duration = Duration::from_millis(1);
/// ... or after so many empty rounds in a row: twice as many each time that it had nothing to tell.
pub(crate) const POLL_EMPTY_MIN: u32 = 256;
const POLL_EMPTY_MAX: u32 = 2048;

impl SmContext {
    /// One round. What is rare is asked for by `has_chores` and `has_leftovers`.
    #[inline(always)]
    pub(crate) fn round(&mut self, now: Instant, done: &mut Vec<Completion>) -> Moved {
        if self.guard.is_child() {
            return Err(Error::Forked);
        }
        if self.has_chores {
            return self.round_with_chores(now, done);
        }
        let taken = self.poll_hot(done);
        if taken == 0 || self.has_leftovers || !self.intake.ferries.is_empty() {
            return self.end_round(now, done, taken);
        }
        self.empty_rounds = 0;
        self.has_chores |= now >= self.poll_at;
        Ok(true)
    }

    /// An answer, before the round that would take it; chores come first.
    #[inline(always)]
    pub(crate) fn collect_answer(&mut self, from: Peer, tag: Tag, answer: &mut Message) -> bool {
        if self.has_chores || self.guard.is_child() {
            return false;
        }
        let is_there = self.peers.find(from).is_some_and(|it| it.collect(tag, answer));
        if is_there {
            self.empty_rounds = 0;
        }
        is_there
    }

    /// A request, before the round that would take it, where no other connection is polled directly; chores come first.
    #[inline(always)]
    pub(crate) fn take_only_request(&mut self, from: Peer, request: &mut Message) -> bool {
        if self.has_chores || self.hot.len() != 1 || self.guard.is_child() {
            return false;
        }
        let is_open = self.intake.admission;
        let is_there = self.peers.find(from).is_some_and(|it| it.take_request(is_open, request));
        if is_there {
            self.empty_rounds = 0;
        }
        is_there
    }

    #[cold]
    fn round_with_chores(&mut self, now: Instant, done: &mut Vec<Completion>) -> Moved {
        let moved = self.chores(now, done)?;
        let taken = self.poll_hot(done);
        Ok(self.end_round(now, done, taken)? || moved)
    }

    /// The end of a round that found nothing, or that has more to hand out than came out of rings.
    #[inline(never)]
    fn end_round(&mut self, now: Instant, done: &mut Vec<Completion>, taken: u32) -> Moved {
        let mut moved = taken > 0;
        self.ahead = 0;
        self.has_chores |= now >= self.poll_at;
        if moved {
            self.empty_rounds = 0;
        } else {
            self.empty_rounds += 1;
            self.has_chores |= self.empty_rounds >= self.poll_after;
            if self.waiter.has_told() || self.due_at.is_some_and(|at| at <= now) {
                moved = self.chores(now, done)?;
            }
        }
        if self.has_leftovers || !self.intake.ferries.is_empty() {
            moved |= self.hand_out(now, done);
        }
        Ok(moved)
    }

    /// Hands out what did not come out of a ring; does what waits for the end of a round.
    fn hand_out(&mut self, now: Instant, done: &mut Vec<Completion>) -> bool {
        let mut moved = !self.intake.ferries.is_empty() && self.step_ferries();
        moved |= !self.backlog.is_empty() && self.flush_backlog();
        self.tell_later();
        moved |= !self.finished.is_empty();
        done.append(&mut self.finished);
        if !self.dirty.is_empty() && self.trim_at.is_none() {
            self.trim_at = Some(now + crate::context::TRIM_AFTER);
            self.schedule();
        }
        self.has_leftovers =
            !self.backlog.is_empty() || !self.intake.ferries.is_empty() || !self.later.is_empty();
        moved
    }

    /// Asks the kernel, when it is time to.
    pub(crate) fn poll_kernel(&mut self, now: Instant) -> Result<(), Error> {
        let is_empty = self.empty_rounds >= self.poll_after;
        if is_empty || now >= self.poll_at {
            self.empty_rounds = 0;
            self.poll_at = now + POLL_EVERY;
            self.waiter.ask(|_| true)?;
            if self.waiter.has_told() || self.hot.is_empty() {
                self.poll_after = POLL_EMPTY_MIN;
            } else if is_empty {
                self.poll_after = POLL_EMPTY_MAX.min(self.poll_after * 2);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn poll_hot(&mut self, done: &mut Vec<Completion>) -> u32 {
        let mut total = 0;
        let mut at = 0;
        while let Some(&peer) = self.hot.get(at) {
            let Some(connection) = self.peers.find(peer) else {
                self.hot.swap_remove(at);
                continue;
            };
            let taken = connection.poll(&mut self.intake, done);
            total += taken;
            if let Some(broken) = connection.fault {
                self.end(peer, misbehaved(broken));
            } else if taken > 0 {
                connection.empty_rounds = 0;
                connection.is_streaming = false;
            } else {
                connection.empty_rounds += 1;
                if connection.empty_rounds.is_multiple_of(WRITE_BACK_ROUNDS) {
                    self.quiet(at, peer);
                }
            }
            at += 1;
        }
        total
    }

    /// A hot connection has been empty for a while.
    #[cold]
    fn quiet(&mut self, at: usize, peer: Peer) {
        let Some(connection) = self.peers.find(peer) else { return };
        if let Some(link) = connection.link.as_mut() {
            link.write_back_all();
            if let Err(broken) = link.check() {
                return self.end(peer, misbehaved(broken));
            }
        }
        if connection.empty_rounds >= PARK_ROUNDS {
            connection.empty_rounds = PARK_ROUNDS;
            let mut hot = self.hot.iter().filter_map(|peer| self.peers.get(*peer));
            if hot.any(|another| another.empty_rounds < QUIET_ROUNDS * 8) {
                self.park_hot(at);
            }
        }
    }

    /// Polls a connection directly from now on.
    pub(crate) fn activate(&mut self, peer: Peer) {
        if !self.peers.find(peer).is_some_and(|it| it.link.is_some() && it.is_open() && !it.is_hot)
        {
            return;
        }
        if self.hot.len() >= HOT_MAX {
            self.make_room();
        }
        let Some(connection) = self.peers.find(peer) else { return };
        if let Some(link) = connection.link.as_mut() {
            link.unpark();
        }
        connection.is_hot = true;
        connection.empty_rounds = 0;
        self.hot.push(peer);
    }

    /// Activates a connection, now or, when somebody sleeps, in the round that follows.
    pub(crate) fn kick(&mut self, peer: Peer) {
        if self.is_sleeping {
            self.called.push_back(peer);
            self.chore();
        } else {
            self.activate(peer);
        }
    }

    fn make_room(&mut self) {
        let Self { hot, peers, .. } = self;
        let quietest = (0..hot.len())
            .filter_map(|at| Some((peers.find(hot[at])?.empty_rounds, at)))
            .max()
            .filter(|(rounds, _)| *rounds >= QUIET_ROUNDS);
        if let Some((_, at)) = quietest {
            self.park_hot(at);
        }
    }

    /// Parks one hot connection, unless something is there after all.
    fn park_hot(&mut self, at: usize) {
        let peer = self.hot[at];
        let Some(connection) = self.peers.find(peer) else { return };
        let Some(link) = connection.link.as_mut() else { return };
        link.park();
        before_second_look();
        if connection.has_work(self.intake.admission) {
            return self.peers.each_link(&[peer], Link::unpark);
        }
        connection.is_hot = false;
        self.hot.swap_remove(at);
        self.note_withheld(peer);
    }

    /// Remembers a connection whose requests admission keeps out.
    fn note_withheld(&mut self, peer: Peer) {
        let link = self.peers.find(peer).and_then(|it| it.link.as_ref());
        if !self.intake.admission && link.is_some_and(|link| link.is_ready(REQUESTS)) {
            self.withheld.insert(peer);
        }
    }

    pub(crate) fn change_admission(&mut self, open: bool) {
        if open == self.intake.admission {
            return;
        }
        self.intake.admission = open;
        if open && !self.withheld.is_empty() {
            self.called.extend(std::mem::take(&mut self.withheld));
            self.chore();
        }
    }

    pub(crate) fn change_admission_of(&mut self, peer: Peer, open: bool) {
        let Some(connection) = self.peers.find(peer) else { return };
        if std::mem::replace(&mut connection.is_admitted, open) != open && open {
            self.withheld.remove(&peer);
            self.called.push_back(peer);
            self.chore();
        }
    }

    /// Publishes the intent to sleep on all hot connections, then looks at them a second time.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        let is_idle = !self.guard.is_child()
            && !self.has_chores
            && !self.unrung.load(Ordering::Relaxed)
            && self.finished.is_empty()
            && self.intake.ferries.is_empty()
            && !self.waiter.has_told();
        if !is_idle {
            return false;
        }
        self.peers.each_link(&self.hot, Link::park);
        self.peers.each_link(&self.backlog, Link::want_space);
        if !self.later.is_empty() {
            self.wants_pins.park(&self.pins_wanted.flag);
        }
        before_second_look();
        self.tell_later();
        // Relaxed: what this thread has written.
        let found = self.second_look() | self.flush_backlog() | self.unrung.load(Ordering::Relaxed);
        if found || self.has_chores || !self.finished.is_empty() {
            self.peers.each_link(&self.hot, Link::unpark);
            self.end_sleep();
            return false;
        }
        for peer in self.hot.drain(..) {
            if let Some(connection) = self.peers.find(peer) {
                connection.is_hot = false;
            }
        }
        self.sleep_on_space();
        self.empty_rounds = 0;
        self.is_sleeping = true;
        self.has_chores = true; // Ends the sleep, in the next round.
        true
    }

    fn second_look(&mut self) -> bool {
        let mut found = false;
        for at in 0..self.hot.len() {
            let peer = self.hot[at];
            let Some(connection) = self.peers.find(peer) else { continue };
            found |= connection.has_work(self.intake.admission);
            self.note_withheld(peer);
        }
        found
    }

    pub(crate) fn end_sleep(&mut self) {
        self.is_sleeping = false;
        // Those that were asked to ring, and are looked at all the same.
        self.peers.each_link(&self.backlog, Link::look_for_space);
        self.wants_pins.unpark(&self.pins_wanted.flag);
    }
}
