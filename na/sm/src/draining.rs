//! The end of a connection. What the peer had published is taken first, then its operations complete
//! with `PeerGone`, then `Gone` is the last word and everything is released.

use hg_na::{Completion, GoneReason, Peer};

use crate::{
    connection::{Connection, Phase},
    context::SmContext,
    fail,
    link::{Link, REQUESTS},
    receive::Intake,
    rendezvous::hello::Greeting,
};

/// The sentence of a connection that was closed in good order.
pub(crate) const GOODBYE: &str = "closed in good order";

/// Rounds of [`crate::receive::BURST`] that empty any ring.
const DRAIN_ROUNDS: u32 = crate::layout::SLOTS / crate::receive::BURST + 1;

impl SmContext {
    /// The connection is over; the next round drains it.
    pub(crate) fn end(&mut self, peer: Peer, reason: GoneReason) {
        let Some(connection) = self.peers.find(peer) else { return };
        match connection.phase {
            Phase::Draining(_) => return,
            Phase::Greeting => {
                // Nobody was told about this peer.
                let sentence = reason.to_string();
                tracing::debug!(%reason, "a connection ended before it opened");
                self.release(peer, Some(&sentence));
                return;
            }
            Phase::Idle | Phase::Starting | Phase::Waiting(_) | Phase::Connecting | Phase::Open => {
            }
        }
        // The level-triggered descriptors would be told about again and again.
        if let Some(socket) = &connection.socket {
            let _not_watched_is_fine = self.waiter.remove(socket.fd());
        }
        if let Some(watch) = &connection.watch {
            let _not_watched_is_fine = self.waiter.remove(watch.fd());
        }
        connection.enter(Phase::Draining(reason));
        self.ending.push(peer);
        self.chore();
    }

    /// Drains what has ended.
    pub(crate) fn drain(&mut self, done: &mut Vec<Completion>) {
        for peer in std::mem::take(&mut self.ending) {
            let Some(connection) = self.peers.find(peer) else { continue };
            let Phase::Draining(reason) = connection.phase.clone() else { continue };
            let is_trusted = !matches!(reason, GoneReason::Misbehaved(_));
            let mut waits = false;
            if is_trusted {
                take_rest(connection, &mut self.intake, done);
                waits = !self.intake.admission
                    && connection.link.as_ref().is_some_and(|link| link.is_ready(REQUESTS));
            }
            connection.fail_all(&reason, &mut self.finished);
            self.transfers.fail(peer, &reason, &mut self.finished);
            if waits {
                self.ending.push(peer); // Admission asks for the next round when it opens.
            } else {
                self.finish(peer, &reason);
            }
        }
    }

    /// Completes what is left, says the last word and releases everything.
    pub(crate) fn finish(&mut self, peer: Peer, reason: &GoneReason) {
        let Some(connection) = self.peers.find(peer) else { return };
        connection.fail_all(reason, &mut self.finished);
        self.transfers.fail(peer, reason, &mut self.finished);
        match reason {
            GoneReason::Forgotten => self.release(peer, Some(GOODBYE)),
            GoneReason::Misbehaved(_) => self.release(peer, Some(&reason.to_string())),
            _ => self.release(peer, None),
        }
        self.finished.push(Completion::Gone { peer, reason: reason.clone() });
    }

    /// Says goodbye to a peer, as the context is closed.
    pub(crate) fn close(&mut self, peer: Peer) {
        fail::point("close");
        self.release(peer, Some(GOODBYE));
    }

    /// Takes a connection out of every list that it costs something in, and drops it.
    fn release(&mut self, peer: Peer, last_words: Option<&str>) {
        self.untime(peer);
        let Some(connection) = self.peers.remove(peer) else { return };
        if connection.is_hot {
            self.hot.retain(|hot| *hot != peer);
        }
        if let Some(target) = &connection.target
            && self.by_target.get(target) == Some(&peer)
        {
            self.by_target.remove(target);
        }
        let bell = connection.link.as_ref().map(|link| &link.own.bell);
        if let Some(bell) = bell {
            let _not_watched_is_fine = self.waiter.remove(bell.fd());
        }
        if let Some(watch) = &connection.watch {
            let _not_watched_is_fine = self.waiter.remove(watch.fd());
        }
        if let Some(socket) = &connection.socket {
            let _not_watched_is_fine = self.waiter.remove(socket.fd());
            if let Some(words) = last_words {
                let words: String = words.chars().take(200).collect();
                let _unheard_is_fine = socket.send(&Greeting::Refuse(words).encode(), &[]);
            }
        }
        if let Some(board) = connection.board {
            self.shared.boards.remove(board);
            self.shared.regions.sweep();
        }
    }
}

/// Takes what the peer had published. Bounded: a peer that lives on and publishes more is not heard.
fn take_rest(connection: &mut Connection, intake: &mut Intake, done: &mut Vec<Completion>) {
    if let Some(link) = connection.link.as_mut() {
        Link::unpark(link);
    }
    for _ in 0..DRAIN_ROUNDS {
        // Answers that nobody can hold or wait for any more are left behind.
        if connection.poll(intake, done) == 0 {
            return;
        }
    }
}
