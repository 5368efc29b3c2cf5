//! Has everything run? Waves that count calls along a tree of all ends, without I/O.
//!
//! An end reports how many calls it has made and run, with those of the ends below it, once it has entered the barrier and those below it have
//! reported. The root compares: calls made and run are equally many, and as many as in the wave before, which had ended before this one began.
//! Then nothing ran, nor was on its way, between the two (Mattern 1987, four counters). Otherwise it begins another wave.
//!
//! Service threads enter with the first worker of their process, which asks them, and report to it alone.
//!
//! ```text
//! Outside --enter--> Counting --all below have reported--> Reported --Again--> Counting
//!                        (the root: Again to all, or Done)     +------Done----> Outside
//! ```

/// What is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Out {
    /// To the end above: calls made and run below, itself included.
    Report(u64, u64),
    /// To the ends below: once more.
    Again,
    /// To the ends below: everything has run.
    Done,
    /// To nobody: this end below has entered the barrier of this other group.
    Differ(u32, Option<u32>),
}

/// The ends of a process, in their order: workers, then service threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) processes: u32,
    pub(crate) workers: u32,
    pub(crate) services: u32,
}

impl Shape {
    /// Ends of one process.
    pub(crate) fn threads(self) -> u32 {
        self.workers + self.services
    }

    /// The place of a worker in the tree; none of a service thread.
    fn place(self, end: u32) -> Option<u32> {
        let (process, thread) = (end / self.threads(), end % self.threads());
        (thread < self.workers).then_some(process * self.workers + thread)
    }

    fn end(self, place: u32) -> u32 {
        place / self.workers * self.threads() + place % self.workers
    }
}

/// One end in the barrier.
#[derive(Debug)]
pub(crate) struct Quiet {
    me: u32,
    shape: Shape,
    phase: Phase,
    /// Of which group the barrier is; all calls otherwise.
    group: Option<u32>,
    /// Of those below, in their order.
    reports: Vec<Option<Report>>,
    /// What this end has counted last, itself.
    own: (u64, u64),
    /// The root: the sum of the wave before.
    last: Option<(u64, u64)>,
}

/// Of which group an end below has entered the barrier, and the calls made and run there.
type Report = (Option<u32>, (u64, u64));

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Outside,
    Counting,
    Reported,
}

impl Quiet {
    pub(crate) fn new(me: u32, shape: Shape) -> Self {
        let mut it = Self {
            me,
            shape,
            phase: Phase::Outside,
            group: None,
            reports: Vec::new(),
            own: (0, 0),
            last: None,
        };
        it.reports = vec![None; it.below().count()];
        it
    }

    pub(crate) fn above(&self) -> Option<u32> {
        match self.shape.place(self.me) {
            Some(place) => Some(self.shape.end(place.checked_sub(1)? / 2)),
            None => Some(self.me - self.me % self.shape.threads()),
        }
    }

    pub(crate) fn below(&self) -> impl Iterator<Item = u32> + use<> {
        let (me, shape) = (self.me, self.shape);
        let all = shape.processes * shape.workers;
        let places = shape.place(me).map(|place| [2 * place + 1, 2 * place + 2]);
        let places = places.into_iter().flatten().filter(move |it| *it < all);
        places.map(move |it| shape.end(it)).chain(self.services())
    }

    /// The one above, and those below.
    pub(crate) fn beside(&self) -> impl Iterator<Item = u32> + use<> {
        self.above().into_iter().chain(self.below())
    }

    pub(crate) fn is_beside(&self, end: u32) -> bool {
        self.beside().any(|it| it == end)
    }

    /// The service threads that enter with this end, and report to it: of each process's first worker.
    pub(crate) fn services(&self) -> std::ops::Range<u32> {
        let threads = self.shape.threads();
        let is_first = self.me.is_multiple_of(threads);
        self.me + self.shape.workers..self.me + if is_first { threads } else { self.shape.workers }
    }

    /// Enters the barrier of a group, or of all calls.
    pub(crate) fn enter(&mut self, group: Option<u32>) {
        self.group = group;
        self.phase = Phase::Counting;
        self.last = None;
    }

    pub(crate) fn group(&self) -> Option<u32> {
        self.group
    }

    /// The barrier has ended, or does not end. Whether the one above was still to answer.
    pub(crate) fn leave(&mut self) -> bool {
        std::mem::replace(&mut self.phase, Phase::Outside) == Phase::Reported
    }

    /// The calls made and run that this end has reported last: with those of all others, of that barrier, equally many.
    pub(crate) fn reported_last(&self) -> (u64, u64) {
        self.own
    }

    /// Whether the barrier is behind this end.
    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Outside
    }

    /// Asked again and again inside the barrier, with the calls that this end has made and run.
    pub(crate) fn step(&mut self, made: u64, run: u64) -> Option<Out> {
        if self.phase != Phase::Counting || self.reports.iter().any(Option::is_none) {
            return None;
        }
        let places = self.below().zip(&self.reports);
        let differs =
            places.filter_map(|(end, it)| Some((end, (*it)?.0))).find(|it| it.1 != self.group);
        let reported = self.reports.iter_mut().filter_map(Option::take);
        self.own = (made, run);
        // What others report is a claim: it may be anything.
        let add =
            |sum: (u64, u64), (_, it): Report| (sum.0.wrapping_add(it.0), sum.1.wrapping_add(it.1));
        let total = reported.fold((made, run), add);
        if let Some((end, group)) = differs {
            return Some(Out::Differ(end, group));
        }
        if self.me != 0 {
            self.phase = Phase::Reported;
            return Some(Out::Report(total.0, total.1));
        }
        if total.0 == total.1 && self.last == Some(total) {
            self.phase = Phase::Outside;
            return Some(Out::Done);
        }
        self.last = Some(total);
        Some(Out::Again)
    }

    /// An end has reported. `false`: it is none of those below.
    pub(crate) fn reported(
        &mut self,
        from: u32,
        group: Option<u32>,
        (made, run): (u64, u64),
    ) -> bool {
        let place = self.below().position(|it| it == from);
        if let Some(place) = place {
            self.reports[place] = Some((group, (made, run)));
        }
        place.is_some()
    }

    /// The end above says what the root has decided. Whether the same is to be sent to those below: not what nobody waits for.
    pub(crate) fn decided(&mut self, done: bool) -> bool {
        let is_awaited = self.phase == Phase::Reported;
        if is_awaited {
            self.phase = if done { Phase::Outside } else { Phase::Counting };
        }
        is_awaited
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// Ends that call one another while they are in the barrier; messages between two ends stay in order.
    struct World {
        quiet: Vec<Quiet>,
        made: Vec<u64>,
        run: Vec<u64>,
        /// Messages from one end to another.
        ways: Vec<Vec<VecDeque<Message>>>,
        /// How many barriers each has entered, and how many have ended.
        entered: Vec<u32>,
        ended: u32,
        /// At the end of a barrier what was reported is taken off, as of a group's calls.
        takes_off: bool,
    }

    #[derive(Debug, Clone, Copy)]
    enum Message {
        /// Makes so many calls more; one of the group, as they are.
        Call(u8, bool),
        /// To a service thread.
        Enter,
        Out(Out),
    }

    impl World {
        fn new(shape: Shape, takes_off: bool) -> Self {
            let count = shape.processes * shape.threads();
            let ends = count as usize;
            Self {
                quiet: (0..count).map(|me| Quiet::new(me, shape)).collect(),
                made: vec![0; ends],
                run: vec![0; ends],
                ways: vec![vec![VecDeque::new(); ends]; ends],
                entered: vec![0; ends],
                ended: 0,
                takes_off,
            }
        }

        fn enter(&mut self, me: usize) {
            self.entered[me] += 1;
            self.quiet[me].enter(Some(1));
            for to in self.quiet[me].services() {
                self.ways[me][to as usize].push_back(Message::Enter);
            }
        }

        fn call(&mut self, from: usize, to: usize, more: u8, counts: bool) {
            self.made[from] += u64::from(counts);
            self.ways[from][to].push_back(Message::Call(more, counts));
        }

        fn calls_left(&self) -> usize {
            let all = self.ways.iter().flatten().flatten();
            all.filter(|it| matches!(it, Message::Call(_, true))).count()
        }

        fn send(&mut self, me: usize, out: Out) {
            if out == Out::Done && me == 0 {
                assert_eq!(self.calls_left(), 0, "an early end");
                self.ended += 1;
                assert_eq!(self.entered, vec![self.ended; self.quiet.len()], "nobody is left out");
            }
            if out == Out::Done && self.takes_off {
                let (made, run) = self.quiet[me].reported_last();
                (self.made[me], self.run[me]) = (self.made[me] - made, self.run[me] - run);
            }
            let to: Vec<u32> = match out {
                Out::Report(..) => self.quiet[me].above().into_iter().collect(),
                Out::Again | Out::Done | Out::Differ(..) => self.quiet[me].below().collect(),
            };
            for to in to {
                self.ways[me][to as usize].push_back(Message::Out(out));
            }
        }

        fn deliver(&mut self, from: usize, to: usize, target: usize) {
            match self.ways[from][to].pop_front() {
                None => {}
                Some(Message::Call(more, counts)) => {
                    self.run[to] += u64::from(counts);
                    for at in 0..usize::from(more) {
                        self.call(to, (target + at) % self.quiet.len(), more - 1, counts);
                    }
                }
                Some(Message::Enter) => self.enter(to),
                Some(Message::Out(Out::Report(made, run))) => {
                    let from = u32::try_from(from).unwrap();
                    assert!(self.quiet[to].reported(from, Some(1), (made, run)));
                }
                Some(Message::Out(out)) => {
                    assert!(self.quiet[to].decided(out == Out::Done));
                    self.send(to, out);
                }
            }
        }

        fn step(&mut self, me: usize) {
            if !self.quiet[me].is_over()
                && let Some(out) = self.quiet[me].step(self.made[me], self.run[me])
            {
                self.send(me, out);
            }
        }
    }

    impl World {
        /// What an end does, or what comes from one to another.
        fn happens(&mut self, kind: u8, (a, b, c): (usize, usize, usize), barriers: u32) {
            let ends = self.quiet.len();
            let (a, b, c) = (a % ends, b % ends, c % ends);
            let is_outside = self.quiet[a].is_over();
            // Service threads enter when they are asked.
            let is_worker = self.quiet[a].shape.place(self.quiet[a].me).is_some();
            match kind {
                0 => self.deliver(a, b, c),
                1 => self.step(a),
                2 if is_worker && is_outside && self.entered[a] < barriers => self.enter(a),
                // Others may not have heard yet that the barrier has ended.
                3 if is_worker && is_outside && self.entered[a] < barriers => {
                    self.call(a, b, u8::try_from(c % 3).unwrap(), c % 2 == 0);
                }
                _ => {}
            }
        }
    }

    proptest! {
        #[test]
        fn no_barrier_of_several_ends_early_or_never(
            (processes, workers, services) in (1_u32..4, 1_u32..4, 0_u32..3),
            (barriers, takes_off) in (1_u32..4, any::<bool>()),
            calls in prop::collection::vec((0_usize..15, 0_usize..15, 0_u8..4, any::<bool>()), 0..12),
            moves in prop::collection::vec((0_u8..4, 0_usize..15, 0_usize..15, 0_usize..15), 0..600),
        ) {
            let shape = Shape { processes, workers, services };
            let ends = (processes * shape.threads()) as usize;
            let mut world = World::new(shape, takes_off);
            for (from, to, more, counts) in calls {
                world.call(from % ends, to % ends, more, counts);
            }
            for (kind, a, b, c) in moves {
                world.happens(kind, (a, b, c), barriers);
            }
            let is_over = |world: &World| {
                world.ended == barriers && world.quiet.iter().all(Quiet::is_over)
            };
            let mut rounds = 200 * barriers;
            while !is_over(&world) && rounds > 0 {
                rounds -= 1;
                for (a, b) in (0..ends).flat_map(|a| (0..ends).map(move |b| (a, b))) {
                    (0..3).for_each(|kind| world.happens(kind, (a, b, a), barriers));
                }
            }
            prop_assert!(is_over(&world), "a missed end");
            let last = world.quiet.iter().map(Quiet::reported_last);
            let last = last.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
            prop_assert_eq!(last.0, last.1, "what is taken off at the end is equally many");
        }
    }
}
