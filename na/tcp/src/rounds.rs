//! Rounds of progress, and sleep: what is asked of the kernel, and when.
//!
//! What was posted leaves at the beginning of the next round, in one system call for each connection:
//! that delays nobody, since whoever posts makes progress next or asks to sleep, which flushes too.
//!
//! Sockets are edge-triggered and always watched, so that a sleep never misses anything. While a
//! context spins, the connection that was read last is read directly, once nothing has come for
//! [`SETTLED`] rounds: a context that sleeps after each batch does not pay for an empty read, and one
//! that spins loses some nanoseconds. Where messages come in batches it is read when the next one is due
//! ([`crate::pace`]). The kernel is asked for the others every [`ASK_MIN`] rounds, up to [`ASK_MAX`] while it has
//! nothing to tell, and less often between batches;
//! while several connections are busy, in every one, and none is read without being told.

use std::time::Instant;

use hg_na::{Completion, Error, GoneReason};
use hg_na_link::Lane;

use crate::{
    context::{ASK_MIN, CROWD_ROUNDS, LISTENER, TcpContext, Timer},
    link::State,
    wire::{Phase, WireKey},
};

/// Rounds without bytes after which the hot connection is read without being told to.
const SETTLED: u32 = 2;
/// Most of them.
const ASK_MAX: u32 = 256;
/// Bytes read in a round, about, before the caller has its turn.
const ROUND_BYTES: usize = 512 << 10;
/// Withheld messages handed out in a round.
const ADMITTED_MAX: usize = 4096;

impl TcpContext {
    /// One round.
    pub(crate) fn round(
        &mut self,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<bool, Error> {
        if self.shared.guard.is_child() {
            return Err(Error::Forked);
        }
        self.is_sleeping = false;
        let mut moved = false;
        if self.inbox.has_any() {
            self.open_parcels(now);
            moved = true;
        }
        if !self.starting.is_empty() {
            self.start_links(now);
            moved = true;
        }
        if self.shall_ask() {
            self.since_ask = 0;
            self.waiter.ask(|_| true)?;
            self.ask_after = ASK_MAX.min(self.ask_after * 2);
            if !self.waiter.has_told() && self.quiet >= SETTLED && self.pace.is_time(self.quiet) {
                // A look, too: what came since the last one would have been told.
                self.pace.missed(self.quiet);
            }
        }
        if self.waiter.has_told() {
            if self.sort_told(now) {
                self.ask_after = ASK_MIN;
            }
            moved = true;
        }
        moved |= self.flush_dirty();
        moved |= self.read_round(now);
        if self.timers.first().is_some_and(|(at, _)| *at <= now) {
            self.ring_timers(now);
            moved = true;
        }
        if self.links.has_admissible() {
            self.admit();
            moved = true;
        }
        moved |= !self.finished.is_empty();
        done.append(&mut self.finished);
        Ok(moved)
    }

    fn shall_ask(&mut self) -> bool {
        self.since_ask += 1;
        self.crowd = self.crowd.saturating_sub(1);
        let is_settled = self.quiet >= SETTLED;
        self.since_ask >= self.ask_after.max(self.pace.ask_after())
            || (is_settled && (self.hot.is_none() || self.crowd > 0))
    }

    /// Sorts what the kernel told; says whether that was news: anything but bytes of the hot connection.
    fn sort_told(&mut self, now: Instant) -> bool {
        let mut told = std::mem::take(&mut self.told);
        self.waiter.take(&mut told);
        let mut is_news = false;
        for told in told.drain(..) {
            let key = WireKey::of(told.token);
            is_news |= self.hot != Some(key) || told.ending;
            if told.token == LISTENER {
                self.accepts = true;
                continue;
            }
            let Some(mut wire) = self.wires.take(key) else { continue };
            if wire.phase == Phase::Connecting {
                self.try_connected(wire, now);
                continue;
            }
            if told.readable || told.ending {
                wire.is_readable = true;
                wire.is_ending |= told.ending;
                self.list(&mut wire);
                if self.hot.is_some_and(|hot| hot != key) {
                    self.crowd = CROWD_ROUNDS;
                }
            }
            if told.writable && wire.is_blocked {
                wire.is_blocked = false;
                self.soil(&mut wire);
            }
            self.wires.put(wire.key, wire);
        }
        self.told = told;
        is_news
    }

    /// Writes what waits; says whether anything left.
    pub(crate) fn flush_dirty(&mut self) -> bool {
        let mut moved = false;
        let mut dirty = std::mem::take(&mut self.dirty);
        for key in dirty.drain(..) {
            let Some(mut wire) = self.wires.take(key) else { continue };
            wire.is_dirty = false;
            moved |= self.flush(&mut wire);
            self.wires.put(wire.key, wire);
        }
        // What is soiled again has its turn in the next round.
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
        moved
    }

    fn read_round(&mut self, now: Instant) -> bool {
        let mut moved = false;
        if self.accepts {
            moved |= self.accept(now);
        }
        let (mut bytes, before) = (0, self.finished.len());
        if self.listed.is_empty() {
            if self.quiet >= SETTLED
                && self.pace.is_time(self.quiet)
                && self.crowd == 0
                && let Some(hot) = self.hot
            {
                match self.wires.take(hot) {
                    Some(wire) => bytes += self.read_wire(wire, now),
                    None => self.hot = None,
                }
                if bytes == 0 {
                    self.pace.missed(self.quiet);
                }
            }
        } else {
            moved = true;
            let (mut listed, mut turns) = (std::mem::take(&mut self.listed), 0);
            for &key in &listed {
                turns += 1;
                let Some(mut wire) = self.wires.take(key) else { continue };
                wire.is_listed = false;
                bytes += self.read_wire(wire, now);
                if bytes >= ROUND_BYTES {
                    break;
                }
            }
            // Those that had no turn have it before those that had one.
            listed.drain(..turns);
            listed.append(&mut self.listed);
            self.listed = listed;
        }
        if bytes > 0 {
            self.pace.came(self.quiet, self.finished.len().saturating_sub(before));
            self.quiet = 0;
        } else {
            self.quiet = self.quiet.saturating_add(1);
        }
        moved || bytes > 0
    }

    fn ring_timers(&mut self, now: Instant) {
        while let Some((at, timer)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            match timer {
                Timer::Wire(key) => {
                    let Some(mut wire) = self.wires.take(key) else { continue };
                    wire.deadline = None;
                    if wire.phase == Phase::Open && wire.is_used() {
                        self.wires.put(wire.key, wire);
                    } else if wire.phase == Phase::Connecting {
                        self.try_next(wire, std::io::ErrorKind::TimedOut.into(), now);
                    } else {
                        self.lose(wire, &GoneReason::TimedOut);
                    }
                }
                Timer::Link(peer) => self.link_is_late(peer, now),
                Timer::Looks => self.look(now),
                Timer::Accept => self.accepts = true,
                Timer::Flush => self.flushing.is_timed = false,
                Timer::Parts => self.look_at_parts(now),
            }
        }
        if self.watched.is_looking() {
            // The next round goes on, at once.
            self.timers.insert((now, Timer::Looks));
        }
    }

    /// Hands out what came while admission was closed.
    fn admit(&mut self) {
        let Self { links, wires, finished, dirty, .. } = self;
        links.admit(ADMITTED_MAX, finished, |link, len| {
            let mut open = match link.way.state {
                State::Open { wire, side } => wires.find(wire).map(|wire| (wire, side)),
                _ => None,
            };
            let wire = open.as_mut().map(|(wire, side)| (&mut **wire, *side));
            link.way.release(Lane::Unexpected, len, wire);
            if let Some((wire, _)) = open
                && wire.outbound.has_frames()
            {
                wire.soil(dirty);
            }
        });
    }

    /// Whether a sleep would be ended by whatever comes: flushes, and looks for what is left to do.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        if self.shared.guard.is_child() {
            return false;
        }
        if !self.dirty.is_empty() {
            self.flush_dirty();
        }
        let has_work = !self.dirty.is_empty()
            || !self.listed.is_empty()
            || !self.finished.is_empty()
            || !self.starting.is_empty()
            || self.accepts
            || self.links.has_admissible()
            || self.inbox.has_any()
            || self.waiter.has_told();
        self.is_sleeping = !has_work;
        self.is_sleeping
    }
}
