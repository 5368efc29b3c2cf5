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
//! A look costs a system call for each connection: a round makes [`LOOKS_MAX`] of them, and the next rounds the others.

use std::{
    io,
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use crate::{
    context::{TcpContext, Timer},
    kernel::answers,
    wire::{Phase, Wire, WireKey},
};

/// Looks in a row that find a peer silent before it is given up.
const DOUBTS: u8 = 2;

/// Connections that one round looks at.
const LOOKS_MAX: usize = 32;

/// Time between two looks.
pub(crate) fn pause(bound: Duration) -> Duration {
    bound / 6
}

/// Connections that something was written to.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    keys: Vec<WireKey>,
    /// Those that the present look has not come to.
    due: Vec<WireKey>,
    is_timed: bool,
}

impl Watched {
    /// Whose turn it is in this round; with nobody left over, a new look begins.
    fn turn(&mut self) -> Vec<WireKey> {
        if self.due.is_empty() {
            self.due = std::mem::take(&mut self.keys);
        }
        self.due.split_off(self.due.len().saturating_sub(LOOKS_MAX))
    }

    /// Whether the next round has to go on.
    pub(crate) fn is_looking(&self) -> bool {
        !self.due.is_empty()
    }
}

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
        let at = now + pause(self.shared.settings.silence_bound);
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
            return self.wires.put(wire);
        };
        let is_silent = found.is_waiting && found.silence >= self.shared.settings.silence_bound / 2;
        wire.doubts = if is_silent { wire.doubts + 1 } else { 0 };
        if wire.doubts >= DOUBTS {
            // What the peer had sent comes first, as with any connection that is of no use any more.
            wire.broken_by = Some(io::ErrorKind::TimedOut);
            (wire.is_readable, wire.is_ending) = (true, true);
            self.list(&mut wire);
        } else {
            self.watched.keys.push(wire.key);
        }
        self.wires.put(wire);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(index: u32) -> WireKey {
        WireKey { index, generation: 0 }
    }

    #[test]
    fn a_round_looks_at_some_and_a_look_at_each_once() {
        let count = 10 * u32::try_from(LOOKS_MAX).unwrap() + 1;
        let mut watched = Watched { keys: (0..count).map(key).collect(), ..Watched::default() };
        for _ in 0..2 {
            let (mut seen, mut rounds) = (Vec::new(), 0);
            loop {
                let turn = watched.turn();
                assert!(!turn.is_empty() && turn.len() <= LOOKS_MAX);
                rounds += 1;
                // They are watched on: for the next look.
                watched.keys.extend(&turn);
                seen.extend(turn);
                if !watched.is_looking() {
                    break;
                }
            }
            seen.sort_unstable();
            assert!(seen.into_iter().eq((0..count).map(key)) && rounds == 11);
        }
    }
}
