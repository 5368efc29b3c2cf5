//! Broadcasts that have not run everywhere yet: who is still to say so, and what is allowed. No I/O.
//!
//! An end knows of a broadcast from when it is told of it until itself and all below it in the [tree](crate::tree) have run it, which it
//! then says to the one above. So nobody knows of one that the one above does not know of, and whoever keeps to the limit for each root is told of
//! no more than that.

use hg_na::LocalSlice;
use rustc_hash::FxHashMap;

use crate::{Error, Synchronizer, tree::BELOW_MAX};

/// A broadcast: the end that has begun it, and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) root: u32,
    pub(crate) number: u64,
}

/// One that has not run everywhere yet.
#[derive(Debug)]
struct Broadcast {
    cost: u64,
    /// A bit for each end below, in their order, and [`OWN`].
    left: u32,
    /// Of those below: where its record stands in the stream to each; beyond all that is ever written as long as it is not passed on.
    records: [u64; BELOW_MAX as usize],
    failed: Option<Error>,
    notify: Option<Synchronizer>,
    /// Is reached by those below as long as this is there.
    bytes: Option<LocalSlice>,
}

/// What has become of one.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) name: Name,
    pub(crate) failed: Option<Error>,
    pub(crate) notify: Option<Synchronizer>,
}

/// Those that an end knows of.
#[derive(Debug)]
pub(crate) struct Broadcasts {
    limit: u64,
    last: u64,
    of: FxHashMap<Name, Broadcast>,
    /// Per root.
    cost: FxHashMap<u32, u64>,
}

impl Broadcasts {
    /// Of at most `limit` bytes for each root.
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, last: 0, of: FxHashMap::default(), cost: FxHashMap::default() }
    }

    /// Whether another one of a root may begin.
    pub(crate) fn has_room(&self, root: u32, len: usize) -> bool {
        self.cost.get(&root).is_none_or(|it| it.saturating_add(cost(len)) <= self.limit)
    }

    /// The next one of this end.
    pub(crate) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// One begins. `false`: it has begun already, or there is no room.
    pub(crate) fn begin(
        &mut self,
        name: Name,
        len: usize,
        below: usize,
        notify: Option<Synchronizer>,
    ) -> bool {
        if !self.has_room(name.root, len) || self.of.contains_key(&name) {
            return false;
        }
        let cost = cost(len);
        let of_root = self.cost.entry(name.root).or_default();
        *of_root = of_root.saturating_add(cost);
        let left = OWN | ((1 << below) - 1);
        let (records, failed, bytes) = ([u64::MAX; _], None, None);
        self.of.insert(name, Broadcast { cost, left, records, failed, notify, bytes });
        true
    }

    /// Those below read these bytes.
    pub(crate) fn lend(&mut self, name: Name, bytes: LocalSlice) {
        if let Some(broadcast) = self.of.get_mut(&name) {
            broadcast.bytes = Some(bytes);
        }
    }

    /// Whether bytes of any of this end's own may still be read, or somebody here is to be told that it has run.
    pub(crate) fn are_awaited(&self, me: u32) -> bool {
        let mut own = self.of.iter().filter(|(name, _)| name.root == me);
        own.any(|(_, it)| it.bytes.is_some() || it.notify.is_some())
    }

    /// Those of other roots, which know of what is below this end by this end alone.
    pub(crate) fn of_others(&self, me: u32) -> Vec<Name> {
        self.of.keys().filter(|name| name.root != me).copied().collect()
    }

    /// Whether one has not run everywhere below this end yet.
    pub(crate) fn is_under_way(&self, name: Name) -> bool {
        self.of.contains_key(&name)
    }

    /// Its record was written to one of those below, and ends there in that stream.
    pub(crate) fn passed(&mut self, name: Name, place: u32, position: u64) {
        if let Some(broadcast) = self.of.get_mut(&name) {
            broadcast.records[place as usize] = position;
        }
    }

    /// Where the record to one of those below ends, who has not said that it has run it.
    pub(crate) fn record(&self, name: Name, place: u32) -> Option<u64> {
        let broadcast = self.of.get(&name).filter(|it| it.left & (1 << place) != 0)?;
        broadcast.records.get(place as usize).copied()
    }

    /// Whether one of those who are to run it has not said so: a place among those below, or [`OWN_PLACE`].
    pub(crate) fn awaits(&self, name: Name, place: u32) -> bool {
        self.of.get(&name).is_some_and(|it| it.left & (1 << place) != 0)
    }

    /// Whether somebody here is to be told that it has run.
    pub(crate) fn tells(&self, name: Name) -> bool {
        self.of.get(&name).is_some_and(|it| it.notify.is_some())
    }

    /// One has run it, with all below, or will not. What has become of the whole, if that was the last one.
    pub(crate) fn end(&mut self, name: Name, place: u32, failed: Option<Error>) -> Option<Ended> {
        let broadcast = self.of.get_mut(&name)?;
        broadcast.left &= !(1 << place);
        if broadcast.failed.is_none() {
            broadcast.failed = failed;
        }
        if broadcast.left != 0 {
            return None;
        }
        let Broadcast { cost, failed, notify, .. } = self.of.remove(&name)?;
        if let Some(of_root) = self.cost.get_mut(&name.root) {
            *of_root -= cost;
            if *of_root == 0 {
                self.cost.remove(&name.root);
            }
        }
        Some(Ended { name, failed, notify })
    }

    /// Those that are under way.
    pub(crate) fn names(&self) -> Vec<Name> {
        self.of.keys().copied().collect()
    }

    /// Whoever waits, when nothing will come any more.
    pub(crate) fn close(&mut self) -> impl Iterator<Item = Synchronizer> + use<> {
        std::mem::take(&mut self.of).into_values().filter_map(|it| it.notify)
    }
}

/// Bytes that one takes.
fn cost(len: usize) -> u64 {
    (len as u64).saturating_add(OVERHEAD)
}

/// The end itself, beside those below.
pub(crate) const OWN_PLACE: u32 = BELOW_MAX;
const OWN: u32 = 1 << OWN_PLACE;
/// Bytes that each is counted as, beside its arguments.
const OVERHEAD: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_run_what_was_not_passed_on() {
        let (name, mut broadcasts) = (Name { root: 1, number: 1 }, Broadcasts::new(1000));
        assert!(broadcasts.begin(name, 10, 2, None));
        assert_eq!(broadcasts.record(name, 0), Some(u64::MAX), "it never leaves there");
        broadcasts.passed(name, 1, 70);
        assert_eq!([0, 1].map(|place| broadcasts.record(name, place)), [Some(u64::MAX), Some(70)]);
        assert!(broadcasts.end(name, 1, None).is_none());
        assert_eq!(broadcasts.record(name, 1), None, "it has run there");
    }
}
