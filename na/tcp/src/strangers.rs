//! Accepting, and what a connection may cost before it has said who it is.
//!
//! A stranger costs a descriptor, its entry and a kilobyte at most, for `connect-timeout-ms` at most; how many there may be says
//! [`hg_na_link::strangers`].

use std::{
    io::{ErrorKind, Read as _},
    net::Shutdown,
    os::fd::AsFd as _,
    time::Instant,
};

use hg_na::GoneReason;
use hg_na_link::strangers::{ACCEPT_PAUSE, ACCEPTS, Turn};
use hg_na_parts::limits::{descriptors_are_scarce, is_scarce, is_shortage, lowest};
use nix::libc::{MSG_NOSIGNAL, SOCK_CLOEXEC, SOCK_NONBLOCK};
use socket2::Socket;

use crate::{
    context::{TcpContext, Timer},
    greeting::Greeting,
    wire::{ARRIVALS, Role, Wire},
};

impl TcpContext {
    /// Accepts what has come; says whether anything has.
    pub(crate) fn accept(&mut self, now: Instant) -> bool {
        let mut moved = false;
        for _ in 0..ACCEPTS {
            let Some(listener) = &self.listener else { break };
            let next = match self.scarcity.take_waiting() {
                // Of the numbers that were free, it has the last.
                Some(stream) => Ok(lowered(stream)),
                None => {
                    let accepted = listener.socket.accept4(SOCK_NONBLOCK | SOCK_CLOEXEC);
                    accepted.map(|(stream, _)| stream)
                }
            };
            let mut stream = match next {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.accepts = false;
                    return moved;
                }
                Err(error) if is_of_one_connection(&error) => continue,
                Err(error) if is_shortage(&error) && self.shed_stranger(now) => continue,
                Err(error) => {
                    tracing::warn!("connections cannot be accepted for now: {error}");
                    return self.rest(now);
                }
            };
            let mut has_room = !is_scarce(stream.as_fd());
            if !has_room && self.shed_stranger(now) {
                (stream, has_room) = (lowered(stream), true);
            }
            match self.scarcity.came(now, stream, has_room) {
                Turn::Welcomed(stream) => self.accepted(stream, now),
                Turn::Refused(stream) => refuse(stream),
                Turn::Waits => {
                    tracing::warn!("connections wait: {}", descriptors_are_scarce());
                    return self.rest(now);
                }
            }
            moved = true;
        }
        moved
    }

    /// The listener is looked at again after a while.
    fn rest(&mut self, now: Instant) -> bool {
        self.accepts = false;
        self.timers.insert((now + ACCEPT_PAUSE, Timer::Accept));
        true
    }

    fn accepted(&mut self, stream: Socket, now: Instant) {
        let key = self.wires.reserve();
        let mut wire = Box::new(Wire::new(key, stream, Role::Acceptor));
        let watched = wire
            .connected(self.shared.settings.bounds.silence_bound, self.shared.settings.unsent_max)
            .and_then(|()| self.waiter.add(wire.stream.as_fd(), key.number(), ARRIVALS));
        if let Err(error) = watched {
            tracing::debug!("a connection was gone before it was accepted: {error}");
            return self.wires.release(key);
        }
        self.time(&mut wire, now + self.shared.settings.bounds.connect_timeout);
        wire.stranger_since = Some(now);
        // Its first word has mostly come with it.
        wire.is_readable = true;
        self.list(&mut wire);
        self.wires.put(wire.key, wire);
        if self.strangers.came(now, key) {
            self.shed_stranger(now);
        }
    }

    /// A connection has said who it is, or has come to nothing.
    pub(crate) fn no_stranger(&mut self, wire: &mut Wire) {
        if let Some(since) = wire.stranger_since.take() {
            self.strangers.went(since, wire.key);
        }
    }

    /// Closes the stranger that has waited longest; says whether there was one to be closed.
    fn shed_stranger(&mut self, now: Instant) -> bool {
        let Some(key) = self.strangers.to_shed(now) else { return false };
        if let Some(wire) = self.wires.take(key) {
            tracing::warn!(peer = ?wire.remote, "a connection that says nothing is closed: too many do");
            self.lose(wire, &GoneReason::TimedOut);
        }
        true
    }
}

/// The same connection by the lowest number that is free.
fn lowered(stream: Socket) -> Socket {
    lowest(stream.as_fd()).map_or(stream, Socket::from)
}

/// The sentence is a courtesy: a peer that does not take it sees the hang-up.
fn refuse(mut stream: Socket) {
    let why = descriptors_are_scarce();
    tracing::debug!("a connection is refused: {why}");
    // What is left unread would have the kernel reset the connection.
    let _greeting = stream.read(&mut [0; 2048]);
    let _written = stream.send_with_flags(&Greeting::Refuse(why).encode(), MSG_NOSIGNAL);
    let _shut = stream.shutdown(Shutdown::Write);
}

/// What `accept` says about a connection that has failed already (accept(2), "Error handling").
fn is_of_one_connection(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{
        ConnectionAborted, ConnectionReset, HostUnreachable, Interrupted, NetworkDown,
        NetworkUnreachable,
    };
    matches!(
        error.kind(),
        ConnectionAborted
            | ConnectionReset
            | HostUnreachable
            | Interrupted
            | NetworkDown
            | NetworkUnreachable
    )
}
