//! Hands out runs of consecutive numbers: places in the table's list of segments. First fit; what is given
//! back joins its neighbours.

use std::collections::BTreeMap;

/// The free runs, by their first number.
#[derive(Debug)]
pub(crate) struct Extents(BTreeMap<u32, u32>);

impl Extents {
    /// All of `0..len` is free.
    pub(crate) fn new(len: u32) -> Self {
        Self(BTreeMap::from([(0, len)]))
    }

    /// The first of `count` consecutive numbers; 0 for none of them.
    pub(crate) fn take(&mut self, count: u32) -> Option<u32> {
        if count == 0 {
            return Some(0);
        }
        let (&first, &len) = self.0.iter().find(|(_, len)| **len >= count)?;
        self.0.remove(&first);
        if len > count {
            self.0.insert(first + count, len - count);
        }
        Some(first)
    }

    /// Frees what [`Extents::take`] gave.
    pub(crate) fn give_back(&mut self, mut first: u32, mut count: u32) {
        if count == 0 {
            return;
        }
        if let Some(behind) = self.0.remove(&(first + count)) {
            count += behind;
        }
        if let Some((&before, &len)) = self.0.range(..first).next_back()
            && before + len == first
        {
            (first, count) = (before, count + len);
        }
        self.0.insert(first, count);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

    use super::*;

    const LEN: u32 = 100;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_number_is_given_twice_and_all_come_back(steps in proptest::collection::vec((0_u32..40, 0_usize..8), 0..60)) {
            let (mut extents, mut held) = (Extents::new(LEN), Vec::<(u32, u32)>::new());
            for (count, place) in steps {
                if let Some(first) = extents.take(count) {
                    prop_assert!(first + count <= LEN);
                    let apart = |&(other, len): &(u32, u32)| first + count <= other || other + len <= first;
                    prop_assert!(count == 0 || held.iter().filter(|held| held.1 > 0).all(apart));
                    held.push((first, count));
                } else if place < held.len() {
                    let (first, count) = held.swap_remove(place);
                    extents.give_back(first, count);
                }
            }
            for (first, count) in held {
                extents.give_back(first, count);
            }
            prop_assert_eq!(extents.take(LEN), Some(0));
        }
    }
}
