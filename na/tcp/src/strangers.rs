//! Accepting, and what a connection may cost before it has said who it is.
//!
//! A stranger costs a descriptor, its entry and a kilobyte at most, for `connect-timeout-ms` at most; how many there may be says
//! [`hg_na_link::strangers`].

use std::time::Instant;

use hg_na::GoneReason;
use hg_na_link::strangers::{ACCEPT_PAUSE, ACCEPTS};
use hg_na_parts::limits::is_shortage;
use mio::{Interest, net::TcpStream};

use crate::{
    context::{TcpContext, Timer},
    shortage::Next,
    wire::{Role, Wire},
};

impl TcpContext {
    /// Accepts what has come; says whether anything has.
    pub(crate) fn accept(&mut self, now: Instant) -> bool {
        let mut moved = false;
        for _ in 0..ACCEPTS {
            let Some(listener) = &self.listener else { break };
            let error = match listener.accept() {
                Ok((stream, _)) => {
                    moved = true;
                    self.shortage.is_over();
                    self.accepted(stream, now);
                    continue;
                }
                Err(error) => error,
            };
            if error.kind() == std::io::ErrorKind::WouldBlock {
                self.accepts = false;
                return moved;
            }
            if is_of_one_connection(&error) || is_shortage(&error) && self.shed_stranger(now) {
                continue;
            }
            let Some(listener) = &self.listener else { break };
            match self.shortage.refuse_next(listener, &error, now) {
                Next::Refused => moved = true,
                Next::Nobody => {
                    self.accepts = false;
                    return moved;
                }
                Next::Waits => {
                    tracing::warn!("connections cannot be accepted for now: {error}");
                    self.accepts = false;
                    self.timers.insert((now + ACCEPT_PAUSE, Timer::Accept));
                    return true;
                }
            }
        }
        moved
    }

    fn accepted(&mut self, stream: TcpStream, now: Instant) {
        let mut wire = self.wires.add(stream, Role::Acceptor);
        let (key, registry) = (wire.key, self.waiter.registry());
        let watched = wire
            .connected(self.shared.settings.silence_bound, self.shared.settings.unsent_max)
            .and_then(|()| registry.register(&mut wire.stream, key.token(), Interest::READABLE));
        if let Err(error) = watched {
            tracing::debug!("a connection was gone before it was accepted: {error}");
            return self.wires.release(key);
        }
        self.time(&mut wire, now + self.shared.settings.connect_timeout);
        wire.stranger_since = Some(now);
        // Its first word has mostly come with it.
        wire.is_readable = true;
        self.list(&mut wire);
        self.wires.put(wire);
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
