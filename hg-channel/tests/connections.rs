//! Connections that open, idle, are left, go on and end, in any order of events: ends over the reference transport, each with a clock of its own.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[expect(dead_code, reason = "a part of it is needed here")]
mod world;

use std::time::{Duration, Instant};

use hg_channel::{Limits, When};
use hg_na::{Address, Op, OpenOptions, Plugin as _};
use hg_na_conformance::Mem;
use proptest::prelude::*;
use world::{TOKEN, World};

const ENDS: u32 = 3;
const IDLE: Duration = Duration::from_millis(1);
/// Rounds in which everything has come to rest.
const ROUNDS: usize = 1000;

/// What happens next.
#[derive(Debug, Clone, Copy)]
enum Move {
    /// An end writes to another one.
    Write(u32, u32),
    /// What it has written leaves.
    Flush(u32),
    /// An end makes progress once.
    Step(u32),
    /// Time passes for an end, which makes progress once.
    Idle(u32),
    /// An end would hear of the death of another one.
    Keep(u32, u32),
    /// And would not any more.
    LetGo(u32, u32),
    /// An end ends, once everything that it has written has left.
    End(u32),
    /// It ends at once.
    Die(u32),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let pair = (0..ENDS, 1..ENDS).prop_map(|(from, step)| (from, (from + step) % ENDS));
    let one = prop_oneof![
        6 => pair.clone().prop_map(|(from, to)| Move::Write(from, to)),
        2 => (0..ENDS).prop_map(Move::Flush),
        12 => (0..ENDS).prop_map(Move::Step),
        12 => (0..ENDS).prop_map(Move::Idle),
        2 => pair.clone().prop_map(|(end, other)| Move::Keep(end, other)),
        2 => pair.prop_map(|(end, other)| Move::LetGo(end, other)),
        1 => (0..ENDS).prop_map(Move::End),
        1 => (0..ENDS).prop_map(Move::Die),
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
}

impl Ends {
    fn new() -> Self {
        let limits = Limits::default().block(128).window(512).idle(IDLE);
        Self {
            world: World::new(&Mem::default(), "mem://", ENDS, limits),
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
            Move::Flush(end) if self.is_there(end) => {
                self.world.port(end).flush_all();
            }
            Move::Step(end) => self.step(end),
            Move::Idle(end) => {
                self.clocks[end as usize] += IDLE;
                self.step(end);
            }
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
            _ => {}
        }
    }

    fn step(&mut self, end: u32) {
        let now = self.start + self.clocks[end as usize];
        self.world.step(end as usize, now);
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
            Err(error) => assert!(!self.is_there(to), "{error}"),
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
            (0..ENDS).for_each(|end| self.happens(Move::Idle(end)));
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
            got == expected || self.dead == Some(from)
        });
        let of_gone = self.world.gone[at].iter().flat_map(|(_, notices)| notices);
        let mut heard: Vec<u64> = self.world.told[at].iter().chain(of_gone).copied().collect();
        heard.sort_unstable();
        let mut expected = self.expected[at].clone();
        expected.sort_unstable();
        assert!(heard.len() <= expected.len(), "{end} has heard {heard:?} of {expected:?}");
        let is_gone = |of: u32| self.world.gone[at].iter().any(|(gone, _)| *gone == of);
        for (gone, _) in &self.world.gone[at] {
            assert!(!self.is_there(*gone), "{gone} is there");
        }
        let is_missed = |of| self.kept[at][of as usize] > 0 && !self.is_there(of) && !is_gone(of);
        all_there && heard == expected && !(0..ENDS).any(is_missed)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_record_arrives_and_every_end_is_heard_of_however_connections_come_and_go(moves in moves()) {
        let mut ends = Ends::new();
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
    }
}

#[test]
fn an_end_that_makes_ever_new_connections_is_let_in_by_a_few() {
    let mem = Mem::default();
    let mut world = World::new(&mem, "mem://", 2, Limits::default());
    let window = 256 * 1024_u32;
    let body = [&TOKEN[..], &1_u32.to_le_bytes(), &window.to_le_bytes()].concat();
    let hello = [&[1, 0, 0, 0, 0, 0, 0, 0], &body[..]].concat();
    let there = world.addresses[0].clone();
    let mut liars: Vec<_> = (0..100)
        .map(|_| {
            let url = Address::new("mem://").unwrap();
            let liar = mem.open(&url, &OpenOptions::listening()).unwrap();
            let mut liar = liar.context(0).unwrap();
            let to = liar.lookup(&there).unwrap();
            let message = hello.clone().into();
            liar.post(0, Op::SendUnexpected { to, message }).unwrap();
            liar
        })
        .collect();
    for _ in 0..10 {
        for liar in &mut liars {
            liar.progress(Instant::now(), &mut Vec::new()).unwrap();
        }
        world.step(0, Instant::now());
    }
    assert_eq!(world.port(0).connections(), 8);
}
