//! Connections that end: those that are idle, by agreement, and those of ends that are gone.
//!
//! ```text
//! one end                             the other one
//! idle: Leave --------------------->  at rest where that one says: Left, and sends by it no more
//! at rest there still: closes it <--  otherwise Stay, or records: both go on by it
//! ```
//! Both may have proposed it at once, and left: whoever hears `Left` then closes it, whatever was written since.

use std::time::{Duration, Instant};

use hg_na::{GoneReason, Op, OpId, Peer, QUIET};

use super::{Connection, Ending, Port, State, Way};
use crate::wire::{Kind, Positions};

impl<N> Port<N> {
    pub(super) fn close_left(&mut self, from: Peer, at: u32) {
        self.forget_idle(from, at, State::Forgotten);
        self.context.forget(from);
        self.stats.reclaimed += 1;
    }

    /// Whether nothing is on its way, and both streams are still where the other side says that they are.
    pub(super) fn is_at(&self, at: u32, bytes: &[u8]) -> bool {
        let link = &self.links[at as usize];
        let Positions { written, consumed } = link.positions();
        link.is_quiet()
            && Positions::read(bytes) == Ok(Positions { written: consumed, consumed: written })
    }

    /// The other side would close an idle connection.
    pub(super) fn asked_to_leave(&mut self, from: Peer, at: u32, bytes: &[u8]) {
        if !self.is_at(at, bytes) {
            return;
        }
        let link = &self.links[at as usize];
        let said = link.positions();
        let op = Op::SendControl { to: from, message: link.says(Kind::Left, said) };
        if self.context.post(QUIET | u64::from(at), op).is_ok() {
            self.links[at as usize].incoming.tell();
            self.forget_idle(from, at, State::Left(said));
        }
    }

    /// The other side uses a connection no more that is wanted here: it is to go on.
    pub(super) fn stay(&mut self, peer: Peer, at: u32, left: Positions) {
        let message = self.links[at as usize].says(Kind::Stay, left);
        let op = Op::SendControl { to: peer, message };
        let link = &mut self.links[at as usize];
        match self.context.post(QUIET | u64::from(at), op) {
            Ok(_) => drop(link.incoming.tell()),
            Err(_) => link.stays = Some((peer, left)),
        }
    }

    /// The other side has sent something after all: the connection is as good as before.
    pub(super) fn go_on(&mut self, peer: Peer, at: u32) {
        self.set_state(peer, at, State::Open);
        let link = &mut self.links[at as usize];
        if matches!(link.way, Way::None) {
            link.way = Way::Peer(peer);
        }
        // What was written meanwhile has waited for the end of this connection, which is not to come now.
        self.push(at);
    }

    /// This side sends by this connection no more.
    fn forget_idle(&mut self, peer: Peer, at: u32, state: State) {
        self.latest = None;
        self.set_state(peer, at, state);
        self.find_other_way(peer, at);
        self.links[at as usize].out.rest(&mut self.pool);
    }

    /// Of a connection that has been accepted.
    pub(super) fn set_state(&mut self, peer: Peer, at: u32, state: State) {
        self.connections.insert(peer, Connection { link: at, state, hello: None });
    }

    fn find_other_way(&mut self, peer: Peer, at: u32) {
        let link = &mut self.links[at as usize];
        if matches!(link.way, Way::Peer(way) if way == peer) {
            let mut open =
                self.connections.iter().filter(|(_, it)| it.link == at && it.state == State::Open);
            link.way = open.next().map_or(Way::None, |(other, _)| Way::Peer(*other));
            link.is_blocked = false;
        }
        // Also when that was so before: what the other side has said since may have made it wide again.
        if matches!(link.way, Way::None) {
            link.out.narrow();
            self.widened -= link.incoming.narrow();
        }
    }

    pub(super) fn gone(&mut self, peer: Peer, reason: GoneReason) {
        self.latest = None;
        let Some(connection) = self.connections.remove(&peer) else { return };
        let at = connection.link;
        let link = &mut self.links[at as usize];
        if link.ending.is_some() {
            return;
        }
        let nothing_lost = match connection.state {
            State::Open => false,
            // The other end makes no progress: as long as there is nothing to tell it, that does no harm.
            State::Unaccepted => reason == GoneReason::TimedOut && link.out.is_quiet(),
            State::Left(_) => reason == GoneReason::Closed,
            State::Forgotten => true,
        };
        if nothing_lost {
            // What was written meanwhile has waited for this.
            self.find_other_way(peer, at);
            self.push(at);
        } else {
            // What it has sent by another connection comes before it is gone.
            link.ending = Some(reason);
            self.ending.push(Ending { link: at, rounds: ENDING_ROUNDS, until: None });
        }
    }

    /// What was to greet an end has come back without having left: nobody has accepted the connection, which is told to be gone next.
    #[cold]
    pub(super) fn came_back(&mut self, at: u32, hello: OpId) {
        let mut made = self.connections.values_mut();
        let made = made.find(|it| it.link == at && it.hello == Some(hello));
        if let Some(made) = made.filter(|it| it.state == State::Open) {
            made.state = State::Unaccepted;
        }
    }

    /// What those had sent of whom a connection has ended has come by now, if a round was empty or after so many. Whether any ends.
    #[cold]
    pub(super) fn end_those_ending(&mut self, now: Instant, is_empty: bool) -> bool {
        let mut any = false;
        for mut ending in std::mem::take(&mut self.ending) {
            let until = *ending.until.get_or_insert(now + ENDING);
            if !is_empty && ending.rounds > 0 {
                ending.rounds -= 1;
                self.ending.push(ending);
                continue;
            }
            let at = ending.link;
            let link = &mut self.links[at as usize];
            // Who closes one closes all: the last one ends the link. One that stays is of no use, as what was sent by the other may be lost.
            let has_left = matches!(link.ending, Some(GoneReason::Closed | GoneReason::Exited));
            if has_left && now < until && self.connections.values().any(|it| it.link == at) {
                self.ending.push(Ending { rounds: ENDING_ROUNDS, ..ending });
            } else if let Some(reason) = link.ending.take() {
                self.end_link(at, reason);
                any = true;
            }
        }
        any
    }

    /// Proposes to close connections over which nothing has gone since the last time.
    #[cold]
    pub(super) fn look_for_idle(&mut self, now: Instant) {
        (self.idle_at, self.late) = (Some(now + self.limits.idle), 0);
        for (peer, connection) in &self.connections {
            let link = &mut self.links[connection.link as usize];
            if connection.state != State::Open
                || link.is_active
                || link.out.is_waiting()
                || link.kept > 0
            {
                continue;
            }
            let message = link.says(Kind::Leave, link.positions());
            let op = Op::SendControl { to: *peer, message };
            // Refused, it is proposed again later.
            if self.context.post(QUIET | u64::from(connection.link), op).is_ok() {
                link.incoming.tell();
            }
        }
        for link in &mut self.links {
            if !std::mem::take(&mut link.is_active) {
                link.out.rest(&mut self.pool);
            }
        }
    }
}

/// Rounds for what a lost end has sent by other connections, as long as rounds find anything.
const ENDING_ROUNDS: u32 = 64;
/// How long the end that has closed one connection, or has exited, may take to close the others: both come at once, or with what TCP repeats.
const ENDING: Duration = Duration::from_secs(2);
