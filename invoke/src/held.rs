//! What a worker has allocated for others, and what of that it may: no I/O.
//!
//! Each allocation counts as its pages, one at least. One worker has at most [`Limits::each`] here; all together have at most [`Limits::all`] in a process, of
//! which its workers keep one count.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use hg_na::Descriptor;
use rustc_hash::FxHashMap;

use crate::{Buffer, Locator, remote::Refusal};

/// An allocation: the end that it is for, and its number there. Numbers of one kind are not those of the other, so that workers which hear of both in different
/// orders agree all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) owner: u32,
    pub(crate) number: u64,
    pub(crate) is_everywhere: bool,
}

impl Key {
    pub(crate) fn here(owner: u32, number: u64) -> Self {
        Self { owner, number, is_everywhere: false }
    }

    pub(crate) fn everywhere(owner: u32, number: u64) -> Self {
        Self { owner, number, is_everywhere: true }
    }
}

/// Bytes that others may have here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) each: u64,
    pub(crate) all: u64,
}

/// One allocation.
#[derive(Debug)]
pub(crate) struct Allotted {
    /// None where it was refused: those below may have theirs.
    pub(crate) buffer: Option<Arc<Buffer>>,
    /// Of those that are everywhere: where the bytes of the ends below are, in the order of the [tree](crate::tree).
    pub(crate) below: Vec<Option<Descriptor>>,
    /// The first that was refused here or below, and where.
    pub(crate) refused: Option<(u32, Refusal)>,
    /// Its owner's handle was dropped, and what it has broadcast before that has yet to run here.
    pub(crate) is_dropped: bool,
    charge: Option<Arc<Charge>>,
}

/// All of a worker.
#[derive(Debug)]
pub(crate) struct Held {
    limits: Limits,
    of_process: Arc<AtomicU64>,
    of: FxHashMap<Key, Allotted>,
    /// By what names its memory.
    named: FxHashMap<Locator, Key>,
    /// How many have an owner who has dropped its handle.
    dropped: usize,
    /// Bytes, and allocations that are everywhere, per owner that ever had any.
    taken: FxHashMap<u32, (Arc<AtomicU64>, usize)>,
}

/// What one counts as, for its owner and in its process: until it is released, and the transfers out of it have ended, which keep the memory.
#[derive(Debug)]
pub(crate) struct Charge {
    bytes: u64,
    of_owner: Arc<AtomicU64>,
    of_process: Arc<AtomicU64>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        // Counts, which guard nothing.
        self.of_owner.fetch_sub(self.bytes, Ordering::Relaxed);
        self.of_process.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Held {
    pub(crate) fn new(limits: Limits, of_process: Arc<AtomicU64>) -> Self {
        let (of, named, dropped, taken) = Default::default();
        Self { limits, of_process, of, named, dropped, taken }
    }

    /// Bytes that they count as.
    pub(crate) fn bytes(&self) -> u64 {
        self.taken.values().map(|it| it.0.load(Ordering::Relaxed)).sum()
    }

    /// Whether an owner may have so many bytes more.
    pub(crate) fn charge(&mut self, owner: u32, bytes: u64) -> Result<Charge, Refusal> {
        let cost = cost(bytes);
        // Of this worker alone, which only gives back elsewhere.
        let of_owner = Arc::clone(&self.taken.entry(owner).or_default().0);
        let left = self.limits.each.saturating_sub(of_owner.load(Ordering::Relaxed));
        if cost > left {
            return Err(Refusal::Over { left, of_all: false });
        }
        let add = |taken: u64| taken.checked_add(cost).filter(|it| *it <= self.limits.all);
        let added = self.of_process.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        match added {
            Ok(_) => {
                of_owner.fetch_add(cost, Ordering::Relaxed);
                Ok(Charge { bytes: cost, of_owner, of_process: Arc::clone(&self.of_process) })
            }
            Err(taken) => {
                Err(Refusal::Over { left: self.limits.all.saturating_sub(taken), of_all: true })
            }
        }
    }

    /// Whether an owner may have one more that is everywhere.
    pub(crate) fn may_settle(&self, owner: u32) -> bool {
        self.taken.get(&owner).is_none_or(|it| it.1 < EVERYWHERE_MAX)
    }

    /// One begins; `false`: that number is taken. `below`: how many ends are to have theirs behind this one, if it is everywhere.
    pub(crate) fn add(
        &mut self,
        key: Key,
        got: Result<(Buffer, Charge), Refusal>,
        below: usize,
        me: u32,
    ) -> bool {
        if self.of.contains_key(&key) {
            return false;
        }
        let (buffer, charge, refused) = match got {
            Ok((buffer, charge)) => (Some(Arc::new(buffer)), Some(Arc::new(charge)), None),
            Err(refusal) => (None, None, Some((me, refusal))),
        };
        self.taken.entry(key.owner).or_default().1 += usize::from(key.is_everywhere);
        if let Some(buffer) = &buffer {
            self.named.insert(buffer.locator(), key);
        }
        let below = vec![None; below];
        self.of.insert(key, Allotted { buffer, below, refused, is_dropped: false, charge });
        true
    }

    pub(crate) fn get(&self, key: Key) -> Option<&Allotted> {
        self.of.get(&key)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Allotted> {
        self.of.get_mut(&key)
    }

    /// Where the memory of one of those below is.
    pub(crate) fn below(&self, key: Key, place: u32) -> Option<Descriptor> {
        self.of.get(&key)?.below.get(place as usize)?.clone()
    }

    /// For a transfer out of it, to be kept until that has ended.
    pub(crate) fn charge_of(&self, key: Key) -> Option<Arc<Charge>> {
        self.of.get(&key)?.charge.clone()
    }

    /// Its owner's handle was dropped here, and it is there until it is removed.
    pub(crate) fn drop_own(&mut self, key: Key) {
        if let Some(allotted) = self.of.get_mut(&key) {
            self.dropped += usize::from(!std::mem::replace(&mut allotted.is_dropped, true));
        }
    }

    /// Whether any of which the handle was dropped here is still there.
    pub(crate) fn has_dropped(&self) -> bool {
        self.dropped > 0
    }

    pub(crate) fn named(&self, locator: &Locator) -> Option<Arc<Buffer>> {
        self.of.get(self.named.get(locator)?)?.buffer.clone()
    }

    /// One is released.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Allotted> {
        let removed = self.of.remove(&key)?;
        self.dropped -= usize::from(removed.is_dropped);
        if let Some(buffer) = &removed.buffer {
            self.named.remove(&buffer.locator());
        }
        if let Some(taken) = self.taken.get_mut(&key.owner) {
            taken.1 -= usize::from(key.is_everywhere);
        }
        Some(removed)
    }

    /// Those of which this is so.
    pub(crate) fn keys(&self, is_so: impl Fn(Key, &Allotted) -> bool) -> Vec<Key> {
        let all = self.of.iter().filter(|(key, it)| is_so(**key, it));
        all.map(|(key, _)| *key).collect()
    }
}

/// Bytes that an allocation counts as.
fn cost(bytes: u64) -> u64 {
    bytes.max(1).div_ceil(PAGE).saturating_mul(PAGE)
}

const PAGE: u64 = 4096;
/// Allocations of one worker that are everywhere.
pub(crate) const EVERYWHERE_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn held(of_process: &Arc<AtomicU64>) -> Held {
        Held::new(Limits { each: 3 * PAGE, all: 4 * PAGE }, Arc::clone(of_process))
    }

    #[test]
    fn one_and_all_have_what_they_may_and_give_it_back_and_what_was_dropped_is_counted() {
        let of_process = Arc::default();
        let (mut one, mut other) = (held(&of_process), held(&of_process));
        let first = one.charge(1, 2 * PAGE + 1).unwrap();
        assert_eq!(
            other.charge(1, PAGE + 1).unwrap_err(),
            Refusal::Over { left: PAGE, of_all: true }
        );
        assert_eq!(
            other.charge(2, 4 * PAGE).unwrap_err(),
            Refusal::Over { left: 3 * PAGE, of_all: false }
        );
        let second = other.charge(2, 0).unwrap();
        assert_eq!(one.charge(3, 1).unwrap_err(), Refusal::Over { left: 0, of_all: true });
        drop((first, second));
        let (kept, dropped) = (Key::everywhere(1, 1), Key::everywhere(1, 2));
        for key in [kept, dropped] {
            assert!(one.add(key, Err(Refusal::Unsaid), 0, 1) && !one.has_dropped());
        }
        one.drop_own(dropped);
        one.drop_own(dropped);
        assert!(one.has_dropped() && one.remove(kept).is_some() && one.has_dropped());
        assert!(one.remove(dropped).is_some() && !one.has_dropped());
        assert_eq!(of_process.load(Ordering::Relaxed), 0);
        assert!(one.charge(1, u64::MAX).is_err(), "no sum wraps");
    }
}
