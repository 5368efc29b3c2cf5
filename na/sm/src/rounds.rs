//! Rounds of progress, and sleep: which connections are polled directly, and which ring.
//!
//! A connection is *hot* (polled in each round) from its first message, ring or posted receive on. It
//! is *parked* (its peer rings, epoll tells) when the context sleeps, when others are needed and it is
//! the least recently active one, or when it stayed empty for long while another was busy. Parking
//! follows the protocol of [`crate::wake`].
//! The kernel is asked only after many empty rounds, or many messages: see [`POLL_AFTER`].

use std::time::Instant;

use hg_na::{Completion, Error, Peer};

use crate::{
    connection::Connection,
    context::SmContext,
    link::{REQUESTS, misbehaved},
    receive::Sink,
    wake::before_second_look,
};

/// Connections that are hot at a time, unless more than these are really busy.
const HOT_MAX: usize = 16;
/// A connection that found nothing for so many rounds gives its place to another one.
const QUIET_ROUNDS: u32 = 256;
/// A connection that found nothing for so many rounds is parked while another one is busy.
const PARK_ROUNDS: u32 = 20_000;
/// After so many empty rounds positions are written back that a producer may wait for.
const SETTLE_ROUNDS: u32 = 64;
/// The kernel is asked for events after so many empty rounds in a row, or so many messages.
const POLL_AFTER: u32 = 256;

impl SmContext {
    #[inline(always)]
    pub(crate) fn round(
        &mut self,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<bool, Error> {
        if self.guard.is_child() {
            return Err(Error::Forked);
        }
        let before = done.len();
        let mut moved = false;
        if self.has_chores || self.waiter.has_ready() || self.due_at.is_some_and(|at| at <= now) {
            moved |= self.chores(now, done)?;
        }
        let taken = self.poll_hot(done);
        if taken == 0 {
            self.empty_rounds += 1;
            self.has_chores |= self.empty_rounds >= POLL_AFTER;
        } else {
            self.empty_rounds = 0;
            self.since_poll += taken;
            self.has_chores |= self.since_poll >= POLL_AFTER;
        }
        if self.has_leftovers() {
            moved |= self.hand_out(now, done);
        }
        Ok(moved || done.len() != before)
    }

    /// Whether something besides the rings has completions, or waits for the end of a round.
    #[inline(always)]
    fn has_leftovers(&self) -> bool {
        !self.sent.is_empty()
            || !self.finished.is_empty()
            || !self.backlog.is_empty()
            || (self.uses_bodies && self.trim_at.is_none())
    }

    fn hand_out(&mut self, now: Instant, done: &mut Vec<Completion>) -> bool {
        let moved = !self.backlog.is_empty() && self.flush_backlog();
        done.extend(self.sent.drain(..).map(crate::send::Sent::completion));
        done.append(&mut self.finished);
        if self.uses_bodies && self.trim_at.is_none() {
            self.trim_at = Some(now + crate::context::TRIM_AFTER);
            self.schedule();
        }
        moved
    }

    /// Asks the kernel, when it is time to.
    pub(crate) fn poll_kernel(&mut self) -> Result<(), Error> {
        if self.empty_rounds >= POLL_AFTER || self.since_poll >= POLL_AFTER {
            self.empty_rounds = 0;
            self.since_poll = 0;
            self.waiter.poll()?;
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
            let mut sink = Sink {
                done,
                pool: &self.pool,
                admission: self.admission,
                bodies: &mut self.uses_bodies,
            };
            match connection.poll(&mut sink) {
                Ok(0) => {
                    connection.empty_rounds += 1;
                    if connection.empty_rounds.is_multiple_of(SETTLE_ROUNDS) {
                        self.quiet(at, peer);
                    }
                }
                Ok(taken) => {
                    connection.empty_rounds = 0;
                    total += taken;
                }
                Err(broken) => self.end(peer, misbehaved(broken)),
            }
            if !self.admission {
                self.note_blocked(peer);
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
            link.settle();
            if let Err(broken) = link.check() {
                return self.end(peer, misbehaved(broken));
            }
        }
        if connection.empty_rounds >= PARK_ROUNDS {
            connection.empty_rounds = PARK_ROUNDS;
            if self.hot.len() > 1 && self.is_another_busy() {
                self.park_hot(at);
            }
        }
    }

    fn is_another_busy(&mut self) -> bool {
        let Self { hot, peers, .. } = self;
        hot.iter()
            .any(|peer| peers.find(*peer).is_some_and(|it| it.empty_rounds < QUIET_ROUNDS * 8))
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
            self.rung.push(peer);
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
        link.parked();
        if connection.has_work(self.admission) {
            look_again(connection);
            return;
        }
        connection.is_hot = false;
        self.hot.swap_remove(at);
        if !self.admission {
            self.note_blocked(peer);
        }
    }

    /// Remembers a connection whose requests admission keeps out.
    fn note_blocked(&mut self, peer: Peer) {
        let Some(connection) = self.peers.find(peer) else { return };
        let has_requests = connection.link.as_ref().is_some_and(|link| link.is_ready(REQUESTS));
        if has_requests && !connection.is_blocked {
            connection.is_blocked = true;
            self.blocked.push(peer);
        }
    }

    pub(crate) fn change_admission(&mut self, open: bool) {
        if open == self.admission {
            return;
        }
        self.admission = open;
        if !open {
            return;
        }
        for peer in std::mem::take(&mut self.blocked) {
            if let Some(connection) = self.peers.find(peer) {
                connection.is_blocked = false;
            }
            self.kick(peer);
        }
        if !self.ending.is_empty() {
            self.chore();
        }
    }

    fn flush_backlog(&mut self) -> bool {
        let mut moved = false;
        for peer in std::mem::take(&mut self.backlog) {
            if let Some(connection) = self.peers.find(peer) {
                connection.is_backlogged = false;
                moved |= self.flush(peer);
            }
        }
        moved
    }

    /// Publishes the intent to sleep on all hot connections, then looks at them a second time.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        let is_idle = !self.guard.is_child()
            && !self.has_chores
            && self.sent.is_empty()
            && self.finished.is_empty()
            && self.transfers.is_empty()
            && !self.waiter.has_ready();
        if !is_idle {
            return false;
        }
        let Self { hot, backlog, peers, .. } = self;
        for peer in hot.iter() {
            if let Some(link) = peers.find(*peer).and_then(|it| it.link.as_mut()) {
                link.park();
            }
        }
        for peer in backlog.iter() {
            if let Some(link) = peers.find(*peer).and_then(|it| it.link.as_mut()) {
                link.want_space();
            }
        }
        before_second_look();
        let found = self.second_look() | self.flush_backlog();
        if found || self.has_chores || !self.finished.is_empty() {
            self.stay_awake();
            return false;
        }
        for peer in std::mem::take(&mut self.hot) {
            if let Some(connection) = self.peers.find(peer) {
                connection.is_hot = false;
            }
        }
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
            if let Some(link) = connection.link.as_mut() {
                link.parked();
            }
            found |= connection.has_work(self.admission);
            if !self.admission {
                self.note_blocked(peer);
            }
        }
        found
    }

    fn stay_awake(&mut self) {
        let Self { hot, peers, .. } = self;
        for peer in hot.iter() {
            if let Some(connection) = peers.find(*peer) {
                look_again(connection);
            }
        }
        self.end_sleep();
    }

    pub(crate) fn end_sleep(&mut self) {
        self.is_sleeping = false;
        let Self { backlog, peers, .. } = self;
        for peer in backlog.iter() {
            if let Some(link) = peers.find(*peer).and_then(|it| it.link.as_mut()) {
                link.look_for_space();
            }
        }
    }
}

fn look_again(connection: &mut Connection) {
    if let Some(link) = connection.link.as_mut() {
        link.unpark();
    }
}
