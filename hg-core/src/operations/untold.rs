//! Targets that are to be told of a cancellation.

use hg_na::Peer;
use rustc_hash::FxHashMap;

use super::OperationId;

/// Calls that have ended before their answer, and whose targets are to be told: a round later, when the transport has said
/// of those requests that it has taken back that they never left.
#[derive(Debug, Default)]
pub(super) struct Untold {
    /// Of this round.
    new: FxHashMap<OperationId, Peer>,
    /// Of the one before.
    old: FxHashMap<OperationId, Peer>,
}

impl Untold {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.new.len() + self.old.len() == 0
    }

    /// Its request never left.
    pub(super) fn forget(&mut self, id: OperationId) {
        if self.new.remove(&id).is_none() {
            self.old.remove(&id);
        }
    }

    /// It is to be told, unless its request turns out never to have left.
    pub(super) fn add(&mut self, id: OperationId, peer: Peer) {
        self.new.insert(id, peer);
    }

    /// A round is over: those that are to be told now.
    pub(super) fn turn(&mut self) -> FxHashMap<OperationId, Peer> {
        std::mem::replace(&mut self.old, std::mem::take(&mut self.new))
    }
}
