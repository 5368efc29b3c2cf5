//! Draws a story from a seed.

mod stop;

use super::{Act, Call, Event, FIRST, Manner, Settings, Story, What};
use crate::{interrupts::Interrupts, net::Rules, random::Random, rpcs::Kind};

const MICRO: u64 = 1000;
const MILLI: u64 = 1_000_000;

/// What kinds of things happen in a story, and how often: of a hundred.
struct Mood {
    /// Calls that are never answered before they are cancelled.
    until_cancelled: u64,
    /// Calls to processes that hang.
    to_hung: u64,
    one_way: u64,
    transfers: u64,
    large: u64,
    deadlines: u64,
    /// Handlers that do not answer as they should.
    bad: u64,
    slow: u64,
    /// Events that are no calls, of a thousand.
    faults: u64,
    /// Calls that wait for room first.
    waits_for_room: u64,
    /// Several calls of one kind at a time.
    bursts: u64,
    /// Nanoseconds between two events.
    gap: u64,
}

/// Events of a story at least.
const EVENTS_MIN: u64 = 300;

/// In so many stories of a hundred two processes have limits as by default, and nothing happens to them: their calls to each other
/// have no reason to wait, whatever others do.
const CALM: u64 = 30;

pub(super) fn story(seed: u64, random: &mut Random) -> Story {
    let processes = random.between(2, 6);
    let mut settings: Vec<_> = (0..processes).map(|_| settings(random)).collect();
    let hung = match random.below(20) {
        0..12 => 0,
        12..19 => random.between(1, 4),
        _ => random.between(20, 100),
    };
    let hung = usize::try_from(hung).unwrap_or(0);
    let mut rules = rules(random);
    let mood = mood(random, hung > 0);
    let calm = if random.percent(CALM) { 2 } else { 0 };
    if calm > 0 {
        settings[..calm].iter_mut().for_each(|it| it.make_calm());
        make_calm(&mut rules);
    }
    let mut maker = Maker {
        left_behind: vec![0; settings.len() + 1],
        hogs: vec![vec![false; settings.len() + 1]; settings.len() + 1],
        lives: vec![true; settings.len() + 1],
        hangs: vec![false; settings.len() + 1],
        calm,
        story: Story {
            seed,
            order: seed,
            interrupts: Interrupts::default(),
            rules,
            processes: settings,
            hung,
            events: Vec::with_capacity(512),
        },
        now: MILLI,
        mood,
    };
    let len = random.between(EVENTS_MIN, EVENTS_MIN + 60);
    while (maker.story.events.len() as u64) < len {
        maker.step(random);
    }
    maker.story.events.sort_by_key(|event| event.at);
    maker.stop_a_caller(seed);
    maker.fill_up(seed);
    maker.vary_manners(seed);
    maker.lengthen_a_shortage(seed);
    maker.story.events.sort_by_key(|event| event.at);
    maker.story.rules.put_off = random.pick(&[0, 10, 50]);
    maker.story.interrupts = Interrupts {
        every: random.pick(&[0, 0, 0, 0, 0, 4, 32, 256]),
        under_locks: random.percent(50),
    };
    maker.story
}

fn settings(random: &mut Random) -> Settings {
    Settings {
        in_service_max: random.pick(&[1, 2, 3, 4, 8, 8, 64, 4096]),
        contexts: random.pick(&[1, 1, 1, 2, 3]),
        calls_max: random.pick(&[16, 64, 65_536, 65_536]),
        large_max: random.pick(&[20_000, 1 << 30, 1 << 30, 1 << 30]),
        large_in_service_max: random.pick(&[4_000, 20_000, 1 << 30]),
        backlog_bytes_max: random.pick(&[20_000, 60_000]),
        pool_threads_max: random.pick(&[4, 8, 64, 500]),
        eager_max: random.pick(&[0, 0, 128, 4096]),
        checksum: random.percent(25),
        background: random.percent(75),
        event_loops: random.pick(&[false, false, false, true, true]),
        runtime: random.percent(25),
        spin: random.pick(&[
            Some(0),
            Some(0),
            Some(0),
            Some(0),
            Some(0),
            Some(0),
            Some(0),
            Some(20),
            Some(50),
            None,
        ]),
    }
}

impl Settings {
    /// As by default.
    fn make_calm(&mut self) {
        let (runtime, checksum, spin) = (self.runtime, self.checksum, self.spin);
        *self = Self {
            in_service_max: 4096,
            contexts: 1,
            calls_max: 65_536,
            large_max: 1 << 30,
            large_in_service_max: 1 << 30,
            backlog_bytes_max: 1 << 30,
            pool_threads_max: 512,
            eager_max: 0,
            checksum,
            background: true,
            event_loops: false,
            runtime,
            spin,
        };
    }
}

/// A transport that keeps nobody for long.
fn make_calm(rules: &mut Rules) {
    (rules.credits, rules.credit_lengths, rules.queue_depth, rules.batch) = (64, 64, 64, 32);
    rules.delay_min = rules.delay_min.min(20 * MICRO);
    rules.delay_max = rules.delay_max.min(rules.delay_min + 20 * MICRO);
}

fn rules(random: &mut Random) -> Rules {
    let delay_min = random.pick(&[0, MICRO, 10 * MICRO, 100 * MICRO]);
    let small = |random: &mut Random| random.between(1, 8);
    Rules {
        credits: u32::try_from(if random.percent(70) { small(random) } else { 64 }).unwrap_or(1),
        credit_lengths: random.pick(&[2, 4, 64]),
        queue_depth: usize::try_from(if random.percent(70) { small(random) } else { 64 })
            .unwrap_or(1),
        batch: usize::try_from(if random.percent(50) { small(random) } else { 32 }).unwrap_or(1),
        delay_min,
        delay_max: delay_min + random.pick(&[0, MICRO, 20 * MICRO, MILLI]),
        message_max: random.pick(&[256, 1024, 4096]),
        short_cuts: random.percent(60),
        owner_moves: random.percent(50),
        at_once: random.percent(50),
        put_off: 0,
        waits: random.percent(60),
        views: random.percent(50),
        spurious: random.pick(&[0, 0, 10, 100]),
        planted: None,
    }
}

fn mood(random: &mut Random, has_hung: bool) -> Mood {
    let some = |random: &mut Random, most: u64| {
        if random.percent(60) { random.below(most + 1) } else { 0 }
    };
    Mood {
        until_cancelled: some(random, 30),
        to_hung: if has_hung { random.between(5, 50) } else { 0 },
        one_way: some(random, 30),
        transfers: some(random, 40),
        large: some(random, 30),
        deadlines: random.pick(&[0, 20, 50, 90]),
        bad: some(random, 30),
        slow: some(random, 40),
        faults: random.pick(&[0, 5, 10, 20, 40]),
        waits_for_room: random.pick(&[0, 0, 20, 60]),
        bursts: random.pick(&[0, 2, 5, 10]),
        gap: random.pick(&[MICRO, 20 * MICRO, 200 * MICRO, MILLI]),
    }
}

struct Maker {
    story: Story,
    mood: Mood,
    now: u64,
    /// At each process those who hold on to whatever they get.
    hogs: Vec<Vec<bool>>,
    /// Those of incarnations that have ended, and of connections that were forgotten: whoever connects anew is a new peer with a
    /// share of its own, since no transport vouches that it is the same process.
    left_behind: Vec<u32>,
    lives: Vec<bool>,
    /// Stopped for ever.
    hangs: Vec<bool>,
    /// To the first so many nothing happens.
    calm: usize,
}

impl Maker {
    fn push(&mut self, what: What) {
        self.story.events.push(Event { at: self.now, what });
    }

    fn step(&mut self, random: &mut Random) {
        self.now += random.below(2 * self.mood.gap);
        if random.below(1000) < self.mood.faults {
            return self.fault(random);
        }
        let call = self.call(random);
        let count = if random.percent(self.mood.bursts) { random.between(4, 48) } else { 1 };
        let gap = random.pick(&[0, MICRO, 50 * MICRO]);
        for _ in 0..count {
            if self.may_stay(&call) {
                self.push(What::Call(call.clone()));
            }
            self.now += gap;
        }
    }

    /// A handler that nobody ends takes a place for ever. Of those who have such at one process there are only so many that
    /// fair shares leave some for the others.
    fn may_stay(&mut self, call: &Call) -> bool {
        if call.to > self.story.processes.len() || !call.stays() {
            return true;
        }
        let target = &self.story.processes[call.to - 1];
        if call.lends() && target.large_in_service_max < 1 << 30 {
            return false;
        }
        self.may_hog(call.from, call.to)
    }

    fn may_hog(&mut self, from: usize, to: usize) -> bool {
        let may = self.others_that_hog(from, to) < self.hogs_max(to);
        self.hogs[to][from] |= may;
        may
    }

    /// Whether a process may close its connection to one at which it holds on to what it has: handlers may go on and on there, and
    /// its next connection, by which it may have called already, gets as much again.
    fn may_forget(&mut self, from: usize, to: usize) -> bool {
        if to > self.story.processes.len() || !self.hogs[to][from] {
            return true;
        }
        let may = self.others_that_hog(from, to) + 1 < self.hogs_max(to);
        self.left_behind[to] += u32::from(may);
        may
    }

    /// Those, beside one, that hold on to whatever they get.
    fn others_that_hog(&self, from: usize, to: usize) -> u32 {
        let hogs = self.hogs[to].iter().zip(0..).filter(|(hog, it)| **hog && *it != from);
        hogs.map(|_| 1).sum::<u32>() + self.left_behind[to]
    }

    /// So many may hold on to whatever they get of a process, each one to a half of what those before it have left.
    fn hogs_max(&self, to: usize) -> u32 {
        let target = &self.story.processes[to - 1];
        target.in_service_max.min(target.pool_threads_max).ilog2().saturating_sub(1)
    }

    fn fault(&mut self, random: &mut Random) {
        let it = usize::try_from(random.between(1, self.story.processes.len() as u64)).unwrap_or(1);
        if it <= self.calm {
            return;
        }
        if !self.lives[it] {
            self.lives[it] = true;
            self.hogs[it].fill(false);
            self.left_behind[it] = 0;
            // One-way calls of the one before may go on, as another one's.
            for (hogs, left_behind) in self.hogs.iter_mut().zip(&mut self.left_behind) {
                *left_behind += u32::from(std::mem::take(&mut hogs[it]));
            }
            return self.push(What::Restart(it));
        }
        if self.hangs[it] {
            return;
        }
        match random.below(17) {
            0..4 => {
                let nanos = random.pick(&[100 * MICRO, 2 * MILLI, 20 * MILLI, 200 * MILLI]);
                self.push(What::Stop(it, Some(nanos)));
            }
            4 => {
                // Whoever hangs for ever holds what it has asked for.
                let is_first = !self.hangs.contains(&true);
                if self.story.processes.len() > 2 && is_first && self.may_hang(it) {
                    self.hangs[it] = true;
                    self.push(What::Stop(it, None));
                }
            }
            5..7 => {
                self.lives[it] = false;
                self.push(What::Kill(it));
            }
            7..9 => {
                self.lives[it] = false;
                self.push(What::Close(it));
            }
            9 | 10 => {
                let nanos = random.pick(&[MILLI, 20 * MILLI]);
                self.push(What::NoMemory(it, nanos));
            }
            11 => {
                let other = random.index(self.story.processes.len() + self.story.hung) + 1;
                if other != it && self.may_forget(it, other) {
                    self.push(What::Forget(it, other));
                }
            }
            12 | 13 => {
                let nanos = random.pick(&[MILLI, 20 * MILLI, 500 * MILLI]);
                self.push(What::Away(it, nanos));
            }
            14 => {
                let nanos = random.pick(&[MILLI, 20 * MILLI, 500 * MILLI]);
                self.push(What::NoThreads(it, nanos));
            }
            _ => {
                self.lives[it] = false;
                self.push(What::Drain(it, random.pick(&[MICRO, MILLI, 20 * MILLI, 200 * MILLI])));
            }
        }
    }

    /// Whether a process may stop for ever: whoever it has called has room for the others then.
    fn may_hang(&mut self, process: usize) -> bool {
        let mut asked = Vec::new();
        // What it has asked for by several contexts it holds several times.
        if self.story.processes.iter().any(|settings| settings.contexts > 1) {
            return false;
        }
        for event in &self.story.events {
            if let What::Call(call) = &event.what
                && call.from == process
                && let Some(target) = self.story.processes.get(call.to - 1)
            {
                if call.lends() && target.large_in_service_max < 1 << 30 {
                    return false;
                }
                asked.push(call.to);
            }
        }
        asked.into_iter().all(|to| self.may_hog(process, to))
    }

    fn call(&mut self, random: &mut Random) -> Call {
        let processes = self.story.processes.len();
        let any = |random: &mut Random| random.index(processes) + 1;
        let from = any(random);
        let to = if random.percent(self.mood.to_hung) {
            processes + 1 + random.index(self.story.hung)
        } else {
            // A process may call itself, now and then.
            let to = any(random);
            if to == from { from % processes + 1 } else { to }
        };
        let kind = random.pick(&[
            Kind::Plain,
            Kind::Plain,
            Kind::Async,
            Kind::Async,
            Kind::Later,
            Kind::Blocking,
        ]);
        let mut act = self.act(kind, random);
        if to <= self.calm && kind == Kind::Plain && matches!(act, Act::After(_)) {
            act = Act::Answer(0); // It would keep its process from everything else.
        }
        let len = if random.percent(self.mood.large) {
            random.pick(&[100, 300, 3000, 10_000])
        } else {
            random.pick(&[0, 0, 0, 8, 60])
        };
        let is_frozen = random.percent(self.mood.large / 2);
        let frozen = if is_frozen { random.pick(&[1, 300, 3000]) } else { 0 };
        let deadline = random.percent(self.mood.deadlines).then(|| self.time(random));
        let mut manner = match random.below(10) {
            0..4 => Manner::Wait,
            4..7 => Manner::Await,
            7 => Manner::Drop(self.time(random)),
            8 => Manner::Cancel(self.time(random)),
            _ => Manner::Await,
        };
        let asks_back = act.is_transfer();
        if random.percent(self.mood.one_way) && !asks_back {
            manner = random.pick(&[Manner::Notify, Manner::NotifyAndWait, Manner::NotifyBlindly]);
        }
        // Nobody cancels those.
        let waits = act == Act::UntilCancelled && manner.is_one_way();
        let act = if waits { Act::Never } else { act };
        let waits_for_room = random.percent(self.mood.waits_for_room);
        let call = Call {
            from,
            to,
            kind,
            act,
            len,
            frozen,
            deadline,
            manner,
            waits_for_room,
            contexts: FIRST,
        };
        Call { contexts: self.contexts(&call, random), ..call }
    }

    /// Shares are each context's: who stays does so in one.
    fn contexts(&self, call: &Call, random: &mut Random) -> Option<(usize, usize)> {
        let target = self.story.processes.get(call.to - 1);
        let Some(target) = target.filter(|_| !call.stays()) else { return FIRST };
        let origin = &self.story.processes[call.from - 1];
        if random.percent(20) {
            return None;
        }
        Some((random.index(origin.contexts), random.index(target.contexts)))
    }

    fn time(&self, random: &mut Random) -> u64 {
        random.pick(&[1, MICRO, 50 * MICRO, 500 * MICRO, 2 * MILLI, 20 * MILLI, 200 * MILLI])
    }

    fn act(&self, kind: Kind, random: &mut Random) -> Act {
        let mood = &self.mood;
        if random.percent(mood.bad) {
            let bad = [Act::Refuse, Act::Panic, Act::Poison, Act::Forget, Act::Never];
            let act = random.pick(&bad);
            let fits = match act {
                Act::Forget => kind == Kind::Later,
                Act::Never => kind != Kind::Plain,
                _ => true,
            };
            return if fits { act } else { Act::Panic };
        }
        if random.percent(mood.slow) {
            let most = if kind == Kind::Plain { MILLI } else { 20 * MILLI };
            return Act::After(random.between(1, most));
        }
        if kind != Kind::Plain {
            if random.percent(mood.until_cancelled) {
                return Act::UntilCancelled;
            }
            if random.percent(mood.transfers) {
                let len = random.pick(&[1, 100, 5000, 20_000]);
                let all = [Act::Pull(len), Act::Push(len), Act::Fetch(len), Act::View(len)];
                return random.pick(&all);
            }
            if random.percent(10) {
                let to = random.index(self.story.processes.len()) + 1;
                return Act::CallOn(to, random.pick(&[MILLI, 50 * MILLI]));
            }
        }
        let large = random.percent(mood.large);
        Act::Answer(if large { random.pick(&[100, 300, 3000, 10_000]) } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn whoever_connects_anew_counts_once_more_among_those_that_hold_on_to_what_they_get() {
        let mut forgotten = 0;
        for seed in 0..20_000 {
            let story = Story::new(seed);
            assert!(story.events.len() as u64 >= EVENTS_MIN, "seed {seed}: {}", story.events.len());
            for to in 1..=story.processes.len() {
                let target = &story.processes[to - 1];
                let most = target.in_service_max.min(target.pool_threads_max).ilog2();
                let hogs = hogs_at(&story, to);
                forgotten += hogs.iter().filter(|(_, connection)| *connection > 0).count();
                assert!(hogs.len() <= most.saturating_sub(1) as usize, "seed {seed}, at {to}");
            }
        }
        assert!(forgotten > 100, "{forgotten} have connected anew");
    }

    /// Who has held on to places of a process since it has begun last: which one, and by which of its connections.
    fn hogs_at(story: &Story, to: usize) -> BTreeSet<(usize, u32)> {
        let mut connections = vec![0; story.processes.len() + 1];
        let mut hogs = BTreeSet::new();
        for Event { what, .. } in &story.events {
            match what {
                What::Call(call) if call.to == to && call.stays() => {
                    hogs.insert((call.from, connections[call.from]));
                }
                What::Forget(from, of) if *of == to => connections[*from] += 1,
                What::Restart(it) if *it == to => hogs.clear(),
                What::Restart(it) => connections[*it] += 1,
                _ => {}
            }
        }
        hogs
    }
}
