//! Calls made and run, for each group apart. No I/O.
//!
//! # Bounds
//! A worker calls in at most [`GROUPS_MAX`] groups that no barrier has ended. So whoever keeps to that is behind no more groups at any other worker,
//! but for one: it may have heard of the end of a barrier a little before. Each group is charged to whoever has brought it: groups that one sender brings are no other
//! sender's fault. Who passes on broadcasts is charged for each root apart, since it has not chosen their groups. What a worker makes for others (results,
//! news of buffers, broadcasts that it passes on) is of groups that their receivers have already.

use rustc_hash::FxHashMap;

/// Calls made and run by one worker in each group that it has calls of.
///
/// Sums over all workers are what counts: one worker may have run more than it has made. When a barrier has ended, each takes off what it has reported
/// last: those sums were equal, so the rest counts the calls since. A group of which nothing is left is forgotten.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    of: FxHashMap<u32, Group>,
    /// Of those, how many this worker has called in.
    called: usize,
    /// And how many others have brought.
    brought: FxHashMap<By, usize>,
}

/// Who brings calls: their sender, and the root of the broadcast, or the sender again.
pub(crate) type By = (u32, u32);

#[derive(Debug, Default)]
struct Group {
    made: u64,
    run: u64,
    /// This worker has called in it; and has so since it has reported last.
    is_called: bool,
    is_called_since: bool,
    /// Who has brought it; and who has called first since this worker has reported last.
    by: Option<By>,
    by_since: Option<By>,
}

impl Groups {
    /// Whether this worker may call in this group.
    pub(crate) fn has_room(&self, group: u32) -> bool {
        self.called < GROUPS_MAX || self.of.get(&group).is_some_and(|it| it.is_called)
    }

    /// This worker calls in it of its own accord: one was made.
    pub(crate) fn called(&mut self, group: u32) {
        let it = self.of.entry(group).or_default();
        self.called += usize::from(!std::mem::replace(&mut it.is_called, true));
        it.is_called_since = true;
        it.made += 1;
    }

    /// One was made here for others: a result, a part of a broadcast.
    pub(crate) fn made(&mut self, group: u32) {
        self.of.entry(group).or_default().made += 1;
    }

    /// One has run here. `false`: it is of one group too many, of those that it was brought by.
    pub(crate) fn run(&mut self, group: u32, by: By) -> bool {
        let it = match self.of.get_mut(&group) {
            Some(it) => it,
            None => {
                let brought = self.brought.entry(by).or_default();
                if *brought > GROUPS_MAX {
                    return false;
                }
                *brought += 1;
                self.of.entry(group).or_insert(Group { by: Some(by), ..Group::default() })
            }
        };
        it.run += 1;
        it.by_since.get_or_insert(by);
        true
    }

    /// Calls made and run.
    pub(crate) fn counts(&self, group: u32) -> (u64, u64) {
        self.of.get(&group).map(|it| (it.made, it.run)).unwrap_or_default()
    }

    /// These were reported to a barrier: if it ends so, what comes from now on is left.
    pub(crate) fn reported(&mut self, group: u32) {
        if let Some(it) = self.of.get_mut(&group) {
            (it.is_called_since, it.by_since) = (false, None);
        }
    }

    /// A barrier has ended, to which these were reported last.
    pub(crate) fn settle(&mut self, group: u32, reported: (u64, u64)) {
        let Some(it) = self.of.get_mut(&group) else { return };
        (it.made, it.run) = (it.made - reported.0, it.run - reported.1);
        self.called -= usize::from(it.is_called && !it.is_called_since);
        it.is_called = it.is_called_since;
        let before = std::mem::replace(&mut it.by, it.by_since);
        let mut after = it.by;
        if (it.made, it.run) == (0, 0) {
            self.of.remove(&group);
            after = None;
        }
        if before != after {
            after.into_iter().for_each(|by| *self.brought.entry(by).or_default() += 1);
            before.into_iter().for_each(|by| self.discharge(by));
        }
    }

    fn discharge(&mut self, by: By) {
        if let Some(brought) = self.brought.get_mut(&by) {
            *brought -= 1;
            if *brought == 0 {
                self.brought.remove(&by);
            }
        }
    }
}

/// Groups in which a worker calls that no barrier has ended.
const GROUPS_MAX: usize = 1024;
/// So those that one sender brings are at most 1,025 entries of a table, 2,048 places of so many bytes and one.
const _: () = assert!(size_of::<(u32, Group)>() <= 56);

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u32 = 1024;

    #[test]
    fn whoever_brings_too_many_groups_is_charged_and_nobody_else() {
        let mut groups = Groups::default();
        // Three senders bring as many as they may, one of them a broadcast's of two roots, too.
        for (at, by) in [(0, (1, 1)), (1, (2, 2)), (2, (3, 3)), (3, (3, 7)), (4, (3, 8))] {
            assert!((0..=MAX).all(|group| groups.run(10_000 * at + group, by)), "{by:?}");
        }
        assert!(!groups.run(99_999, (1, 1)), "one too many");
        assert!(groups.run(10_000, (1, 1)), "which others have brought already");
        assert!(groups.has_room(99_999), "what others bring is not called here");
        assert!(groups.run(99_999, (4, 4)));
    }

    #[test]
    fn a_group_is_charged_to_who_has_called_in_it_since_its_barrier() {
        let (first, second) = ((1, 1), (2, 2));
        let mut groups = Groups::default();
        assert!((0..=MAX).all(|group| groups.run(group, first)));
        for group in 0..=MAX {
            groups.reported(group);
            // Whoever has heard of the end before this worker has.
            assert!(groups.run(group, second));
            groups.settle(group, (0, 1));
            assert_eq!(groups.counts(group), (0, 1));
        }
        assert!((0..=MAX).all(|group| groups.run(5000 + group, first)), "it may bring others");
        assert!(!groups.run(4999, second), "and the other one may not");
        for group in 0..=MAX {
            groups.reported(group);
            groups.settle(group, (0, 1));
        }
        assert!(groups.run(4999, second), "nothing is left");
        assert_eq!(groups.of.len(), MAX as usize + 2);
    }

    #[test]
    fn a_worker_calls_in_as_many_groups_as_it_may_whatever_it_makes_for_others() {
        let mut groups = Groups::default();
        (0..5000).for_each(|group| groups.made(group));
        (0..MAX).for_each(|group| groups.called(group));
        assert!(groups.has_room(0) && !groups.has_room(MAX));
        groups.reported(0);
        groups.called(0);
        groups.settle(0, (2, 0));
        assert!(!groups.has_room(MAX), "it has called in it since");
        groups.reported(1);
        groups.settle(1, (2, 0));
        assert!(groups.has_room(MAX));
    }
}
