//! Messages that wait for space in a peer's rings: who looks for it, and who is told of room.
//!
//! ```text
//!              queued              PATIENCE rounds in vain, or a sleep
//! Unwanted ------------> Polled ----------------------------------------> Rung
//!    ^   nothing queued    |  ^          the peer rings, or a post moves    |
//!    +---------------------+  +---------------------------------------------+
//! ```
//! A peer that takes what it is sent is looked at in each round, since a doorbell costs it a system call. One that has taken
//! nothing for long is asked to ring ([`crate::wake`]), and costs nothing until it does: a process that is stopped never
//! does. Only a ring that holds something is left to its consumer: what else a message waits for, nobody would ring about.

use std::{collections::VecDeque, sync::atomic::Ordering};

use hg_na::Peer;

use crate::{connection::Space, context::SmContext, link::misbehaved, wake::before_second_look};

/// Looks in a row that have found no space after which the peer is to ring: some ten microseconds.
const PATIENCE: u32 = 1024;

impl SmContext {
    /// Publishes what is queued for a peer; what remains waits for space. Says whether something moved.
    pub(crate) fn flush(&mut self, to: Peer) -> bool {
        let Some(connection) = self.peers.find(to).filter(|it| it.is_open()) else { return false };
        self.has_leftovers = true;
        let had_several = connection.queues.iter().map(VecDeque::len).sum::<usize>() > 1;
        match connection.flush(&mut self.finished) {
            Ok(moved) => {
                if moved {
                    connection.looks = 0;
                    if connection.has_touched() {
                        connection.note_dirty(&mut self.dirty);
                    }
                }
                let has_room = connection.tell_room(&mut self.finished);
                if connection.space == Space::Unwanted || moved {
                    self.look_for_space(to);
                }
                // Whoever has posted knows of his own. A sleeper waits for those before it, and their peer does not ring any more.
                // Nor does one who could not be rung. Relaxed: what this thread has written.
                let is_unrung = self.unrung.load(Ordering::Relaxed);
                if (has_room || moved && had_several || is_unrung) && self.is_sleeping {
                    self.chore();
                }
                moved
            }
            Err(broken) => {
                self.end(to, misbehaved(broken));
                true
            }
        }
    }

    /// Looks for space by itself, if anything waits for it.
    pub(crate) fn look_for_space(&mut self, peer: Peer) {
        let Some(connection) = self.peers.find(peer) else { return };
        let has_queued = connection.has_queued();
        if connection.space == Space::Polled || connection.space == Space::Unwanted && !has_queued {
            return;
        }
        if connection.space == Space::Rung {
            (connection.space, connection.looks) = (Space::Unwanted, 0);
            if let Some(link) = connection.link.as_mut() {
                link.look_for_space();
            }
        }
        if has_queued {
            connection.space = Space::Polled;
            self.backlog.push(peer);
            self.has_leftovers = true;
            if self.is_sleeping {
                self.chore(); // The sleeper has not published that it waits for space.
            }
        }
    }

    /// Tries those that are looked at; says whether something moved.
    pub(crate) fn flush_backlog(&mut self) -> bool {
        let mut moved = false;
        for peer in std::mem::take(&mut self.backlog) {
            let Some(connection) = self.peers.find(peer) else { continue };
            connection.space = Space::Unwanted;
            connection.looks += 1;
            let is_late = connection.looks >= PATIENCE;
            moved |= self.flush(peer) || is_late && self.leave_to_bell(peer);
        }
        moved
    }

    /// Asks a peer that takes nothing to ring, and looks a second time; says whether something moved.
    fn leave_to_bell(&mut self, peer: Peer) -> bool {
        let Some(connection) = self.peers.find(peer) else { return false };
        if connection.space != Space::Polled || !connection.is_behind_others() {
            return false;
        }
        let Some(link) = connection.link.as_mut() else { return false };
        link.want_space();
        before_second_look();
        connection.space = Space::Rung;
        let last = self.backlog.pop();
        debug_assert_eq!(last, Some(peer), "the last one that was put there");
        self.flush(peer)
    }

    /// The sleep begins: those that were asked are left to their bells for good.
    pub(crate) fn sleep_on_space(&mut self) {
        let Self { backlog, peers, .. } = self;
        backlog.retain(|peer| {
            let Some(connection) = peers.find(*peer) else { return false };
            let is_left = connection.is_behind_others();
            if is_left {
                connection.space = Space::Rung;
            }
            !is_left
        });
    }
}
