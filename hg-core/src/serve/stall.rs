//! Who is told when an origin has its share, and nothing of it ends: most often its handlers wait for calls of their own, which need
//! places here again, and will never have them.

use std::{
    fmt,
    time::{Duration, Instant},
};

use hg_na::Peer;

use super::Serves;

/// So long nothing ends before it is told; twice as long the next time, so that nobody fills a log.
pub const STALL_AFTER: Duration = Duration::from_secs(5);

/// One of the origins that have their share, and since when nothing of it has ended.
#[derive(Debug)]
pub(super) struct Watch {
    of: Option<(Peer, Instant)>,
    is_told: bool,
    after: Duration,
}

impl Default for Watch {
    fn default() -> Self {
        Self { of: None, is_told: false, after: STALL_AFTER }
    }
}

impl Watch {
    /// A request has ended.
    pub(super) fn handle_end(&mut self, origin: Peer) {
        if self.of.is_some_and(|(peer, _)| peer == origin) {
            self.of = None;
        }
    }
}

/// An origin of which nothing ends, and nothing more is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stalled {
    /// The origin.
    pub origin: Peer,
    /// Its requests in service.
    pub requests: u64,
    /// For how long nothing of it has ended.
    pub during: Duration,
}

impl fmt::Display for Stalled {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, during, .. } = self;
        write!(
            out,
            "none of {requests} requests of one origin has ended for {} s, and no more are taken from it before one does: a handler \
             that waits for a call of its own keeps its place (`Builder::in_service_max`)",
            during.as_secs()
        )
    }
}

impl Serves {
    /// The time; gives what is to be told.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<Stalled> {
        let due = self.next_notice(now).is_some_and(|at| at <= now);
        let (origin, since) = self.watch.of.filter(|_| due)?;
        self.watch.is_told = true;
        self.watch.after = self.watch.after.saturating_mul(2);
        let during = now.saturating_duration_since(since);
        Some(Stalled { origin, requests: self.shares.of(origin), during })
    }

    /// When [`Serves::handle_timeout`] wants to be called.
    pub fn next_notice(&mut self, now: Instant) -> Option<Instant> {
        // One that does not take its answers is shut, too.
        let has_share = |peer: &Peer| !self.shares.admits(*peer, 1);
        if self.watch.of.is_none_or(|(peer, _)| !self.shut.contains_key(&peer) || !has_share(&peer))
        {
            let most = self.full.last().map(|(_, peer)| *peer);
            self.watch.of = most.filter(has_share).map(|peer| (peer, now));
            self.watch.is_told = false;
        }
        let (_, since) = self.watch.of.filter(|_| !self.watch.is_told)?;
        since.checked_add(self.watch.after)
    }
}
