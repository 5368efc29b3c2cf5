//! Jobs that wait for a thread, and whose turn it is.

use std::{collections::VecDeque, mem};

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
    /// Origins with something that waits.
    turn: VecDeque<Origin>,
    /// Jobs that have a thread.
    busy: usize,
    /// Jobs that wait.
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
    /// What waits.
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
        let may_have = |origin: &Origin| {
            // The engine's own jobs keep nobody else's peer from anything.
            *origin == Origin::Engine || self.origins.get(origin).is_some_and(|it| it.busy < free)
        };
        let first = self.turn.iter().position(may_have).filter(|_| free > 0)?;
        self.turn.rotate_left(first);
        let origin = self.turn.pop_front()?;
        let queue = self.origins.get_mut(&origin)?;
        let job = queue.jobs.pop_front()?;
        if !queue.jobs.is_empty() {
            self.turn.push_back(origin);
        }
        queue.busy += 1;
        self.busy += 1;
        self.waiting -= 1;
        Some(Work { origin, job })
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
        let jobs = queue.map(|queue| mem::take(&mut queue.jobs)).unwrap_or_default();
        self.waiting -= jobs.len();
        self.turn.retain(|origin| *origin != Origin::Engine);
        self.forget_idle(Origin::Engine);
        jobs
    }

    /// All jobs that wait.
    pub(crate) fn take_all(&mut self) -> Vec<Job> {
        self.turn.clear();
        self.waiting = 0;
        let queues = self.origins.values_mut();
        let jobs = queues.flat_map(|queue| mem::take(&mut queue.jobs)).collect();
        self.origins.retain(|_, queue| queue.busy > 0);
        jobs
    }

    fn forget_idle(&mut self, origin: Origin) {
        let is_idle = |it: &Queue| it.busy == 0 && it.jobs.is_empty();
        if self.origins.get(&origin).is_some_and(is_idle) {
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
    fn the_engines_own_jobs_have_every_thread_if_nobody_else_waits() {
        let mut queues = Queues::default();
        fill(&mut queues, Origin::Engine, 10);
        assert_eq!(started(&mut queues, 4), [Origin::Engine; 4]);
        fill(&mut queues, peer(1), 2);
        queues.end(Origin::Engine);
        queues.end(Origin::Engine);
        assert_eq!(started(&mut queues, 4), [Origin::Engine, peer(1)]);
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
            steps in prop::collection::vec((0_u32..6, 0_u32..3), 0..300),
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
                let waiting: usize = queues.origins.values().map(|it| it.jobs.len()).sum();
                prop_assert_eq!(queues.waiting(), waiting);
                for (origin, queue) in &queues.origins {
                    prop_assert!(queue.busy + queue.jobs.len() > 0);
                    prop_assert_eq!(queues.turn.contains(origin), !queue.jobs.is_empty());
                }
            }
            for origin in busy.drain(..) {
                queues.end(origin);
            }
            queues.take_all();
            prop_assert!(queues.origins.is_empty() && queues.busy == 0);
        }
    }
}
