//! The way of a broadcast: a tree of all ends, over processes first, then over the threads of each. No I/O.
//!
//! Ends are counted from the root. One thread of each process hears from another process, the one of the root's number; it tells at most
//! [`FAN`] processes, and at most [`FAN`] threads of its own, each of which tells as many.

/// Ends of `processes` times `threads`, seen from one that broadcasts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tree {
    processes: u32,
    threads: u32,
    root: u32,
}

impl Tree {
    pub(crate) fn new(processes: u32, threads: u32, root: u32) -> Self {
        Self { processes, threads, root }
    }

    /// Who tells this end.
    pub(crate) fn above(self, end: u32) -> Option<u32> {
        match self.seen(end) {
            (0, 0) => None,
            (process, 0) => Some(self.end((process - 1) / FAN, 0)),
            (process, thread) => Some(self.end(process, (thread - 1) / FAN)),
        }
    }

    /// Whom this end tells: at most [`BELOW_MAX`].
    pub(crate) fn below(self, end: u32) -> impl Iterator<Item = u32> {
        let (process, thread) = self.seen(end);
        let processes = if thread == 0 { children(process, self.processes) } else { 0..0 };
        let threads = children(thread, self.threads);
        let processes = processes.map(move |it| self.end(it, 0));
        processes.chain(threads.map(move |it| self.end(process, it)))
    }

    /// Process and thread, counted from those of the root.
    fn seen(self, end: u32) -> (u32, u32) {
        let from =
            |it: u32, root: u32, all: u32| if it < root { it + (all - root) } else { it - root };
        (
            from(end / self.threads, self.root / self.threads, self.processes),
            from(end % self.threads, self.root % self.threads, self.threads),
        )
    }

    /// The reverse.
    fn end(self, process: u32, thread: u32) -> u32 {
        let to = |it: u32, root: u32, all: u32| {
            if it < all - root { it + root } else { it - (all - root) }
        };
        let process = to(process, self.root / self.threads, self.processes);
        process * self.threads + to(thread, self.root % self.threads, self.threads)
    }
}

/// Those below one of `all`.
fn children(it: u32, all: u32) -> std::ops::Range<u32> {
    let first = it.saturating_mul(FAN).saturating_add(1).min(all);
    first..first.saturating_add(FAN).min(all)
}

/// Processes that one tells, and threads that one tells.
pub(crate) const FAN: u32 = 4;
/// Ends that one tells.
pub(crate) const BELOW_MAX: u32 = 2 * FAN;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn everybody_is_told_once_by_the_one_above(
            processes in 1_u32..70,
            threads in 1_u32..70,
            root: prop::sample::Index,
        ) {
            let ends = processes * threads;
            let root = u32::try_from(root.index(ends as usize)).unwrap();
            let tree = Tree::new(processes, threads, root);
            prop_assert_eq!(tree.above(root), None);
            let (mut told, mut queue) = (vec![false; ends as usize], VecDeque::from([root]));
            let mut between_processes = 0;
            while let Some(end) = queue.pop_front() {
                prop_assert!(!std::mem::replace(&mut told[end as usize], true), "told twice");
                prop_assert!(tree.below(end).count() <= BELOW_MAX as usize);
                for below in tree.below(end) {
                    prop_assert_eq!(tree.above(below), Some(end));
                    between_processes += u32::from(below / threads != end / threads);
                    queue.push_back(below);
                }
            }
            prop_assert!(told.into_iter().all(|it| it), "somebody is left out");
            prop_assert_eq!(between_processes, processes - 1);
        }
    }
}
