//! Jobs that wait for a thread, and whose turn it is.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::platform::Job;

/// For whom a job is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    /// The engine itself: memory to be given back. Such a job may be run by any thread.
    Engine,
    /// A peer of a port.
    Peer(u64, hg_na::Peer),
}

/// A job that has its thread.
pub(crate) struct Work {
    pub(crate) origin: Origin,
    pub(crate) job: Job,
}

/// One queue an origin, served in turn.
#[derive(Default)]
pub(crate) struct Queues {
    origins: FxHashMap<Origin, Queue>,
    /// Origins with jobs that wait.
    turn: VecDeque<Origin>,
    /// Jobs that have a thread.
    busy: usize,
    waiting: usize,
}

/// Those of one origin.
#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Jobs that have a thread.
    busy: usize,
}

impl Queues {
    /// Jobs that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(crate) fn push(&mut self, origin: Origin, job: Job) {
        let queue = self.origins.entry(origin).or_default();
        if queue.jobs.is_empty() {
            self.turn.push_back(origin);
        }
        queue.jobs.push_back(job);
        self.waiting += 1;
    }

    /// The next job, of so many threads in all: of the first origin in turn that has fewer than are still to be had.
    pub(crate) fn next(&mut self, threads: usize) -> Option<Work> {
        let free = threads.saturating_sub(self.busy);
        if free == 0 {
            return None;
        }
        for _ in 0..self.turn.len() {
            let origin = self.turn.pop_front()?;
            let queue = self.origins.get_mut(&origin)?;
            if queue.busy >= free {
                self.turn.push_back(origin);
                continue;
            }
            let job = queue.jobs.pop_front()?;
            queue.busy += 1;
            if !queue.jobs.is_empty() {
                self.turn.push_back(origin);
            }
            self.busy += 1;
            self.waiting -= 1;
            return Some(Work { origin, job });
        }
        None
    }

    /// A job has no thread after all: it is the next one of its origin.
    pub(crate) fn put_back(&mut self, Work { origin, job }: Work) {
        let queue = self.origins.entry(origin).or_default();
        if queue.jobs.is_empty() {
            self.turn.push_front(origin);
        }
        queue.jobs.push_front(job);
        queue.busy -= 1;
        self.busy -= 1;
        self.waiting += 1;
    }

    /// A job of this origin has ended.
    pub(crate) fn end(&mut self, origin: Origin) {
        self.busy -= 1;
        if let Some(queue) = self.origins.get_mut(&origin) {
            queue.busy -= 1;
            self.forget_idle(origin);
        }
    }

    /// The engine's own jobs that wait.
    pub(crate) fn take_own(&mut self) -> VecDeque<Job> {
        let queue = self.origins.get_mut(&Origin::Engine);
        let jobs = queue.map(|queue| std::mem::take(&mut queue.jobs)).unwrap_or_default();
        self.waiting -= jobs.len();
        self.turn.retain(|origin| *origin != Origin::Engine);
        self.forget_idle(Origin::Engine);
        jobs
    }

    /// All jobs that wait.
    pub(crate) fn take_all(&mut self) -> Vec<Job> {
        self.turn.clear();
        self.waiting = 0;
        let jobs = self.origins.values_mut().flat_map(|queue| std::mem::take(&mut queue.jobs));
        let jobs = jobs.collect();
        self.origins.retain(|_, queue| queue.busy > 0);
        jobs
    }

    fn forget_idle(&mut self, origin: Origin) {
        if self.origins.get(&origin).is_some_and(|it| it.busy == 0 && it.jobs.is_empty()) {
            self.origins.remove(&origin);
        }
    }
}

#[cfg(test)]
mod tests {
    use hg_na::Peer;
    use proptest::prelude::*;

    use super::*;

    fn peer(number: u32) -> Origin {
        Origin::Peer(0, Peer::new(number, 0))
    }

    fn fill(queues: &mut Queues, origin: Origin, jobs: usize) {
        for _ in 0..jobs {
            queues.push(origin, Box::new(|| ()));
        }
    }

    fn started(queues: &mut Queues, threads: usize) -> Vec<Origin> {
        std::iter::from_fn(|| queues.next(threads).map(|work| work.origin)).collect()
    }

    #[test]
    fn an_origin_alone_has_half_and_the_next_one_half_of_the_rest() {
        let mut queues = Queues::default();
        fill(&mut queues, peer(1), 100);
        assert_eq!(started(&mut queues, 16).len(), 8);
        fill(&mut queues, peer(2), 100);
        assert_eq!(started(&mut queues, 16), vec![peer(2); 4]);
        // With each that ends, the shares come nearer to each other.
        for _ in 0..20 {
            queues.end(peer(1));
            started(&mut queues, 16);
        }
        let busy = |origin| queues.origins[&origin].busy;
        assert!(busy(peer(1)).abs_diff(busy(peer(2))) <= 1, "{} {}", busy(peer(1)), busy(peer(2)));
    }

    #[test]
    fn origins_are_served_in_turn() {
        let mut queues = Queues::default();
        for origin in 1..=3 {
            fill(&mut queues, peer(origin), 2);
        }
        let order: Vec<_> = started(&mut queues, 100);
        assert_eq!(order, [1, 2, 3, 1, 2, 3].map(peer));
    }

    #[test]
    fn what_is_put_back_is_the_next_one() {
        let mut queues = Queues::default();
        fill(&mut queues, peer(1), 1);
        fill(&mut queues, peer(2), 1);
        let work = queues.next(4).expect("there are two");
        queues.put_back(work);
        assert_eq!((queues.waiting(), queues.busy), (2, 0));
        assert_eq!(started(&mut queues, 4), [1, 2].map(peer));
    }

    proptest! {
        #[test]
        fn nobody_who_waits_without_a_thread_finds_none_while_any_is_to_be_had(
            threads in 1_usize..20,
            steps in prop::collection::vec((0_u32..6, 0..3), 0..300),
        ) {
            let mut queues = Queues::default();
            let mut busy: Vec<Origin> = Vec::new();
            for (number, what) in steps {
                match what {
                    0 | 1 => fill(&mut queues, peer(number), 1),
                    _ if busy.is_empty() => {}
                    _ => queues.end(busy.swap_remove(number as usize % busy.len())),
                }
                busy.extend(started(&mut queues, threads));
                prop_assert!(busy.len() <= threads);
                prop_assert_eq!(queues.busy, busy.len());
                let without = |(origin, queue): (&Origin, &Queue)| {
                    !queue.jobs.is_empty() && !busy.contains(origin)
                };
                prop_assert!(busy.len() == threads || !queues.origins.iter().any(without));
                let waiting: usize = queues.origins.values().map(|queue| queue.jobs.len()).sum();
                prop_assert_eq!(queues.waiting(), waiting);
                prop_assert!(queues.origins.values().all(|it| it.busy > 0 || !it.jobs.is_empty()));
            }
            for origin in busy.drain(..) {
                queues.end(origin);
            }
            queues.take_all();
            prop_assert!(queues.origins.is_empty() && queues.busy == 0);
        }
    }
}
