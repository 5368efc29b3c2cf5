//! What the threads that use a queue pair see of it without a lock: how far its posts have come.
//!
//! # Protocol   (A: posts, T: has the turn)
//! A1 fetch_add(1, Relaxed): takes a place            T1 takes completions, frees what their posts held
//! A2 posts, or fetch_sub(1, Relaxed)                 T2 freed.store(Release)
//! A3 freed.load(Acquire): what older posts held is free
//! - T2 -> A3: who sees a post freed finds its buffers unused.
//!
//! `tests/loom.rs` checks it: weaken T2 or A3 and it fails.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Places of a send queue: so many that a completion queue of 32,767, soft-RoCE's longest, has room for those of 256 pairs.
pub(crate) const DEPTH: u32 = 120;

/// What the threads that use a pair see of it without a lock.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    /// Posts that were put into the queue, or are about to be.
    posted: AtomicU64,
    /// Of those, the oldest ones that have ended: whatever they held is free.
    freed: AtomicU64,
    is_broken: AtomicBool,
}

impl Gauge {
    /// Takes a place of the send queue; `false`: there is none.
    pub(crate) fn takes_place(&self) -> bool {
        // Relaxed: a count; what it allows is checked again by whoever has the queue.
        let under_way = self.posted.fetch_add(1, Ordering::Relaxed).wrapping_sub(self.freed()); // A1
        let has_room = i64::try_from(under_way).unwrap_or(0) < i64::from(DEPTH);
        if !has_room {
            self.gives_place();
        }
        has_room
    }

    /// Takes a place in any case, for a post of this side's own.
    pub(crate) fn adds(&self) {
        // Relaxed: as above.
        self.posted.fetch_add(1, Ordering::Relaxed);
    }

    /// Nothing was posted after all.
    pub(crate) fn gives_place(&self) {
        // Relaxed: as above.
        self.posted.fetch_sub(1, Ordering::Relaxed); // A2
    }

    /// Whether there is a place.
    pub(crate) fn has_room(&self) -> bool {
        self.last().saturating_sub(self.freed()) < u64::from(DEPTH)
    }

    /// The number of the last post: those of the caller have this or a smaller one.
    pub(crate) fn last(&self) -> u64 {
        // Relaxed: one's own additions are seen.
        self.posted.load(Ordering::Relaxed)
    }

    fn freed(&self) -> u64 {
        self.freed.load(Ordering::Acquire) // A3
    }

    /// What the posts up to this one held is free, at once.
    pub(crate) fn frees(&self, number: u64) {
        self.freed.store(number, Ordering::Release); // T2
    }

    /// Whether all posts up to one have ended: the peer's card has them, or nothing more comes of them. That one may have been a place that another
    /// thread took and gave back: more than was posted is not waited for.
    pub(crate) fn is_over(&self, last: u64) -> bool {
        self.freed() >= last.min(self.last()) || self.is_broken()
    }

    /// Whether nothing can be sent any more.
    pub(crate) fn is_broken(&self) -> bool {
        // Acquire: as A3.
        self.is_broken.load(Ordering::Acquire)
    }

    /// Nothing can be sent any more; `false`: it was so before.
    pub(crate) fn breaks(&self) -> bool {
        // Release: goes with `is_broken`.
        !self.is_broken.swap(true, Ordering::AcqRel)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_was_given_back_is_not_waited_for() {
        let gauge = Gauge::default();
        assert!(gauge.takes_place() && gauge.takes_place());
        let last = gauge.last();
        gauge.gives_place();
        assert!(!gauge.is_over(last), "a post is under way");
        gauge.frees(1);
        assert!(gauge.is_over(last));
    }
}
