//! Through which processes the ranks of a job are connected: a pure function of their numbers.
//!
//! A process *heads* a range of ranks, of which its own is the first. What is left of the range is cut into at most
//! [`CHILDREN_MAX`] parts, all but the last of them full trees, and whoever heads a part connects to the process. Rank 0 heads
//! all. So of 320,000 ranks one in 32 has connections to others at all, 32 and one upwards, and the longest way is four.

use std::ops::Range;

/// Connections of a process to those that head the parts of its range. With the one upwards, the one of its own rank (two
/// sockets, and a copy of one for its reader) and the one that listens, these are all: [`SOCKETS_MAX`].
pub(crate) const CHILDREN_MAX: u32 = 32;
/// Sockets that a process has for the job at most; strangers that knock may have others, so that all together are 64.
pub const SOCKETS_MAX: u32 = CHILDREN_MAX + 5;

/// What one rank heads, and to whom it connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Branch {
    /// Itself, and those that are connected through it.
    pub(crate) ranks: Range<u32>,
    /// `None`: rank 0.
    pub(crate) parent: Option<u32>,
}

impl Branch {
    pub(crate) fn of(rank: u32, size: u32) -> Self {
        let (mut ranks, mut parent) = (0..size, None);
        while ranks.start != rank {
            parent = Some(ranks.start);
            let found = parts(&ranks).find(|part| part.contains(&rank));
            ranks = found.expect("the parts are the whole range");
        }
        Self { ranks, parent }
    }

    /// Whether others connect to it.
    pub(crate) fn is_hub(&self) -> bool {
        self.parent.is_none() || self.ranks.len() > 1
    }
}

/// The own rank, and the parts of the rest; together the whole range.
pub(crate) fn parts(ranks: &Range<u32>) -> impl Iterator<Item = Range<u32>> + use<> {
    let (first, rest, end) = (ranks.start, ranks.start + 1, ranks.end);
    let mut full = 1;
    while u64::from(end - rest) > u64::from(full) * u64::from(CHILDREN_MAX) {
        full = 1 + full * CHILDREN_MAX;
    }
    let others = (rest..end).step_by(full as usize).map(move |start| {
        let left = end - start;
        start..start + left.min(full)
    });
    std::iter::once(first..rest).chain(others)
}

/// Ranks at equal distances: how many are named in a few bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The lowest one.
    pub first: u32,
    /// At least 1.
    pub step: u32,
    /// At least 1.
    pub count: u32,
}

impl Run {
    /// Ascending numbers, cut greedily.
    #[must_use]
    pub fn of(numbers: &[u32]) -> Vec<Self> {
        Self::joined(numbers.iter().map(|first| Self { first: *first, step: 1, count: 1 }))
    }

    /// The same of numbers that are given as runs, one behind the other.
    #[must_use]
    pub fn joined(given: impl IntoIterator<Item = Self>) -> Vec<Self> {
        let mut runs: Vec<Self> = Vec::new();
        for mut next in given {
            while let Some(last) = runs.last_mut() {
                let end = last.first + (last.count - 1) * last.step;
                if last.count == 1 {
                    last.step = next.first - end;
                } else if next.first - end != last.step {
                    break;
                }
                let taken = if next.step == last.step { next.count } else { 1 };
                last.count += taken;
                next.first += taken * next.step;
                next.count -= taken;
                if next.count == 0 {
                    break;
                }
            }
            if next.count > 0 {
                runs.push(next);
            }
        }
        // The step of one number is not looked at.
        runs.iter_mut().filter(|run| run.count == 1).for_each(|run| run.step = 1);
        runs
    }

    /// Those of them in a range.
    pub(crate) fn within(self, ranks: &Range<u32>) -> Option<Self> {
        // How many are below a bound.
        let below = |bound: u32| match bound.checked_sub(self.first) {
            Some(distance) => distance.div_ceil(self.step).min(self.count),
            None => 0,
        };
        let (skipped, end) = (below(ranks.start), below(ranks.end));
        let first = self.first + self.step.checked_mul(skipped.min(self.count - 1))?;
        (end > skipped).then_some(Self { first, step: self.step, count: end - skipped })
    }

    /// Whether it is one, and all of it below `size`.
    pub(crate) fn is_below(self, size: u32) -> bool {
        let last = self
            .count
            .checked_sub(1)
            .and_then(|steps| steps.checked_mul(self.step))
            .and_then(|distance| distance.checked_add(self.first));
        self.step > 0 && last.is_some_and(|last| last < size)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn at_320_000_ranks_nobody_has_more_than_32_children_and_no_way_is_longer_than_four() {
        let size = 320_000;
        let mut ranks: Vec<_> = std::iter::once(0..size).collect();
        let (mut hubs, mut levels) = (0, 0);
        while !ranks.is_empty() {
            ranks.retain(|ranks| ranks.len() > 1);
            hubs += ranks.len();
            levels += u32::from(!ranks.is_empty());
            let next = |ranks: &Range<u32>| parts(ranks).skip(1).collect::<Vec<_>>();
            assert!(ranks.iter().all(|ranks| next(ranks).len() <= CHILDREN_MAX as usize));
            ranks = ranks.iter().flat_map(next).collect();
        }
        assert_eq!((hubs, levels), (10_002, 4));
    }

    proptest! {
        #[test]
        fn every_rank_is_found_where_its_parent_says(size in 1_u32..3000, at in any::<prop::sample::Index>()) {
            let rank = u32::try_from(at.index(size as usize)).unwrap();
            let branch = Branch::of(rank, size);
            prop_assert_eq!(branch.ranks.start, rank);
            let all: Vec<u32> = parts(&branch.ranks).flatten().collect();
            prop_assert_eq!(all, branch.ranks.clone().collect::<Vec<_>>());
            prop_assert!(parts(&branch.ranks).count() <= 1 + CHILDREN_MAX as usize);
            match branch.parent {
                None => prop_assert_eq!(branch.ranks, 0..size),
                Some(parent) => {
                    let above = Branch::of(parent, size);
                    prop_assert!(parts(&above.ranks).skip(1).any(|part| part == branch.ranks));
                }
            }
        }

        #[test]
        fn runs_are_the_numbers_they_were_made_of(
            numbers in prop::collection::btree_set(0_u32..200, 0..60), start in 0_u32..200, len in 0_u32..200,
        ) {
            let numbers: Vec<u32> = numbers.into_iter().collect();
            let all = |runs: Vec<Run>| -> Vec<u32> {
                runs.iter().flat_map(|run| (0..run.count).map(|at| run.first + at * run.step)).collect()
            };
            let runs = Run::of(&numbers);
            prop_assert!(runs.iter().all(|run| run.is_below(200)));
            prop_assert_eq!(&all(runs.clone()), &numbers);
            prop_assert_eq!(&Run::joined(runs.clone()), &runs);
            let (low, high) = numbers.split_at(numbers.len() / 2);
            prop_assert_eq!(&Run::joined([Run::of(low), Run::of(high)].concat()), &runs);
            let range = start..start + len;
            let within = runs.iter().filter_map(|run| run.within(&range)).collect();
            let expected: Vec<u32> = numbers.into_iter().filter(|number| range.contains(number)).collect();
            prop_assert_eq!(all(within), expected);
        }
    }
}
