//! What is rare: events of the kernel, timers, memory given back. One call does what is due.

use std::{sync::atomic::Ordering, time::Instant};

use hg_na::{Completion, GoneReason, Peer, Told};
use hg_na_parts::FREE_NAME;
use nix::sys::epoll::EpollFlags;

use crate::{
    connection::Phase,
    context::{Moved, SmContext, TRIM_AFTER, handshake::reason_of},
    descriptor::{pair, split},
    link::{Link, misbehaved},
    os::closing::room,
};

/// Packets of a process that has ended which are heard at once: more than a socket holds, unless a child of that process has it and
/// goes on sending.
const LAST_PACKETS_MAX: u32 = 1024;

/// The listener's name in the wait set. (Connections have no index of 2^29 - 1.)
pub(crate) const LISTENER: u64 = FREE_NAME;
/// What to be told about a descriptor, beside hang-up and errors: each arrival once (doorbells).
pub(crate) const EDGE_IN: EpollFlags = EpollFlags::EPOLLIN.union(EpollFlags::EPOLLET);
/// What to be told as long as it is so (sockets, pidfds).
pub(crate) const LEVEL_IN: EpollFlags = EpollFlags::EPOLLIN.union(EpollFlags::EPOLLRDHUP);

/// Which descriptor of a connection an event belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The eventfd that the peer rings.
    Doorbell = 0,
    /// The socket of the handshake: a greeting, a goodbye, a hang-up.
    Socket = 1,
    /// The peer's process has ended.
    Process = 2,
}

/// Epoll's name for a descriptor: the peer's generation, its place (below 2^29, far more than there are descriptors), and
/// which descriptor.
pub(crate) fn token(peer: Peer, source: Source) -> u64 {
    pair((u64::from(peer.index()) << 2) | source as u64, peer.generation())
}

fn parse(token: u64) -> (Peer, Source) {
    let (low, high) = split(token);
    let source = match low & 3 {
        0 => Source::Doorbell,
        1 => Source::Socket,
        _ => Source::Process,
    };
    (Peer::new(low >> 2, high), source)
}

impl SmContext {
    /// Does what is due; says whether something moved.
    #[cold]
    pub(crate) fn chores(&mut self, now: Instant, done: &mut Vec<Completion>) -> Moved {
        if self.is_sleeping {
            self.end_sleep();
        }
        self.has_chores = false;
        self.has_leftovers = true;
        // Relaxed: what this thread has written.
        if self.unrung.swap(false, Ordering::Relaxed) {
            let all: Vec<Peer> = self.peers.iter().map(|it| it.peer).collect();
            self.peers.each_link(&all, Link::ring_again);
        }
        self.poll_kernel(now)?;
        let mut events = std::mem::take(&mut self.events);
        self.waiter.take(&mut events);
        let moved = !events.is_empty();
        for event in events.drain(..) {
            self.event(event, now);
        }
        self.events = events;
        self.expire(now);
        if self.listen_at.is_some_and(|at| at <= now) {
            self.listen_again(now);
        }
        if self.trim_at.is_some_and(|at| at <= now) {
            self.trim(now);
        }
        self.attend(now, done);
        if self.trim_at.is_none() && self.shared.regions.boards.has_leaving() {
            self.trim_at = Some(now + TRIM_AFTER);
        }
        self.schedule();
        Ok(moved)
    }

    fn event(&mut self, event: Told, now: Instant) {
        if event.token == LISTENER {
            return self.accept(now);
        }
        let (peer, source) = parse(event.token);
        match source {
            Source::Doorbell => self.rung(peer),
            Source::Socket if self.socket_event(peer) => self.rung(peer),
            Source::Socket => {}
            Source::Process => self.process_event(peer),
        }
    }

    fn rung(&mut self, peer: Peer) {
        self.activate(peer);
        self.look_for_space(peer);
    }

    fn process_event(&mut self, peer: Peer) {
        let Some(connection) = self.peers.find(peer) else { return };
        if connection.watch.as_ref().is_some_and(|watch| !watch.alive()) {
            // What it said before it ended comes first: its goodbye, above all.
            let _silent_or_over = (0..LAST_PACKETS_MAX).all(|_| self.socket_event(peer));
            self.end(peer, GoneReason::Exited);
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some((at, peer)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            let Some(connection) = self.peers.find(peer) else { continue };
            connection.timer = None;
            match connection.phase {
                Phase::Waiting(deadline) if deadline > now => self.try_connect(peer, now, deadline),
                Phase::Waiting(_) => {
                    self.end(peer, room(now).map_or_else(reason_of, |()| GoneReason::TimedOut));
                }
                Phase::Connecting | Phase::Greeting => self.end(peer, GoneReason::TimedOut),
                Phase::Idle | Phase::Starting | Phase::Open => {}
                Phase::Draining(_) | Phase::HungUp(_) => {}
            }
        }
    }

    /// Gives memory back that was not used for a while, or that nobody pins any more.
    fn trim(&mut self, now: Instant) {
        if self.shared.regions.boards.has_leaving() {
            // A system call for each: not in a round that is hot.
            self.shared.regions.boards.tidy();
            self.shared.regions.sweep();
        }
        for peer in std::mem::take(&mut self.dirty) {
            let Some(connection) = self.peers.find(peer) else { continue };
            connection.is_dirty = false;
            match connection.trim() {
                Some(Ok(true)) => connection.note_dirty(&mut self.dirty),
                Some(Ok(false)) | None => {}
                Some(Err(broken)) => self.end(peer, misbehaved(broken)),
            }
        }
        // What is used, or read or pinned by a peer, is looked at again, less eagerly.
        let is_used = !self.dirty.is_empty() || self.shared.regions.boards.has_leaving();
        self.trim_at = is_used.then(|| now + 10 * TRIM_AFTER);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{process::Command, sync::Arc};

    use hg_na::{Context as _, OpenOptions};

    use super::*;
    use crate::{
        domain::Shared,
        region::boards::tests::pinning,
        rendezvous::{process::ProcessWatch, socket::Socket},
        segment::Rings,
    };

    #[test]
    fn who_left_with_pins_is_asked_after_by_the_timer_alone() {
        let shared = Shared::open(&"sm://".parse().unwrap(), &OpenOptions::listening()).unwrap();
        let mut context = SmContext::open(&shared, 0, None).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let socket = Arc::new(Socket::pair().unwrap().0);
        let watch = Arc::new(ProcessWatch::of_child(&child, &socket));
        let (boards, own) = (&shared.regions.boards, Rings::create().unwrap().0);
        boards.remove(boards.add(own, pinning(7), watch).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        let (now, mut done) = (Instant::now(), Vec::new());
        for _ in 0..10_000 {
            context.progress(now, &mut done).unwrap();
        }
        assert!(shared.regions.boards.has_leaving(), "a system call in a hot round");
        assert_eq!(context.next_deadline(), Some(now + TRIM_AFTER));
        context.progress(now + TRIM_AFTER, &mut done).unwrap();
        assert!(!shared.regions.boards.has_leaving() && context.next_deadline().is_none());
    }

    #[test]
    fn tokens_survive_their_way_through_the_kernel() {
        for source in [Source::Doorbell, Source::Socket, Source::Process] {
            for peer in [Peer::new(0, 0), Peer::new((1 << 29) - 1, u32::MAX - 1)] {
                assert_eq!(parse(token(peer, source)), (peer, source));
            }
        }
    }
}
