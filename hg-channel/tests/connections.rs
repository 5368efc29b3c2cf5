//! Connections that open, idle, are left, go on and end, in any order of events: ends over the reference transport, each with a clock of its own.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod cut;
#[expect(dead_code, reason = "a part of it is needed here")]
mod world;

use std::time::{Duration, Instant};

use cut::{Cut, Far, Scissors};
use hg_channel::{Limits, When};
use hg_na::{Address, Context, GoneReason, Op, OpenOptions, Plugin as _};
use hg_na_conformance::Mem;
use proptest::prelude::*;
use watchdog::Watchdog;
use world::{TOKEN, World};

const ENDS: u32 = 3;
const IDLE: Duration = Duration::from_millis(1);
/// Rounds in which everything has come to rest, and how long each takes: 5 s in all.
const ROUNDS: usize = 1000;
const ROUND: Duration = Duration::from_millis(5);

/// Records that are longer than a window together, and rounds after which an end widens one.
const FILLS: usize = 12;
const WAITS: usize = 10;

/// What happens next.
#[derive(Debug, Clone, Copy)]
enum Move {
    /// An end writes to another one.
    Write(u32, u32),
    /// It writes more than its window.
    Fill(u32, u32),
    /// What it has written leaves.
    Flush(u32),
    /// An end makes progress once.
    Step(u32),
    /// Time passes for an end, which makes progress once.
    Idle(u32),
    /// It makes progress until it has looked for more in vain.
    Wait(u32),
    /// An end would hear of the death of another one.
    Keep(u32, u32),
    /// And would not any more.
    LetGo(u32, u32),
    /// An end ends, once everything that it has written has left.
    End(u32),
    /// It ends at once.
    Die(u32),
    /// One of its connections is cut, which it sees as an exit of the other end, or as silence.
    Cut(u32, usize, bool),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let pair = (0..ENDS, 1..ENDS).prop_map(|(from, step)| (from, (from + step) % ENDS));
    let one = prop_oneof![
        6 => pair.clone().prop_map(|(from, to)| Move::Write(from, to)),
        3 => pair.clone().prop_map(|(from, to)| Move::Fill(from, to)),
        2 => (0..ENDS).prop_map(Move::Flush),
        12 => (0..ENDS).prop_map(Move::Step),
        12 => (0..ENDS).prop_map(Move::Idle),
        6 => (0..ENDS).prop_map(Move::Wait),
        2 => pair.clone().prop_map(|(end, other)| Move::Keep(end, other)),
        2 => pair.prop_map(|(end, other)| Move::LetGo(end, other)),
        1 => (0..ENDS).prop_map(Move::End),
        1 => (0..ENDS).prop_map(Move::Die),
        1 => (0..ENDS, 0..4_usize, any::<bool>()).prop_map(|(end, nth, is_silent)| Move::Cut(end, nth, is_silent)),
    ];
    prop::collection::vec(one, 0..120)
}

/// The ends, and what is expected of them.
struct Ends {
    world: World,
    start: Instant,
    clocks: [Duration; ENDS as usize],
    written: [[u32; ENDS as usize]; ENDS as usize],
    /// Whoever is to be told, of each end.
    expected: [Vec<u64>; ENDS as usize],
    kept: [[u32; ENDS as usize]; ENDS as usize],
    /// Whose records may be lost.
    dead: Option<u32>,
    scissors: Scissors,
    /// They may be gone to one another, and what they have sent one another may be lost.
    parted: [[bool; ENDS as usize]; ENDS as usize],
}

impl Ends {
    /// Processes on hosts of their own, or threads of one.
    fn new(are_near: bool) -> Self {
        let limits = Limits::default().block(128).window(512).idle(IDLE);
        let scissors = Scissors::default();
        let plugin = scissors.plugin(&Mem::default());
        let world = if are_near { World::near } else { World::apart };
        Self {
            world: world(&plugin, "mem://", ENDS, limits),
            scissors,
            parted: Default::default(),
            start: Instant::now(),
            clocks: Default::default(),
            written: Default::default(),
            expected: Default::default(),
            kept: Default::default(),
            dead: None,
        }
    }

    fn is_there(&self, end: u32) -> bool {
        self.world.ports[end as usize].is_some()
    }

    fn happens(&mut self, next: Move) {
        match next {
            Move::Write(from, to) if self.is_there(from) => self.write(from, to),
            Move::Fill(from, to) => {
                for _ in 0..FILLS {
                    self.happens(Move::Write(from, to));
                }
            }
            Move::Flush(end) if self.is_there(end) => {
                self.world.port(end).flush_all();
            }
            Move::Step(end) => self.step(end),
            Move::Idle(end) => {
                self.clocks[end as usize] += IDLE;
                self.step(end);
            }
            Move::Wait(end) => (0..WAITS).for_each(|_| self.step(end)),
            Move::Keep(end, other) if self.is_there(end) => {
                self.world.port(end).keep(other);
                self.kept[end as usize][other as usize] += 1;
            }
            Move::LetGo(end, other)
                if self.is_there(end) && self.kept[end as usize][other as usize] > 0 =>
            {
                self.world.port(end).let_go(other);
                self.kept[end as usize][other as usize] -= 1;
            }
            // One dies at most.
            Move::End(end) if (0..ENDS).all(|it| self.is_there(it)) => self.end(end),
            Move::Die(end) if (0..ENDS).all(|it| self.is_there(it)) => {
                self.world.ports[end as usize] = None;
                self.dead = Some(end);
            }
            Move::Cut(end, nth, is_silent) if self.is_there(end) => {
                let reason = if is_silent { GoneReason::TimedOut } else { GoneReason::Exited };
                self.scissors.cut(&self.world.addresses[end as usize], Cut { nth, reason });
            }
            _ => {}
        }
    }

    fn step(&mut self, end: u32) {
        let now = self.start + self.clocks[end as usize];
        self.world.step(end as usize, now);
        let place = |at: &Address| self.world.addresses.iter().position(|it| it == at).unwrap();
        for (near, far) in self.scissors.parted() {
            let near = place(&near);
            let far = match far {
                Far::At(address) => place(&address),
                Far::End(end) => end as usize,
            };
            (self.parted[near][far], self.parted[far][near]) = (true, true);
        }
        self.counts_what_waits();
    }

    /// What waits of each end, for all others: all of it when nothing was written since, otherwise all but the open blocks.
    fn counts_what_waits(&self) {
        for port in self.world.ports.iter().flatten() {
            let waiting: u64 = (0..ENDS).map(|to| port.waiting(to)).sum();
            let open = u64::from(ENDS) * port.block() as u64;
            let queued = port.queued();
            assert!(
                (waiting.saturating_sub(open)..=waiting).contains(&queued),
                "{queued} of {waiting}"
            );
        }
    }

    fn is_parted(&self, one: u32, other: u32) -> bool {
        self.parted[one as usize][other as usize]
    }

    fn write(&mut self, from: u32, to: u32) {
        let number = self.written[from as usize][to as usize];
        match self.world.write(from, to, number, 60) {
            Ok(()) => {
                let notice = u64::from(to) << 32 | u64::from(number);
                self.world.port(from).tell(to, When::Consumed, notice);
                self.expected[from as usize].push(notice);
                self.written[from as usize][to as usize] += 1;
            }
            Err(error) => assert!(!self.is_there(to) || self.is_parted(from, to), "{error}"),
        }
    }

    fn end(&mut self, end: u32) {
        self.until("everything has left", |ends| {
            let port = ends.world.port(end);
            port.flush_all();
            port.is_flushed() && port.is_sent()
        });
        self.world.ports[end as usize] = None;
    }

    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let came = (0..ROUNDS).any(|_| {
            for end in 0..ENDS {
                self.clocks[end as usize] += ROUND;
                self.step(end);
            }
            holds(self)
        });
        assert!(came, "{what}: never");
    }

    /// What a live end was sent is there, in order, also by one that has ended since; whoever waits has been told once, if only of an end.
    fn is_served(&self, end: u32) -> bool {
        let at = end as usize;
        let all_there = (0..ENDS).all(|from| {
            let got = self.world.consumed[at].iter().filter(|it| it.0 == from);
            let got: Vec<u32> = got.map(|it| it.1).collect();
            let expected: Vec<u32> = (0..self.written[from as usize][at]).collect();
            assert!(expected.starts_with(&got), "{end} has of {from}: {got:?} of {expected:?}");
            got == expected || self.dead == Some(from) || self.is_parted(end, from)
        });
        let of_gone = self.world.gone[at].iter().flat_map(|(_, notices)| notices);
        let mut heard: Vec<u64> = self.world.told[at].iter().chain(of_gone).copied().collect();
        heard.sort_unstable();
        let mut expected = self.expected[at].clone();
        expected.sort_unstable();
        assert!(heard.len() <= expected.len(), "{end} has heard {heard:?} of {expected:?}");
        let is_gone = |of: u32| self.world.gone[at].iter().any(|(gone, _)| *gone == of);
        for (gone, _) in &self.world.gone[at] {
            assert!(!self.is_there(*gone) || self.is_parted(end, *gone), "{gone} is there");
        }
        let is_missed = |of| self.kept[at][of as usize] > 0 && !self.is_there(of) && !is_gone(of);
        all_there && heard == expected && !(0..ENDS).any(is_missed)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_record_arrives_and_every_end_is_heard_of_however_connections_come_and_go(
        moves in moves(), are_near in any::<bool>(),
    ) {
        let mut ends = Ends::new(are_near);
        for next in moves {
            ends.happens(next);
        }
        ends.until("all are served", |ends| {
            (0..ENDS).filter(|end| ends.is_there(*end)).all(|end| ends.is_served(end))
        });
        for (end, other) in (0..ENDS).flat_map(|end| (0..ENDS).map(move |other| (end, other))) {
            while ends.kept[end as usize][other as usize] > 0 && ends.is_there(end) {
                ends.happens(Move::LetGo(end, other));
            }
        }
        ends.until("no connection is left", |ends| {
            ends.world.ports.iter().flatten().all(|it| it.connections() == 0)
        });
        // And it goes on.
        for (from, to) in (0..ENDS).flat_map(|from| (0..ENDS).map(move |to| (from, to))) {
            if from != to && ends.is_there(from) && ends.is_there(to) {
                ends.write(from, to);
            }
        }
        ends.until("all are served again", |ends| {
            (0..ENDS).filter(|end| ends.is_there(*end)).all(|end| ends.is_served(end))
        });
        let queued: Vec<u64> = ends.world.ports.iter().flatten().map(|it| it.queued()).collect();
        prop_assert!(queued.iter().all(|it| *it == 0), "nothing waits any more: {:?}", queued);
    }
}

#[test]
fn an_idle_connection_is_closed_while_others_leave_no_round_empty() {
    let mem = Mem::default();
    let mut world = World::new(&mem, "mem://", 3, Limits::default().idle(IDLE));
    world.write(0, 1, 0, 8).unwrap();
    world.write(1, 0, 0, 8).unwrap();
    let mut now = Instant::now();
    for _ in 0..10 {
        (0..3).for_each(|end| _ = world.step(end, now));
    }
    for round in 0..1000 {
        now += IDLE / 2;
        for to in 0..2 {
            // Two messages, so that there is one when a glimpse has taken the other.
            for _ in 0..2 {
                world.write(2, to, 0, 100).unwrap();
                world.port(2).flush(to);
            }
        }
        world.step(2, now);
        assert!(world.step(0, now) && world.step(1, now), "round {round} was empty");
    }
    assert_eq!([world.port(0).connections(), world.port(1).connections()], [1; 2]);
    let reclaimed = [0, 1].map(|end| world.port(end).stats().reclaimed);
    assert!(reclaimed.iter().sum::<u64>() > 0, "by agreement");
    assert!(world.gone.iter().all(Vec::is_empty));
}

/// Longer than what survives of an end that has closed one of its connections.
const BOUND: Duration = Duration::from_secs(3);

/// What end 1 greets with.
fn hello() -> Vec<u8> {
    let window = 256 * 1024_u32;
    let body = [&TOKEN[..], &1_u32.to_le_bytes(), &window.to_le_bytes()].concat();
    [&[1, 0, 0, 0, 0, 0, 0, 0], &body[..]].concat()
}

/// Greets port 0 as if it were end 1.
fn liar(mem: &Mem, there: &Address) -> Box<dyn Context> {
    let liar = mem.open(&Address::new("mem://").unwrap(), &OpenOptions::listening()).unwrap();
    let mut liar = liar.context(0).unwrap();
    let to = liar.lookup(there).unwrap();
    liar.post(0, Op::SendUnexpected { to, message: hello().into() }).unwrap();
    liar
}

#[test]
fn an_end_that_makes_ever_new_connections_is_let_in_by_a_few() {
    let mem = Mem::default();
    let mut world = World::new(&mem, "mem://", 2, Limits::default());
    let there = world.addresses[0].clone();
    let mut liars: Vec<_> = (0..100).map(|_| liar(&mem, &there)).collect();
    for _ in 0..10 {
        for liar in &mut liars {
            liar.progress(Instant::now(), &mut Vec::new()).unwrap();
        }
        world.step(0, Instant::now());
    }
    assert_eq!(world.port(0).connections(), 8);
}

/// A record waits at port 0 for an end that has greeted twice, and has closed the connection by which the record went. The other one stays.
fn closed_half() -> (World, Box<dyn Context>) {
    let mem = Mem::default();
    let mut world = World::new(&mem, "mem://", 2, Limits::default().idle(10 * BOUND));
    let there = world.addresses[0].clone();
    let (mut first, mut second) = (liar(&mem, &there), liar(&mem, &there));
    for liar in [&mut first, &mut second] {
        liar.progress(Instant::now(), &mut Vec::new()).unwrap();
        world.step(0, Instant::now());
    }
    assert_eq!(world.port(0).connections(), 2);
    world.write(0, 1, 0, 8).unwrap();
    world.port(0).tell(1, When::Consumed, 7);
    world.step(0, Instant::now());
    drop(first);
    (world, second)
}

#[test]
fn an_end_that_closes_one_of_two_connections_is_gone_before_long() {
    let (mut world, _second) = closed_half();
    let start = Instant::now();
    let mut now = start;
    while world.gone[0].is_empty() && now < start + BOUND {
        now += Duration::from_millis(100);
        world.step(0, now);
    }
    assert_eq!(world.gone[0], [(1, vec![7])]);
    assert_eq!(world.port(0).connections(), 0);
}

#[test]
fn what_lies_there_when_an_owner_comes_back_late_is_heard_before_the_end() {
    let (mut world, mut second) = closed_half();
    let start = Instant::now();
    while world.step(0, start) {}
    let there = second.connected()[0];
    let record = [2, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 3, 0, 0, 0, b'a', b'b', b'c'];
    let op = Op::SendUnexpected { to: there, message: record.to_vec().into() };
    second.post(0, op).unwrap();
    second.progress(start, &mut Vec::new()).unwrap();
    while world.step(0, start + BOUND) {}
    assert_eq!((&world.consumed[0], &world.gone[0]), (&vec![(1, 5, 3)], &vec![(1, vec![7])]));
}

#[test]
fn who_sleeps_is_woken_for_an_end_that_has_closed_one_of_two_connections() {
    let _watchdog = Watchdog::start();
    let (mut world, _second) = closed_half();
    let start = Instant::now();
    while world.gone[0].is_empty() {
        if !world.step(0, Instant::now()) {
            world.port(0).sleep(None).unwrap();
        }
    }
    assert_eq!(world.gone[0], [(1, vec![7])]);
    assert!(start.elapsed() < 10 * BOUND, "something else has woken it");
}

#[test]
fn a_connection_that_breaks_beside_another_one_is_heard_of_at_both_sides() {
    let reasons = [GoneReason::Exited, GoneReason::TimedOut];
    for (nth, reason) in (0..2).flat_map(|nth| reasons.clone().map(|reason| (nth, reason))) {
        let scissors = Scissors::default();
        let plugin = scissors.plugin(&Mem::default());
        let mut world = World::new(&plugin, "mem://", 2, Limits::default());
        world.is_lazy = true;
        for (from, to) in [(0, 1), (1, 0)] {
            world.write(from, to, 0, 8).unwrap();
            world.port(from).tell(to, When::Consumed, u64::from(from));
            world.port(from).flush_all();
        }
        let start = Instant::now();
        let mut rounds = (0..).map(|round| start + round * Duration::from_millis(10));
        let mut round = |world: &mut World| {
            let now = rounds.next().unwrap();
            for end in 0..2 {
                world.step(end, now);
            }
            now < start + 2 * BOUND
        };
        while world.waiting.iter().any(Vec::is_empty) {
            assert!(round(&mut world), "both have the other one's record");
        }
        assert_eq!(world.port(0).connections(), 2, "each has made one");
        scissors.cut(&world.addresses[0], Cut { nth, reason: reason.clone() });
        while world.gone.iter().any(Vec::is_empty) {
            assert!(round(&mut world), "{nth}, {reason}: {:?}", world.gone);
        }
        assert_eq!(world.gone, [[(1, vec![0])], [(0, vec![1])]]);
    }
}

#[test]
fn silence_where_the_connection_was_accepted_is_heard_of_by_who_keeps_it() {
    let scissors = Scissors::default();
    let plugin = scissors.plugin(&Mem::default());
    let mut world = World::new(&plugin, "mem://", 2, Limits::default());
    world.port(0).keep(1);
    (0..10).for_each(|_| world.round());
    assert_eq!(world.port(1).connections(), 1, "and it has nothing to say");
    scissors.cut(&world.addresses[0], Cut { nth: 0, reason: GoneReason::TimedOut });
    (0..10).for_each(|_| world.round());
    assert_eq!(world.gone[0], [(1, vec![])]);
}
