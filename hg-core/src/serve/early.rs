//! Cancellations that found no handler.
//!
//! One may overtake its request. It may as well be too late, or its request have been taken back: then nothing would ever come for
//! it. But the requests of one origin come in the order of their ids ([`Key::is_after`]): an origin numbers a request in the moment
//! in which it posts it or puts it behind those that wait, and unexpected messages keep their order. So a later request says that
//! the one before has come, or never will, and its cancellation is forgotten.

use std::collections::VecDeque;

use hg_na::Peer;
use rustc_hash::FxHashMap;

use crate::table::Key;

/// Cancellations of one origin that are remembered because they overtook their requests: of more, those whose requests come first.
/// As many as a transport takes requests, and then some.
pub const EARLY_CANCELS_MAX: usize = 1024;

/// Of each origin, those that overtook their requests, or came too late: until its next request at most.
#[derive(Debug, Default)]
pub(super) struct EarlyCancels(FxHashMap<Peer, VecDeque<u64>>);

impl EarlyCancels {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those of an origin.
    #[cfg(test)]
    pub(super) fn of(&self, origin: Peer) -> &VecDeque<u64> {
        &self.0[&origin]
    }

    /// Remembers one; where there is no room, those that are after all others give way.
    pub(super) fn add(&mut self, origin: Peer, id: u64) {
        let ids = self.0.entry(origin).or_default();
        if ids.len() < EARLY_CANCELS_MAX {
            return ids.push_back(id);
        }
        let later = |a: &u64, b: &u64| Key::from_bits(*a).is_after(Key::from_bits(*b));
        let last = ids.iter_mut().reduce(|a, b| if later(b, a) { b } else { a });
        if let Some(last) = last.filter(|last| later(last, &id)) {
            *last = id;
        }
    }

    /// A request has come: whether it was cancelled before. What was said of those before it is forgotten.
    pub(super) fn take(&mut self, origin: Peer, id: u64) -> bool {
        let Some(ids) = self.0.get_mut(&origin) else { return false };
        let (came, before) = (Key::from_bits(id), ids.len());
        ids.retain(|early| *early != id);
        let is_cancelled = ids.len() != before;
        ids.retain(|early| !came.is_after(Key::from_bits(*early)));
        if ids.is_empty() {
            self.0.remove(&origin);
        }
        is_cancelled
    }

    /// Nothing comes of an origin any more.
    pub(super) fn forget(&mut self, origin: Peer) {
        self.0.remove(&origin);
    }
}
