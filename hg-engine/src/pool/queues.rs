//! Jobs that wait for a thread, and whose turn it is.
//!
//! A job may be announced before it is there: its turn ([`Ticket`]) waits among the jobs of its origin, and counts as one of them once it
//! has come, so that later jobs of that origin do not take its thread. It counts for nobody else: what the job still waits for may
//! never come.

use std::{collections::VecDeque, mem, sync::Arc, task::Waker};

use rustc_hash::FxHashMap;

use crate::{
    platform::Job,
    ticket::{Ticket, Turn},
};

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

/// What waits in a queue.
enum Entry {
    Job(Job),
    /// One that had its turn before: it waits for none that was announced, which may wait for what it holds.
    Due(Job),
    /// A job that was announced.
    Ticket(Arc<Ticket>),
}

impl Entry {
    fn is(&self, ticket: &Arc<Ticket>) -> bool {
        matches!(self, Self::Ticket(it) if Arc::ptr_eq(it, ticket))
    }
}

/// One queue an origin, served in turn.
#[derive(Default)]
pub(crate) struct Queues {
    origins: FxHashMap<Origin, Queue>,
    /// Origins with something that waits.
    turn: VecDeque<Origin>,
    /// Jobs that have a thread.
    busy: usize,
    /// Jobs that wait, and tickets.
    waiting: usize,
    /// Whose turn has come, to be woken without the lock.
    pub(crate) woken: Vec<Waker>,
}

/// Those of one origin.
#[derive(Default)]
struct Queue {
    entries: VecDeque<Entry>,
    /// Jobs that have a thread.
    busy: usize,
    /// Those that were announced, and whose turn has come.
    announced: usize,
}

impl Queues {
    /// What waits.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(crate) fn push(&mut self, origin: Origin, job: Job) {
        self.push_entry(origin, Entry::Job(job));
    }

    /// A job will come, once its turn has.
    pub(crate) fn announce(&mut self, origin: Origin, ticket: Arc<Ticket>) {
        self.push_entry(origin, Entry::Ticket(ticket));
    }

    fn push_entry(&mut self, origin: Origin, entry: Entry) {
        let queue = self.origins.entry(origin).or_default();
        if queue.entries.is_empty() {
            self.turn.push_back(origin);
        }
        queue.entries.push_back(entry);
        self.waiting += 1;
    }

    /// The next job, of so many threads in all: of the first origin in turn that has fewer than are still to be had.
    pub(crate) fn next(&mut self, threads: usize) -> Option<Work> {
        let free = threads.saturating_sub(self.busy);
        if free == 0 {
            return None;
        }
        let mut passed = 0;
        while passed < self.turn.len() {
            let origin = self.turn.pop_front()?;
            let queue = self.origins.get_mut(&origin)?;
            // Each that was announced takes one more, and is to find one more.
            let is_due = matches!(queue.entries.front(), Some(Entry::Due(_)));
            let kept = if is_due { 0 } else { 2 * queue.announced };
            // The engine's own jobs keep nobody else's peer from anything.
            if origin != Origin::Engine && queue.busy + kept >= free {
                self.turn.push_back(origin);
                passed += 1;
                continue;
            }
            let entry = queue.entries.pop_front()?;
            if !queue.entries.is_empty() {
                self.turn.push_back(origin);
            }
            self.waiting -= 1;
            match entry {
                Entry::Job(job) | Entry::Due(job) => {
                    queue.busy += 1;
                    self.busy += 1;
                    return Some(Work { origin, job });
                }
                Entry::Ticket(ticket) => {
                    queue.announced += 1;
                    self.woken.extend(ticket.end(Turn::HasCome));
                    passed = 0;
                }
            }
        }
        None
    }

    /// A job has no thread after all: it is the next one of its origin.
    pub(crate) fn put_back(&mut self, Work { origin, job }: Work) {
        self.busy -= 1;
        let queue = self.push_first(origin, job);
        queue.busy -= 1;
    }

    /// The job that was announced is there, and is the next one of its origin.
    pub(crate) fn push_announced(&mut self, origin: Origin, job: Job) {
        let queue = self.push_first(origin, job);
        queue.announced -= 1;
    }

    fn push_first(&mut self, origin: Origin, job: Job) -> &mut Queue {
        let queue = self.origins.entry(origin).or_default();
        if queue.entries.is_empty() {
            self.turn.push_front(origin);
        }
        queue.entries.push_front(Entry::Due(job));
        self.waiting += 1;
        queue
    }

    /// The job that was announced will not come.
    pub(crate) fn leave(&mut self, origin: Origin, ticket: &Arc<Ticket>) {
        let Some(queue) = self.origins.get_mut(&origin) else { return };
        match ticket.state() {
            None => {
                queue.entries.retain(|entry| !entry.is(ticket));
                self.waiting -= 1;
                if queue.entries.is_empty() {
                    self.turn.retain(|it| *it != origin);
                }
            }
            Some(true) => queue.announced -= 1,
            Some(false) => {}
        }
        self.forget_idle(origin);
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
    pub(crate) fn take_own(&mut self) -> Vec<Job> {
        let queue = self.origins.get_mut(&Origin::Engine);
        let entries = queue.map(|queue| mem::take(&mut queue.entries)).unwrap_or_default();
        self.waiting -= entries.len();
        self.turn.retain(|origin| *origin != Origin::Engine);
        self.forget_idle(Origin::Engine);
        entries.into_iter().filter_map(|entry| self.end_entry(entry)).collect()
    }

    /// All jobs that wait; those that were announced are told that they need not come.
    pub(crate) fn take_all(&mut self) -> Vec<Job> {
        self.turn.clear();
        self.waiting = 0;
        let queues = self.origins.values_mut();
        let entries: Vec<_> = queues.flat_map(|queue| mem::take(&mut queue.entries)).collect();
        let is_left = |queue: &Queue| queue.busy > 0 || queue.announced > 0;
        self.origins.retain(|_, queue| is_left(queue));
        entries.into_iter().filter_map(|entry| self.end_entry(entry)).collect()
    }

    fn end_entry(&mut self, entry: Entry) -> Option<Job> {
        match entry {
            Entry::Job(job) | Entry::Due(job) => Some(job),
            Entry::Ticket(ticket) => {
                self.woken.extend(ticket.end(Turn::Never));
                None
            }
        }
    }

    fn forget_idle(&mut self, origin: Origin) {
        let is_idle = |it: &Queue| it.busy == 0 && it.announced == 0 && it.entries.is_empty();
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

    fn ticket() -> Arc<Ticket> {
        Ticket::new(Turn::Waits(None))
    }

    fn has_come(ticket: &Ticket) -> bool {
        ticket.has_come(Waker::noop()) == Some(true)
    }

    #[test]
    fn a_job_that_was_announced_has_its_thread_before_later_ones_of_its_origin() {
        let mut queues = Queues::default();
        let first = ticket();
        queues.announce(peer(1), Arc::clone(&first));
        fill(&mut queues, peer(1), 2);
        // Alone it may have two of four threads: one is kept.
        assert_eq!(started(&mut queues, 4).len(), 1);
        assert!(has_come(&first));
        // Nobody else is kept from any.
        fill(&mut queues, peer(2), 2);
        assert_eq!(started(&mut queues, 4).len(), 2);
        queues.end(peer(2));
        queues.push_announced(peer(1), Box::new(|| ()));
        assert_eq!(started(&mut queues, 4), [peer(1)]);
    }

    #[test]
    fn a_job_that_is_brought_waits_for_none_that_is_announced() {
        let mut queues = Queues::default();
        let tickets = [ticket(), ticket()];
        for it in &tickets {
            queues.announce(peer(1), Arc::clone(it));
        }
        assert!(started(&mut queues, 4).is_empty() && tickets.iter().all(|it| has_come(it)));
        fill(&mut queues, peer(2), 2);
        assert_eq!(started(&mut queues, 4).len(), 2);
        // What the second one waits for the first one may hold.
        queues.push_announced(peer(1), Box::new(|| ()));
        assert_eq!(started(&mut queues, 4), [peer(1)]);
    }

    #[test]
    fn the_turn_of_a_job_comes_once_its_origin_may_have_a_thread() {
        let mut queues = Queues::default();
        fill(&mut queues, peer(1), 2);
        assert_eq!(started(&mut queues, 4).len(), 2);
        let tickets = [ticket(), ticket()];
        for it in &tickets {
            queues.announce(peer(1), Arc::clone(it));
        }
        assert!(started(&mut queues, 4).is_empty() && !has_come(&tickets[0]));
        queues.end(peer(1));
        assert!(started(&mut queues, 4).is_empty());
        assert!(has_come(&tickets[0]) && !has_come(&tickets[1]));
        queues.leave(peer(1), &tickets[0]);
        assert!(started(&mut queues, 4).is_empty() && has_come(&tickets[1]));
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

    /// What was announced of each origin and has not come or left yet.
    #[derive(Default)]
    struct Announced(Vec<(Origin, Arc<Ticket>)>);

    impl Announced {
        fn step(&mut self, queues: &mut Queues, number: u32, what: u32) {
            let of_origin = self.0.iter().position(|(origin, _)| *origin == peer(number));
            let (origin, it) = match of_origin {
                Some(place) if what > 0 => self.0.swap_remove(place),
                _ => {
                    self.0.push((peer(number), ticket()));
                    let (origin, it) = &self.0[self.0.len() - 1];
                    return queues.announce(*origin, Arc::clone(it));
                }
            };
            if what == 1 && has_come(&it) {
                queues.push_announced(origin, Box::new(|| ()));
            } else {
                queues.leave(origin, &it);
            }
        }

        fn that_have_come(&self, of: Origin) -> usize {
            self.0.iter().filter(|(origin, it)| *origin == of && has_come(it)).count()
        }
    }

    proptest! {
        #[test]
        fn nobody_who_waits_without_a_thread_finds_none_while_any_is_to_be_had(
            threads in 1_usize..20,
            steps in prop::collection::vec((0_u32..6, 0_u32..6), 0..300),
        ) {
            let mut queues = Queues::default();
            let mut busy: Vec<Origin> = Vec::new();
            let mut announced = Announced::default();
            for (number, what) in steps {
                match what {
                    0 | 1 => fill(&mut queues, peer(number), 1),
                    2..5 => announced.step(&mut queues, number, what - 2),
                    _ if busy.is_empty() => {}
                    _ => queues.end(busy.swap_remove(number as usize % busy.len())),
                }
                busy.extend(started(&mut queues, threads));
                prop_assert!(busy.len() <= threads);
                prop_assert_eq!(queues.busy, busy.len());
                let without = |(origin, queue): (&Origin, &Queue)| {
                    let has_any = queue.announced > 0 || busy.contains(origin);
                    !queue.entries.is_empty() && !has_any
                };
                prop_assert!(busy.len() == threads || !queues.origins.iter().any(without));
                let waiting: usize = queues.origins.values().map(|it| it.entries.len()).sum();
                prop_assert_eq!(queues.waiting(), waiting);
                for (origin, queue) in &queues.origins {
                    prop_assert_eq!(queue.announced, announced.that_have_come(*origin));
                    prop_assert!(queue.busy + queue.announced + queue.entries.len() > 0);
                    prop_assert_eq!(queues.turn.contains(origin), !queue.entries.is_empty());
                }
            }
            for (origin, it) in announced.0 {
                queues.leave(origin, &it);
            }
            for origin in busy.drain(..) {
                queues.end(origin);
            }
            queues.take_all();
            prop_assert!(queues.origins.is_empty() && queues.busy == 0);
        }
    }
}
