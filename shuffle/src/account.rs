//! What became of every message that one rank had to do with.

use std::sync::atomic::Ordering;

use serde::Serialize;

use crate::{Hop as HopKind, inner::Inner};

/// What became of every message that one rank sent, passed on or was to deliver. All in all, as many came as went:
///
/// `sent + copies + received = delivered + undelivered + messages`, with `received` and `messages` those of all ways,
///
/// and of each way `messages = acknowledged + waiting + dropped + unanswered`. After [`Shuffle::shutdown`] nothing
/// waits, and what a rank that lives acknowledged to another one is what that one received.
///
/// [`Shuffle::shutdown`]: crate::Shuffle::shutdown
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Account {
    /// Messages taken from the application by `enqueue`, by destination.
    pub sent: Vec<u64>,
    /// Of those, the ones that were delivered for certain: they were sent before the last complete `flush_all`.
    pub confirmed: Vec<u64>,
    /// Of those, the ones that were certainly not delivered: they were dropped here.
    pub dropped: Vec<u64>,
    /// Copies of broadcasts that were made here.
    pub copies: u64,
    /// Messages delivered here.
    pub delivered: u64,
    /// Messages that have come and wait for delivery; after a shutdown, that were dropped.
    pub undelivered: u64,
    /// The queues, and what came from the rank at their other end.
    pub ways: Vec<Way>,
}

/// One queue to another rank, and what came from that one's queue of the same kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Way {
    /// The other rank.
    pub rank: u32,
    /// The kind of queue.
    pub hop: HopKind,
    /// Whether the other rank has failed: then what it had acknowledged may be lost with it.
    pub is_gone: bool,
    /// Messages that were to go this way, this rank's own and others'.
    pub messages: u64,
    /// Those that the other rank took in.
    pub acknowledged: u64,
    /// Those that wait here or are under way.
    pub waiting: u64,
    /// Those that were not sent on: the other rank did not get them.
    pub dropped: u64,
    /// Those that the other rank may have taken in, or not: it has never said so.
    pub unanswered: u64,
    /// Messages taken in from the other rank.
    pub received: u64,
}

impl Account {
    pub(crate) fn of(inner: &Inner) -> Self {
        let count = |counts: &[std::sync::atomic::AtomicU64]| -> Vec<u64> {
            counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
        };
        let sent = count(&inner.sent);
        let ranks = (0..).take(sent.len());
        let is_known = inner.hops.iter().any(|hop| hop.counts().dropped > 0);
        let dropped = if is_known {
            ranks.map(|to| inner.own_dropped(to)).collect()
        } else {
            vec![0; sent.len()]
        };
        Self {
            confirmed: count(&inner.confirmed),
            dropped,
            sent,
            copies: inner.copies.load(Ordering::Relaxed),
            delivered: inner.mail.delivered(),
            undelivered: inner.mail.undelivered(),
            ways: Self::ways(inner),
        }
    }

    /// Whether as many messages came as went.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        let ways = |figure: fn(&Way) -> u64| self.ways.iter().map(figure).sum::<u64>();
        let came = self.sent.iter().sum::<u64>() + self.copies + ways(|way| way.received);
        let went = self.delivered + self.undelivered + ways(|way| way.messages);
        came == went
            && self.ways.iter().all(|way| {
                way.messages == way.acknowledged + way.waiting + way.dropped + way.unanswered
            })
    }

    /// Messages that were dropped here, this rank's own and others', and those that may have arrived or not since the
    /// next hop never said so.
    #[must_use]
    pub fn unfinished(&self) -> u64 {
        let ways = self.ways.iter().map(|way| way.dropped + way.unanswered + way.waiting);
        self.undelivered + ways.sum::<u64>()
    }

    fn ways(inner: &Inner) -> Vec<Way> {
        let way = |hop: &crate::hop::Hop| {
            let (counts, turned_away) = (hop.counts(), hop.turned_away());
            let gone = counts.dropped + counts.unanswered + counts.unacknowledged;
            Way {
                rank: hop.rank,
                hop: hop.lane.hop(),
                is_gone: inner.is_gone(hop.rank),
                messages: counts.messages + turned_away,
                acknowledged: counts.messages - gone,
                waiting: counts.unacknowledged,
                dropped: counts.dropped + turned_away,
                unanswered: counts.unanswered,
                received: inner.received((hop.rank, hop.lane)),
            }
        };
        inner.hops.iter().map(way).collect()
    }
}
