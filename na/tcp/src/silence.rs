//! Peers that are cut off without a word.
//!
//! | a connection | is watched by | given up |
//! |---|---|---|
//! | that has nothing on its way | the kernel's keep-alive probes ([`crate::wire::Wire::connected`]) | within the bound |
//! | with unacknowledged bytes | this module: a look each sixth of the bound | within the bound |
//! | whose peer had no space left when it was cut off | the same; but the kernel asks for space ever more rarely | within the bound since Linux 6.15, else two minutes later at most |
//!
//! A peer that does not read for however long is not cut off: its kernel answers. So `TCP_USER_TIMEOUT`,
//! which gives a peer up that has no space, is not used.
//! A look finds a peer silent when the kernel has repeated itself, in vain, and has heard nothing for half
//! the bound; two such looks in a row end it. There are looks only while something was written since the
//! last one, or is unacknowledged.
//! A look costs a system call for each connection: a round makes some of them ([`crate::watched`]), and the next rounds the others.

use std::{io, os::fd::AsFd as _, time::Instant};

use crate::{
    context::{TcpContext, Timer},
    kernel::answers,
    wire::{Phase, Wire, pause},
};

/// Looks in a row that find a peer silent before it is given up.
const DOUBTS: u8 = 2;

impl TcpContext {
    /// Something was written to a connection: it is looked at until all is acknowledged.
    #[inline]
    pub(crate) fn watch(&mut self, wire: &mut Wire) {
        if !wire.is_watched && wire.phase == Phase::Open {
            wire.is_watched = true;
            self.watched.keys.push(wire.key);
            if !self.watched.is_timed {
                self.time_looks(Instant::now());
            }
        }
    }

    fn time_looks(&mut self, now: Instant) {
        self.watched.is_timed = true;
        let at = now + pause(self.shared.settings.bounds.silence_bound);
        self.timers.insert((at, Timer::Looks));
        // A sleeper does not know of this time.
        self.wake();
    }

    /// Looks at some of them.
    pub(crate) fn look(&mut self, now: Instant) {
        for key in self.watched.turn() {
            let Some(wire) = self.wires.take(key) else { continue };
            self.look_at(wire);
        }
        if self.watched.is_looking() {
            return;
        }
        self.watched.is_timed = false;
        if !self.watched.keys.is_empty() {
            self.time_looks(now);
        }
    }

    fn look_at(&mut self, mut wire: Box<Wire>) {
        // A socket that cannot be asked is broken, and the kernel says so.
        let found = answers(wire.stream.as_fd()).ok();
        let Some(found) = found.filter(|found| found.unacknowledged > 0) else {
            (wire.is_watched, wire.doubts) = (false, 0);
            return self.wires.put(wire.key, wire);
        };
        let is_silent =
            found.is_waiting && found.silence >= self.shared.settings.bounds.silence_bound / 2;
        wire.doubts = if is_silent { wire.doubts + 1 } else { 0 };
        if wire.doubts >= DOUBTS {
            // What the peer had sent comes first, as with any connection that is of no use any more.
            wire.broken_by = Some(io::ErrorKind::TimedOut);
            (wire.is_readable, wire.is_ending) = (true, true);
            self.list(&mut wire);
        } else {
            self.watched.keys.push(wire.key);
        }
        self.wires.put(wire.key, wire);
    }
}
