//! An object that has begun at a member.

use std::collections::BTreeSet;

use super::{BlockSet, Header};

#[derive(Debug)]
pub(super) struct Object {
    pub(super) header: Header,
    pub(super) held: BlockSet,
    /// The blocks that are here, in the order in which they came.
    pub(super) come: Vec<u64>,
    /// There is a place for it.
    pub(super) is_ready: bool,
    /// What it counts among the bytes that are not received.
    pub(super) bytes: u64,
    /// Whether it has begun in this group: what is carried from another one begins with its first offer.
    pub(super) has_begun: bool,
    pub(super) is_finished: bool,
    /// The neighbours that know its header from here.
    pub(super) introduced: BTreeSet<u32>,
}

impl Object {
    pub(super) fn new(header: Header, held: BlockSet) -> Self {
        let come = held.iter().collect();
        let introduced = BTreeSet::new();
        Self {
            header,
            held,
            come,
            is_ready: false,
            bytes: 0,
            has_begun: true,
            is_finished: false,
            introduced,
        }
    }

    /// The same in the group that is formed of the survivors.
    pub(super) fn carried(self) -> Self {
        let is_ready = self.is_ready;
        let bytes = if is_ready { self.bytes } else { 0 };
        Self { is_ready, bytes, has_begun: false, ..Self::new(self.header, self.held) }
    }

    /// Says whether it was not here.
    pub(super) fn insert(&mut self, block: u64) -> bool {
        let is_new = self.held.insert(block);
        if is_new {
            self.come.push(block);
        }
        is_new
    }
}
