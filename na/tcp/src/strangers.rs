//! Accepting, and what a connection may cost before it has said who it is.
//!
//! A stranger costs a descriptor, its entry and a kilobyte at most, for `connect-timeout-ms` at most. Past
//! [`STRANGERS_MAX`] of them, or when descriptors run out, the one that has waited longest makes room,
//! unless all have come within [`PATIENCE`]: a crowd of peers that all start at once is no attack.

use std::time::{Duration, Instant};

use hg_na::GoneReason;
use mio::{Interest, net::TcpStream};
use nix::errno::Errno;

use crate::{
    context::{TcpContext, Timer},
    wire::{Role, Wire, WireKey},
};

/// Connections accepted in a round.
const ACCEPTS: usize = 64;
/// Connections that have not said who they are, before the oldest are closed.
const STRANGERS_MAX: usize = 1024;
/// How long a stranger is let alone in any case.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a listener rests that found no free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

impl TcpContext {
    /// Accepts what has come; says whether anything has.
    pub(crate) fn accept(&mut self, now: Instant) -> bool {
        let mut moved = false;
        for _ in 0..ACCEPTS {
            let Some(listener) = &self.listener else { break };
            match listener.accept() {
                Ok((stream, _)) => {
                    moved = true;
                    self.accepted(stream, now);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    self.accepts = false;
                    return moved;
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) if is_of_room(&error) && self.shed_stranger(now) => {}
                Err(error) => {
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
            .connected(self.shared.settings.silence_bound)
            .and_then(|()| registry.register(&mut wire.stream, key.token(), Interest::READABLE));
        if let Err(error) = watched {
            tracing::debug!("a connection was gone before it was accepted: {error}");
            return self.wires.release(key);
        }
        self.time(&mut wire, now + self.shared.settings.connect_timeout);
        (wire.is_stranger, self.strangers) = (true, self.strangers + 1);
        // Its first word has mostly come with it.
        wire.is_readable = true;
        self.list(&mut wire);
        self.wires.put(wire);
        if self.strangers > STRANGERS_MAX {
            self.shed_stranger(now);
        }
    }

    /// A connection has said who it is, or has come to nothing.
    pub(crate) fn no_stranger(&mut self, wire: &mut Wire) {
        if std::mem::take(&mut wire.is_stranger) {
            self.strangers -= 1;
        }
    }

    /// Closes the stranger that has waited longest; says whether there was one to be closed.
    fn shed_stranger(&mut self, now: Instant) -> bool {
        // Strangers all wait equally long, so the one that came first ends first.
        let until = now + self.shared.settings.connect_timeout;
        let Some(key) = self.oldest_stranger(until - PATIENCE.min(until - now)) else {
            return false;
        };
        if let Some(wire) = self.wires.take(key) {
            tracing::warn!(peer = ?wire.remote, "a connection that says nothing is closed: too many do");
            self.lose(wire, &GoneReason::TimedOut);
        }
        true
    }

    fn oldest_stranger(&mut self, before: Instant) -> Option<WireKey> {
        let Self { timers, wires, .. } = self;
        let early = timers.iter().take_while(|(at, _)| *at <= before);
        early
            .filter_map(|(_, timer)| match timer {
                Timer::Wire(key) => Some(*key),
                _ => None,
            })
            .find(|key| wires.find(*key).is_some_and(|wire| wire.is_stranger))
    }
}

/// What `accept` says when there is no descriptor, or no memory, for one more.
fn is_of_room(error: &std::io::Error) -> bool {
    let errors = [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM];
    error.raw_os_error().is_some_and(|number| errors.contains(&Errno::from_raw(number)))
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
