//! What happens when a rank is gone: it is noted once, everybody is told, and nobody waits any more.

use std::{
    sync::{PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use hg::CallOptions;

use crate::{
    Error, Failure,
    hop::Hop,
    inner::Inner,
    lock::locked,
    rpc::{Lane, failed},
};

impl Inner {
    /// Notes that a rank has failed, and tells everybody else: those here tell the nodes that they represent, and so on.
    pub(crate) fn fail_and_tell(&self, rank: u32, lane: Option<Lane>, why: String) {
        if !self.fail(rank, lane, why.clone()) {
            return;
        }
        for hop in self.hops_to_tell(rank) {
            let (engine, peer) = hop.target();
            drop(engine.notify(failed, peer, (self.from, rank, lane, why.clone())));
        }
    }

    /// Tells it once more, and waits until it was heard: whoever ends next must not be taken for the cause.
    pub(crate) fn tell_failure(&self, within: Duration) {
        let Some(failure) = locked(&self.failure).clone() else { return };
        let Failure { rank, why, .. } = failure;
        let lane = Lane::of_hop(failure.hop);
        let told: Vec<_> = self
            .hops_to_tell(rank)
            .map(|hop| {
                let (engine, peer) = hop.target();
                let options = CallOptions::within(within);
                engine.call_with(failed, peer, (self.from, rank, lane, why.clone()), options)
            })
            .collect();
        // Those that are gone themselves need not hear it.
        told.into_iter().for_each(|call| drop(call.wait()));
    }

    fn hops_to_tell(&self, dead: u32) -> impl Iterator<Item = &Hop> {
        self.hops.iter().filter(move |hop| hop.lane != Lane::Relay && hop.rank != dead)
    }

    /// A rank has failed: notes it, once. Whether it was news.
    pub(crate) fn fail(&self, rank: u32, lane: Option<Lane>, why: String) -> bool {
        // Whoever finds a hop failed from now on asks why, and waits for this lock.
        let mut failure = locked(&self.failure);
        for hop in self.hops.iter().filter(|hop| hop.rank == rank) {
            hop.fail();
        }
        if failure.is_some() || self.is_closed() || self.is_parting.load(Ordering::SeqCst) {
            return false;
        }
        // Before what is in doubt is counted: nothing is sent any more but what is being sent.
        self.is_failed.store(true, Ordering::SeqCst);
        let in_doubt = self.in_doubt(rank);
        let hop = lane.map_or(crate::Hop::Delivery, Lane::hop);
        tracing::warn!(shuffle = self.name, rank, %hop, in_doubt, why, "a rank has failed");
        *failure = Some(Failure { rank, hop, in_doubt, why });
        drop(failure);
        self.failed.notify_all();
        for hop in &self.hops {
            hop.wake_waiters();
        }
        self.meeting.fail();
        true
    }

    /// Why nothing goes any more. What has ended without a shutdown is told why in a moment.
    pub(crate) fn error(&self) -> Error {
        let limit = Instant::now() + WORD;
        let mut failure = locked(&self.failure);
        loop {
            let left = limit.saturating_duration_since(Instant::now());
            if let Some(failure) = &*failure {
                return Error::Failed(failure.clone());
            }
            if self.is_closed() || left.is_zero() {
                return Error::Closed;
            }
            let waited = self.failed.wait_timeout(failure, left);
            failure = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits a moment for the word of who has failed; if none comes, it was this one.
    pub(crate) fn wait_for_failure(&self, rank: u32, why: &str) {
        let limit = Instant::now() + WORD;
        let mut failure = locked(&self.failure);
        while failure.is_none() {
            let left = limit.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(failure);
                self.fail_and_tell(rank, Some(Lane::Origin), why.to_owned());
                return;
            }
            let waited = self.failed.wait_timeout(failure, left);
            failure = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Messages of this rank whose way leads through a rank, since the last complete `flush_all`.
    fn in_doubt(&self, dead: u32) -> u64 {
        let map = self.routes.map();
        let (node, own) = (map.node_of(dead), self.routes.node());
        let passes = |to: u32| {
            let towards = map.node_of(to);
            if to == dead {
                return true;
            }
            if towards == own {
                return false;
            }
            let is_sender = node == own && self.routes.representative(towards) == dead;
            let is_receiver = node == towards && self.routes.counterpart(towards) == dead;
            is_sender || is_receiver
        };
        let counts = (0..).zip(&self.unconfirmed).filter(|(to, _)| passes(*to));
        let single: u64 = counts.map(|(_, count)| u64::from(count.load(Ordering::Relaxed))).sum();
        single + self.unconfirmed_broadcasts.load(Ordering::Relaxed)
    }
}

/// How long a rank whose meeting has failed waits to be told why.
const WORD: Duration = Duration::from_secs(1);
