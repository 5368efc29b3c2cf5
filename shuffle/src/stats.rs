//! What a shuffle has done, in numbers and in words.

use std::fmt;

use crate::{Hop as HopKind, inner::Inner, queue::Counts, rpc::Lane};

/// What a shuffle has done on one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Origin queues: sent inside this node.
    pub origin: Counts,
    /// Relay queues: passed on inside this node.
    pub relay: Counts,
    /// Network queues: sent and passed on to other nodes.
    pub network: Counts,
    /// Messages delivered here.
    pub delivered: u64,
    /// Messages that wait for delivery now; 0 while somebody is at them.
    pub undelivered: u64,
    /// Most messages that waited for delivery at a time.
    pub undelivered_max: u64,
}

impl Statistics {
    pub(crate) fn of(inner: &Inner) -> Self {
        let sum = |lane| {
            let hops = inner.hops.iter().filter(|hop| hop.lane == lane);
            hops.map(|hop| hop.counts()).fold(Counts::default(), Counts::plus)
        };
        let waiting = inner.mail.waiting().unwrap_or_default();
        Self {
            origin: sum(Lane::Origin),
            relay: sum(Lane::Relay),
            network: sum(Lane::Network),
            delivered: inner.mail.delivered(),
            undelivered: waiting.0,
            undelivered_max: waiting.1,
        }
    }

    /// What has happened since `before`: counts are of that time only; what is under way or waits now, and the most that
    /// ever did, stay as they are.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            origin: self.origin.since(before.origin),
            relay: self.relay.since(before.relay),
            network: self.network.since(before.network),
            delivered: self.delivered - before.delivered,
            ..*self
        }
    }

    /// The counts of one kind of queue; none for delivery.
    #[must_use]
    pub fn of_hop(&self, hop: HopKind) -> Counts {
        match hop {
            HopKind::Origin => self.origin,
            HopKind::Relay => self.relay,
            HopKind::Network => self.network,
            HopKind::Delivery => Counts::default(),
        }
    }
}

impl Counts {
    fn since(self, before: Self) -> Self {
        Self {
            messages: self.messages - before.messages,
            batches: self.batches - before.batches,
            early: self.early - before.early,
            waits: self.waits - before.waits,
            dropped: self.dropped - before.dropped,
            ..self
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            messages: self.messages + other.messages,
            batches: self.batches + other.batches,
            early: self.early + other.early,
            waits: self.waits + other.waits,
            unacknowledged: self.unacknowledged + other.unacknowledged,
            dropped: self.dropped + other.dropped,
            unanswered: self.unanswered + other.unanswered,
            waiting_max: self.waiting_max.max(other.waiting_max),
        }
    }
}

/// The state in words.
pub(crate) fn describe(inner: &Inner, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (me, size) = (inner.routes.me(), inner.routes.map().size());
    let (failed, closed) = (inner.is_failed(), inner.is_closed());
    writeln!(
        out,
        "shuffle `{}`, rank {me} of {size}, failed: {failed}, closed: {closed}",
        inner.name
    )?;
    match inner.mail.waiting() {
        Some((waiting, max)) => {
            let delivered = inner.mail.delivered();
            writeln!(out, "delivery: {delivered} delivered, {waiting} wait, {max} at most")?;
        }
        None => writeln!(
            out,
            "delivery: {} delivered; somebody holds its lock",
            inner.mail.delivered()
        )?,
    }
    for hop in &inner.hops {
        match hop.describe() {
            Some(line) => writeln!(out, "{line}")?,
            None => writeln!(out, "{:?} to rank {}: somebody holds its lock", hop.lane, hop.rank)?,
        }
    }
    Ok(())
}
