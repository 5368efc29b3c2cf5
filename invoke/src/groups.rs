//! Calls made and run, for each group apart. No I/O.

use rustc_hash::FxHashMap;

/// Calls made and run by one worker in each group that it has calls of.
///
/// Sums over all workers are what counts: one worker may have run more than it has made. When a barrier has ended, each takes off what it has reported
/// last: those sums were equal, so the rest counts the calls since. A group of which nothing is left is forgotten.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    of: FxHashMap<u32, (u64, u64)>,
}

impl Groups {
    /// Whether calls of this group can be counted.
    pub(crate) fn has_room(&self, group: u32) -> bool {
        self.of.len() < GROUPS_MAX || self.of.contains_key(&group)
    }

    /// One was made here.
    pub(crate) fn made(&mut self, group: u32) {
        self.of.entry(group).or_default().0 += 1;
    }

    /// One has run here. `false`: it is of one group too many.
    pub(crate) fn run(&mut self, group: u32) -> bool {
        let has_room = self.has_room(group);
        if has_room {
            self.of.entry(group).or_default().1 += 1;
        }
        has_room
    }

    /// Calls made and run.
    pub(crate) fn counts(&self, group: u32) -> (u64, u64) {
        self.of.get(&group).copied().unwrap_or_default()
    }

    /// A barrier has ended, to which these were reported last.
    pub(crate) fn settle(&mut self, group: u32, reported: (u64, u64)) {
        if let Some(counts) = self.of.get_mut(&group) {
            *counts = (counts.0 - reported.0, counts.1 - reported.1);
            if *counts == (0, 0) {
                self.of.remove(&group);
            }
        }
    }
}

/// Groups of which a worker has calls that no barrier has ended.
const GROUPS_MAX: usize = 1024;
