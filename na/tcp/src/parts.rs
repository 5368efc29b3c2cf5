//! Memory of messages that have come in part.
//!
//! What has come counts, not what was announced: memory that nothing was written to is none. With what waits for admission it may take
//! `max-held-mib`. While it takes more, those are sent away whose messages have stood still for [`STANDS`], the longest first. Whoever's message comes on
//! stays: of such there are as many as peers (`max-peers`), of 256 KiB at most each.

use std::{
    cmp::Reverse,
    mem::MaybeUninit,
    time::{Duration, Instant},
};

use hg_na::GoneReason;

use crate::{
    context::{TcpContext, Timer},
    part::Part,
    wire::Wire,
};

/// How long a message may stand still while memory is scarce.
const STANDS: Duration = Duration::from_secs(1);
/// Bytes in that time with which it does not.
const STEP: u64 = 4096;

impl TcpContext {
    /// Counts what a connection has received in part.
    #[inline]
    pub(crate) fn count_part(&mut self, wire: &mut Wire, now: Instant) {
        let bytes = wire.in_part();
        if bytes > 0 || wire.part.is_some() {
            self.uncount_part(wire.part);
            self.parts.bytes += bytes;
            let stands = wire.part.filter(|part| wire.received < part.received + STEP);
            let (since, received) = match stands {
                Some(part) => (part.since, part.received),
                None => (now, wire.received),
            };
            wire.part = (bytes > 0).then_some(Part { bytes, since, received });
        }
        if self.parts.bytes > 0 && !self.parts.is_timed && self.holds_too_much() {
            self.parts.is_timed = true;
            self.timers.insert((now + STANDS, Timer::Parts));
        }
    }

    /// It will never be whole, or is counted anew.
    pub(crate) fn uncount_part(&mut self, part: Option<Part>) {
        self.parts.bytes -= part.map_or(0, |part| part.bytes);
    }

    fn holds_too_much(&self) -> bool {
        self.parts.bytes + self.links.held() > self.shared.settings.bounds.max_held
    }

    /// Sends those away whose messages stand still, until there is memory again.
    pub(crate) fn look_at_parts(&mut self, now: Instant) {
        self.parts.is_timed = false;
        let standing = self.wires.iter().filter_map(|wire| {
            let part = wire.part.filter(|part| part.since + STANDS <= now)?;
            Some((Reverse(part.bytes), wire.key))
        });
        let mut standing: Vec<_> = standing.collect();
        standing.sort_unstable_by_key(|(bytes, _)| *bytes);
        for (_, key) in standing {
            if !self.holds_too_much() {
                return;
            }
            let Some(wire) = self.wires.take(key) else { continue };
            if has_unread(&wire) {
                self.wires.put(key, wire);
                continue;
            }
            tracing::warn!(peer = ?wire.remote, "a peer whose message does not come on is disconnected: memory is scarce");
            let why = "its message took too much memory and did not come on";
            self.lose(wire, &GoneReason::Exhausted(why.into()));
        }
        if self.holds_too_much() {
            self.parts.is_timed = true;
            self.timers.insert((now + STANDS, Timer::Parts));
        }
    }
}

/// Whether it stands still because this side has not read. One that is not read because it does not read itself stands still.
fn has_unread(wire: &Wire) -> bool {
    wire.may_read() && wire.stream.peek(&mut [MaybeUninit::uninit()]).is_ok_and(|len| len > 0)
}
