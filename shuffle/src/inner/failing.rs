//! What happens when a rank is gone: it is noted once, everybody is told, and nobody waits any more.

use std::{
    collections::BTreeSet,
    sync::{
        PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use hg::CallOptions;

use super::{Inner, side::block_on};
use crate::{
    Error, Failure,
    hop::Hop,
    lock::locked,
    route::Came,
    rpc::{Lane, failed},
};

impl Inner {
    /// Notes that a rank has failed, and tells everybody else: those here tell the nodes that they represent, and so on.
    pub(crate) fn fail_and_tell(&self, rank: u32, lane: Option<Lane>, why: String) {
        if !self.fail(rank, lane, why.clone()) {
            return;
        }
        for hop in self.hops_to_tell(rank) {
            let (engine, peer) = hop.ends();
            drop(engine.notify(failed, peer, (hop.from, rank, lane, why.clone())));
        }
    }

    /// Tells it once more, and waits until it was heard: whoever ends next must not be taken for the cause.
    pub(crate) fn tell_failure(&self, within: Duration) {
        let Some(failure) = locked(&self.failure).failure.clone() else { return };
        let Failure { rank, why, .. } = failure;
        let lane = Lane::of_hop(failure.hop);
        let told: Vec<_> = self
            .hops_to_tell(rank)
            .map(|hop| {
                let (engine, peer) = hop.ends();
                let options = CallOptions::within(within);
                engine.call_with(failed, peer, (hop.from, rank, lane, why.clone()), options)
            })
            .collect();
        // Those that are gone themselves need not hear it.
        told.into_iter().for_each(|call| drop(block_on(call)));
    }

    fn hops_to_tell(&self, dead: u32) -> impl Iterator<Item = &Hop> {
        self.hops.iter().filter(move |hop| hop.lane != Lane::Relay && hop.rank != dead)
    }

    /// A rank has failed: notes it, once. Whether it was news. The word of a peer may name anybody.
    pub(crate) fn fail(&self, rank: u32, lane: Option<Lane>, why: String) -> bool {
        if rank >= self.routes.map().size() {
            return false;
        }
        // Whoever finds a hop failed from now on asks why, and waits for this lock.
        let mut state = locked(&self.failure);
        for hop in self.hops.iter().filter(|hop| hop.rank == rank) {
            hop.fail();
        }
        self.settled.wake();
        // An end in good order makes no failure of who is gone. After a failure, another one makes more messages doubtful until all is over.
        let is_ending = self.is_closed() && state.failure.is_none();
        if is_ending || self.is_parting.load(Ordering::SeqCst) {
            return false;
        }
        state.ranks.insert(rank);
        // Before what is in doubt is counted: nothing is sent any more but what is being sent.
        self.is_failed.store(true, Ordering::SeqCst);
        let (in_doubt, dropped) = self.in_doubt(&state.ranks);
        if let Some(failure) = &mut state.failure {
            (failure.in_doubt, failure.dropped) = (in_doubt, dropped);
            return false;
        }
        let hop = lane.map_or(crate::Hop::Delivery, Lane::hop);
        tracing::warn!(shuffle = self.name, rank, %hop, in_doubt, dropped, why, "a rank has failed");
        state.failure = Some(Failure { rank, hop, in_doubt, dropped, why });
        drop(state);
        self.failed.notify_all();
        for hop in &self.hops {
            hop.wake_waiters();
        }
        self.overflow.end();
        self.mail.fail();
        self.meeting.fail();
        true
    }

    /// Why nothing goes any more. What has ended without a shutdown is told why in a moment.
    pub(crate) fn error(&self) -> Error {
        let limit = Instant::now() + WORD;
        let mut failure = locked(&self.failure);
        loop {
            let left = limit.saturating_duration_since(Instant::now());
            if let Some(failure) = &failure.failure {
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
        while failure.failure.is_none() {
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

    /// Whether a rank has failed, as far as this one knows.
    pub(crate) fn is_gone(&self, rank: u32) -> bool {
        locked(&self.failure).ranks.contains(&rank)
    }

    /// Messages of this rank to another one that were dropped here.
    pub(crate) fn own_dropped(&self, to: u32) -> u64 {
        let next = self.routes.next(Came::FromHere, to).ok();
        next.and_then(|next| self.hop_of(next)).map_or(0, |hop| hop.own_dropped(to))
    }

    /// Counts again what is in doubt: exact when nothing is sent any more.
    pub(crate) fn recount(&self) {
        let mut state = locked(&self.failure);
        let (in_doubt, dropped) = self.in_doubt(&state.ranks);
        if let Some(failure) = &mut state.failure {
            (failure.in_doubt, failure.dropped) = (in_doubt, dropped);
        }
    }

    /// Messages of this rank whose way leads through one of these, since the last complete `flush_all`, less those
    /// that were dropped here; and those.
    fn in_doubt(&self, gone: &BTreeSet<u32>) -> (u64, u64) {
        let (mut in_doubt, mut dropped) = (0, 0);
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        for (to, (sent, confirmed)) in (0..).zip(self.sent.iter().zip(&self.confirmed)) {
            let unconfirmed = load(sent).saturating_sub(load(confirmed));
            if unconfirmed == 0 {
                continue;
            }
            let here = self.own_dropped(to);
            dropped += here;
            if gone.iter().any(|gone| self.leads_through(to, *gone)) {
                in_doubt += unconfirmed.saturating_sub(here);
            }
        }
        (in_doubt + self.broadcasts.in_doubt(), dropped)
    }

    /// Whether the way of a message of this rank leads through another one, or ends there.
    fn leads_through(&self, to: u32, gone: u32) -> bool {
        let map = self.routes.map();
        let (node, own, towards) = (map.node_of(gone), self.routes.node(), map.node_of(to));
        if to == gone {
            return true;
        }
        if towards == own {
            return false;
        }
        let is_sender = node == own && self.routes.representative(towards) == gone;
        let is_receiver = node == towards && self.routes.counterpart(towards) == gone;
        is_sender || is_receiver
    }
}

/// What has failed.
#[derive(Debug, Default)]
pub(crate) struct Failed {
    /// What was noticed first; how much is in doubt comes to it.
    pub(crate) failure: Option<Failure>,
    /// Every rank that has failed since.
    pub(crate) ranks: BTreeSet<u32>,
}

/// How long a rank whose meeting has failed waits to be told why.
const WORD: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        Options,
        hop::Shared,
        inner::{Table, side::Side},
        overflow::Overflow,
        route::Routes,
        rpc::From,
        transport::Transport,
    };

    /// Rank 0 of a node of so many, without hops to the others.
    fn alone(ranks: u32) -> Inner {
        let map = Arc::new(format!("1x{ranks}").parse().unwrap());
        let node = Transport { url: "sm://", settings: &[], key: None };
        let side = Side::open(node, 1, (hg::Wait::Block, false)).unwrap();
        let (is_failed, in_flight) = Default::default();
        let overflow = Arc::new(Overflow::new(0, Duration::ZERO));
        let shared = Shared { in_flight, is_failed, overflow };
        let none = || vec![None; ranks as usize];
        let table = Table { origin: none(), relay: none(), network: Default::default() };
        let from = From { shuffle: [0; 2], rank: 0 };
        let of = (Routes::new(map, 0), Arc::new(side));
        let shared = [shared.clone(), shared.clone(), shared];
        Inner::new(("alone", from), Options::default(), of, (Vec::new(), table), shared)
    }

    fn in_doubt(inner: &Inner) -> u64 {
        inner.recount();
        locked(&inner.failure).failure.as_ref().map_or(0, |failure| failure.in_doubt)
    }

    #[test]
    fn who_is_gone_while_a_shuffle_ends_after_a_failure_leaves_messages_in_doubt_as_well() {
        let inner = alone(4);
        for (to, count) in [(1, 10), (2, 200), (3, 3000)] {
            inner.sent[to].store(count, Ordering::Relaxed);
        }
        assert!(inner.fail(1, None, "it is gone".to_owned()));
        inner.close();
        assert!(!inner.fail(2, None, "it is gone, too".to_owned()));
        assert!(inner.is_gone(2));
        assert_eq!(in_doubt(&inner), 210);
    }

    #[test]
    fn the_word_that_a_rank_has_failed_which_is_none_changes_nothing() {
        let inner = alone(2);
        inner.sent[1].store(1, Ordering::Relaxed);
        for none in [2, u32::MAX] {
            assert!(!inner.fail(none, None, "it never was".to_owned()));
            assert!(!inner.is_gone(none) && !inner.is_failed());
        }
        assert_eq!(in_doubt(&inner), 0);
    }

    #[test]
    fn who_is_gone_while_a_shuffle_ends_in_good_order_is_no_failure() {
        let inner = alone(2);
        inner.close();
        assert!(!inner.fail(1, None, "it is gone".to_owned()));
        assert!(!inner.is_gone(1) && !inner.is_failed());
    }
}
