//! The end of a connection. What the peer had published is taken first, then its operations complete
//! with `PeerGone`, then `Gone` is the last word and everything is released.

use hg_na::{Completion, GoneReason, Peer};

use crate::{
    arena::FERRY_OFFSET,
    connection::{Connection, Phase},
    context::SmContext,
    fail,
    layout::SLOTS,
    link::Link,
    receive::Intake,
    rendezvous::hello::Greeting,
};

/// The sentence of a connection that was closed in good order.
pub(crate) const GOODBYE: &str = "closed in good order";

/// Rounds of [`crate::receive::BURST`] that empty any ring.
const DRAIN_ROUNDS: u32 = crate::layout::SLOTS / crate::receive::BURST + 1;

/// Bytes that the last requests of one peer can have: the lanes of an arena, and a ring.
const KEPT_MAX: usize = FERRY_OFFSET as usize + SLOTS as usize * hg_na::INLINE_MAX;

/// Why a connection ends, as the other side reads it after "it refused the connection".
fn for_the_other_side(reason: &GoneReason) -> String {
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
        match connection.phase {
            Phase::Draining(_) => return,
            Phase::Greeting => {
                // Nobody was told about this peer.
                let sentence = for_the_other_side(&reason);
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

    /// Drains what has ended. While admission is closed, a peer's last requests are kept, and nothing else
    /// of it: no descriptor, no mapping.
    pub(crate) fn drain(&mut self, done: &mut Vec<Completion>) {
        for peer in std::mem::take(&mut self.ending) {
            let Self { peers, intake, .. } = self;
            let Some(connection) = peers.find(peer) else { continue };
            let Phase::Draining(reason) = connection.phase.clone() else { continue };
            if !matches!(reason, GoneReason::Misbehaved(_)) {
                take_rest(connection, intake, done);
                if intake.admission {
                    done.append(&mut connection.parting);
                } else {
                    keep_requests(connection, intake);
                }
            }
            connection.fail_all(&reason, &mut self.finished);
            self.views.fail(peer, &reason, &mut self.finished);
            self.transfers.fail(peer, &reason, &mut self.finished);
            if connection.parting.is_empty() {
                self.finish(peer, &reason);
            } else {
                self.dismantle(peer, None);
                self.ending.push(peer); // Admission asks for the next round when it opens.
            }
        }
    }

    /// Completes what is left, says the last word and releases everything.
    pub(crate) fn finish(&mut self, peer: Peer, reason: &GoneReason) {
        let Some(connection) = self.peers.find(peer) else { return };
        connection.fail_all(reason, &mut self.finished);
        self.views.fail(peer, reason, &mut self.finished);
        self.transfers.fail(peer, reason, &mut self.finished);
        match reason {
            GoneReason::Forgotten => self.release(peer, Some(GOODBYE)),
            GoneReason::Misbehaved(_) => self.release(peer, Some(&for_the_other_side(reason))),
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
        self.dismantle(peer, last_words);
        if let Some(connection) = self.peers.remove(peer)
            && let Some(target) = &connection.target
            && self.by_target.get(target) == Some(&peer)
        {
            self.by_target.remove(target);
        }
    }

    /// Gives back all that a connection has of the system.
    fn dismantle(&mut self, peer: Peer, last_words: Option<&str>) {
        self.untime(peer);
        let Some(connection) = self.peers.find(peer) else { return };
        if std::mem::take(&mut connection.is_hot) {
            self.hot.retain(|hot| *hot != peer);
        }
        let (link, socket) = (connection.link.take(), connection.socket.take());
        let (watch, board) = (connection.watch.take(), connection.board.take());
        connection.own = None;
        // Before the last words: who hears them looks at what is still mapped.
        connection.maps.clear();
        if let Some(link) = &link {
            let _not_watched_is_fine = self.waiter.remove(link.own.bell.fd());
        }
        if let Some(watch) = &watch {
            let _not_watched_is_fine = self.waiter.remove(watch.fd());
        }
        if let Some(socket) = &socket {
            let _not_watched_is_fine = self.waiter.remove(socket.fd());
            if let Some(words) = last_words {
                let words: String = words.chars().take(200).collect();
                let _unheard_is_fine = socket.send(&Greeting::Refuse(words).encode(), &[]);
            }
        }
        if let Some(board) = board {
            self.shared.boards.remove(board, watch);
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

/// Takes the last requests of a peer although admission is closed. They lie in its rings and its arena,
/// so they are bounded by both; a peer that claims more is not heard.
fn keep_requests(connection: &mut Connection, intake: &mut Intake) {
    let mut kept = std::mem::take(&mut connection.parting);
    intake.admission = true;
    take_rest(connection, intake, &mut kept);
    intake.admission = false;
    let len = |completion: &Completion| match completion {
        Completion::Unexpected { message, .. } => message.len(),
        _ => 0,
    };
    if kept.iter().map(len).sum::<usize>() <= KEPT_MAX {
        connection.parting = kept;
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
