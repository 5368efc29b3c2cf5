//! The end of a connection. What the peer had published is taken first, then its operations complete with `PeerGone`,
//! then `HungUp` is told and everything is released. `Gone` is the last word: at once, or when the requests that wait
//! for admission were taken.

use std::time::Instant;

use hg_na::{Completion, GoneReason, Peer};
use hg_na_parts::WaitSet;

use super::partings::size_of;
use crate::{
    arena::FERRY_OFFSET,
    connection::{Connection, Phase},
    context::SmContext,
    layout::REQUESTS_SLOTS,
    link::Link,
    receive::Intake,
    rendezvous::packet::{GOODBYE, Packet},
};

/// Rounds of [`crate::receive::BURST`] that empty any ring.
const DRAIN_ROUNDS: u32 = REQUESTS_SLOTS / crate::receive::BURST + 1;

/// Bytes that the last requests of one peer can have: the lanes of an arena, and a ring.
const KEPT_MAX: usize = FERRY_OFFSET as usize + REQUESTS_SLOTS as usize * hg_na::INLINE_MAX;

/// Why a connection ends, as the other side reads it after "it refused the connection".
pub(crate) fn for_the_other_side(reason: &GoneReason) -> String {
    match reason {
        GoneReason::Refused(why) => why.to_string(),
        GoneReason::Exhausted(why) => format!("it has no room for another one: {why}"),
        GoneReason::Misbehaved(why) => format!("it says that this side broke the protocol: {why}"),
        other => other.to_string(),
    }
}

impl SmContext {
    /// The connection is over; the next round drains it.
    pub(crate) fn end(&mut self, peer: Peer, reason: GoneReason) {
        let Some(connection) = self.peers.find(peer) else { return };
        if connection.phase.over().is_some() {
            return;
        }
        if connection.phase == Phase::Greeting {
            // Nobody was told about this peer.
            tracing::debug!(%reason, "a connection ended before it opened");
            return self.release(peer, Some(&for_the_other_side(&reason)));
        }
        connection.unwatch(&self.waiter);
        connection.phase = Phase::Draining(reason);
        self.called.push_back(peer);
        self.chore();
    }

    /// Does for those who called what their phase asks for: connects, polls, drains what has ended, and lets go of who
    /// waited for admission. What a peer keeps meanwhile is its last requests: no descriptor, no mapping.
    pub(crate) fn attend(&mut self, now: Instant, done: &mut Vec<Completion>) {
        // Who cannot connect calls again, and is drained at once.
        while let Some(peer) = self.called.pop_front() {
            let Self { peers, intake, .. } = self;
            let Some(connection) = peers.find(peer) else { continue };
            match connection.phase.clone() {
                Phase::Draining(reason) => {
                    if !matches!(reason, GoneReason::Misbehaved(_)) {
                        take_rest(connection, intake, done);
                    }
                    self.finish(peer, reason);
                }
                Phase::HungUp(reason) => {
                    if connection.is_admitted && intake.admission {
                        done.append(&mut connection.parting);
                        self.bury(peer, reason);
                    } else {
                        self.withheld.insert(peer);
                    }
                }
                Phase::Starting => {
                    self.try_connect(peer, now, now + self.shared.settings.connect_timeout);
                }
                Phase::Open => self.activate(peer),
                Phase::Idle | Phase::Waiting(_) | Phase::Connecting | Phase::Greeting => {}
            }
        }
    }

    /// Completes what is left and tells the hang-up; the end, too, unless requests wait for admission.
    pub(crate) fn finish(&mut self, peer: Peer, reason: GoneReason) {
        let Some(connection) = self.peers.find(peer) else { return };
        let is_over = connection.parting.is_empty();
        connection.fail_all(&reason, &mut self.finished);
        self.finished.push(Completion::HungUp { peer, reason: reason.clone() });
        let was_open = connection.link.is_some();
        // A hang-up of an open connection without a word is a death ([`ProcessWatch::hung_up`]).
        let last_words = match &reason {
            GoneReason::Forgotten => Some(GOODBYE.to_owned()),
            GoneReason::Closed | GoneReason::Exited | GoneReason::Refused(_) => None,
            GoneReason::Misbehaved(_) => Some(for_the_other_side(&reason)),
            other => was_open.then(|| for_the_other_side(other)),
        };
        self.dismantle(peer, last_words.as_deref());
        if is_over {
            self.bury(peer, reason);
        } else if let Some(connection) = self.peers.find(peer) {
            connection.phase = Phase::HungUp(reason);
            connection.parting_bytes = size_of(&connection.parting);
            self.partings.keep(peer, connection.parting_bytes);
            self.withheld.insert(peer);
            self.bound_partings();
        }
    }

    /// Whoever left most behind loses it where all together left too much.
    fn bound_partings(&mut self) {
        while let Some(greediest) = self.partings.greediest(self.shared.settings.max_held) {
            tracing::warn!(
                "requests wait for admission in too much memory: those of the ended peer whose take most are dropped"
            );
            self.withheld.remove(&greediest);
            let Some(connection) = self.peers.find(greediest) else { return };
            let Some(reason) = connection.phase.over().cloned() else { return };
            self.bury(greediest, reason);
        }
    }

    /// Says the last word.
    pub(crate) fn bury(&mut self, peer: Peer, reason: GoneReason) {
        self.release(peer, None);
        self.finished.push(Completion::Gone { peer, reason });
    }

    /// Takes a connection out of every list that it costs something in, and drops it.
    pub(crate) fn release(&mut self, peer: Peer, last_words: Option<&str>) {
        self.dismantle(peer, last_words);
        if let Some(connection) = self.peers.remove(peer) {
            self.partings.let_go(peer, connection.parting_bytes);
        }
    }

    /// Gives back all that a connection has of the system, and its address: who is there next is somebody else.
    fn dismantle(&mut self, peer: Peer, last_words: Option<&str>) {
        self.untime(peer);
        let Some(connection) = self.peers.find(peer) else { return };
        if let Some(target) = connection.target.take()
            && self.by_target.get(&target) == Some(&peer)
        {
            self.by_target.remove(&target);
        }
        if std::mem::take(&mut connection.is_hot) {
            self.hot.retain(|hot| *hot != peer);
        }
        connection.unwatch(&self.waiter);
        if let Some(link) = connection.link.take() {
            self.waiter.remove(link.own.bell.fd());
        }
        connection.own = None;
        connection.watch = None;
        connection.maps.clear();
        let (socket, board) = (connection.socket.take(), connection.board.take());
        if let (Some(socket), Some(words)) = (socket, last_words) {
            let words: String = words.chars().take(200).collect();
            let _unheard_is_fine = socket.send(&Packet::Refuse(words).encode(), &[]);
        }
        if let Some(board) = board {
            self.shared.regions.boards.remove(board);
            self.shared.regions.sweep();
        }
    }
}

impl Connection {
    /// The level-triggered descriptors would be told about again and again.
    fn unwatch(&self, waiter: &WaitSet) {
        let pidfd = self.watch.as_ref().and_then(|watch| watch.fd());
        for fd in self.socket.iter().map(|socket| socket.fd()).chain(pidfd) {
            waiter.remove(fd);
        }
    }
}

/// Takes what the peer had published. Requests that are not admitted are kept with the connection.
fn take_rest(connection: &mut Connection, intake: &mut Intake, done: &mut Vec<Completion>) {
    if let Some(link) = connection.link.as_mut() {
        Link::unpark(link);
    }
    if intake.admission && connection.is_admitted {
        return empty(connection, intake, done);
    }
    let before = (intake.admission, connection.is_admitted);
    (intake.admission, connection.is_admitted) = (true, true);
    let mut rest = Vec::new();
    empty(connection, intake, &mut rest);
    (intake.admission, connection.is_admitted) = before;
    let mut bytes = 0;
    for completion in rest {
        if let Completion::Unexpected { message, .. } = &completion {
            bytes += message.len();
            connection.parting.push(completion);
        } else {
            done.push(completion);
        }
    }
    // They lay in its rings and its arena, so they are bounded by both; a peer that claims more is not heard.
    if bytes > KEPT_MAX {
        connection.parting.clear();
    }
}

/// Takes all that there is. Bounded: a peer that lives on and publishes more is not heard.
fn empty(connection: &mut Connection, intake: &mut Intake, done: &mut Vec<Completion>) {
    for _ in 0..DRAIN_ROUNDS {
        if connection.poll(intake, done) == 0 {
            return;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_is_refused_reads_whose_fault_it_is() {
        let read = |reason: GoneReason| {
            GoneReason::Refused(for_the_other_side(&reason).into()).to_string()
        };
        let start = "it refused the connection (it has no room for another one: ";
        assert_eq!(read(GoneReason::Exhausted("open files".into())), format!("{start}open files)"));
        let start = "it refused the connection (it says that this side broke the protocol: ";
        assert_eq!(read(GoneReason::Misbehaved("a bad tag".into())), format!("{start}a bad tag)"));
        let plain = read(GoneReason::Refused("versions".into()));
        assert_eq!(plain, "it refused the connection (versions)");
    }
}
