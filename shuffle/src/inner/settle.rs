//! The end after a failure: what does not lead through a rank that is gone still arrives, and then nothing is under
//! way any more between those that live, so that what each of them has counted adds up.
//!
//! ```text
//!   own messages have left -> Over(Origin) -> passed on to other nodes -> Over(Network) -> passed on here -> Over(Relay)
//! ```
//! Each arrow waits for the same word of all peers that live, so nobody closes a queue that somebody else still fills.
//! Everything is inside of one bound: a rank that stands still, or whose callback does, holds nobody up for ever.

use std::{
    collections::BTreeSet,
    sync::{Condvar, Mutex, PoisonError},
    time::Instant,
};

use hg::CallOptions;

use super::{Inner, side::block_on};
use crate::{
    lock::locked,
    rpc::{Lane, over},
};

/// Which peers send nothing more in which kind of queue.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    over: Mutex<BTreeSet<(u32, Lane)>>,
    changed: Condvar,
}

impl Settled {
    /// A peer has said so.
    pub(crate) fn note(&self, rank: u32, lane: Lane) {
        locked(&self.over).insert((rank, lane));
        self.changed.notify_all();
    }

    /// A peer is gone.
    pub(crate) fn wake(&self) {
        let _said = locked(&self.over);
        self.changed.notify_all();
    }

    fn wait(&self, limit: Instant, is_over: impl Fn(&BTreeSet<(u32, Lane)>) -> bool) {
        let mut said = locked(&self.over);
        while !is_over(&said) {
            let left = limit.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(said, left);
            said = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Inner {
    /// Lets what is queued arrive as far as it can, and takes leave of the peers that live.
    pub(crate) fn settle(&self, limit: Instant) {
        if self.is_gone(self.routes.me()) {
            return;
        }
        // The engine's thread makes the progress meanwhile.
        self.call_back();
        for lane in [Lane::Origin, Lane::Network, Lane::Relay] {
            let hops = || self.hops.iter().filter(move |hop| hop.lane == lane);
            for hop in hops() {
                hop.begin_flush();
            }
            hops().for_each(|hop| hop.wait_until_empty(limit));
            let told: Vec<_> = hops()
                .filter(|hop| !hop.is_failed())
                .map(|hop| {
                    let (engine, peer) = hop.ends();
                    let left = limit.saturating_duration_since(Instant::now());
                    engine.call_with(over, peer, (hop.from, lane), CallOptions::within(left))
                })
                .collect();
            // One that is gone meanwhile need not hear it.
            told.into_iter().for_each(|call| drop(block_on(call)));
            let is_over = |said: &BTreeSet<_>| {
                hops().all(|hop| hop.is_failed() || said.contains(&(hop.rank, lane)))
            };
            self.settled.wait(limit, is_over);
        }
        self.mail.flush_until(limit);
    }
}
