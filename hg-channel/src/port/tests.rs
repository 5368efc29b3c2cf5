//! Four ends whose windows grow and are the short ones again, in any order of events: over the reference transport, each with a clock of its own.

use std::{
    array,
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use hg_na::{Address, OpenOptions, Plugin as _};
use hg_na_conformance::Mem;
use proptest::prelude::*;

use super::{Batch, Directory, Event, Kept, Port};
use crate::{
    limits::{Limits, WIDENED_MAX},
    near::Near,
    outgoing::When,
    wire::next_record,
};

const ENDS: usize = 4;
const WINDOW: u64 = 512;
/// Those of three senders are over the bound of all together.
const WIDEST: u64 = 8192;
const IDLE: Duration = Duration::from_millis(1);
/// Bytes that wait at a sender.
const QUEUE: u64 = 12_000;
/// Rounds in which everything comes to rest.
const ROUNDS: usize = 4000;

/// From one end to another one.
type Of<T> = [[T; ENDS]; ENDS];

#[derive(Debug, Clone, Copy)]
enum Move {
    /// So many records; of every fifth somebody is told.
    Write(usize, usize, usize),
    /// One that is held.
    Hold(usize, usize),
    Release(usize, usize),
    FlushAlone(usize, usize),
    /// So many blocks.
    Consume(usize, usize),
    /// Rounds of progress, of which many find nothing.
    Advance(usize, usize),
    /// What was consumed is told.
    Acknowledge(usize),
    Idle(usize),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let end = || 0..ENDS;
    let pair = || (end(), 1..ENDS).prop_map(|(from, step)| (from, (from + step) % ENDS));
    let one = prop_oneof![
        4 => (pair(), 1..40_usize).prop_map(|((from, to), count)| Move::Write(from, to, count)),
        1 => pair().prop_map(|(from, to)| Move::Hold(from, to)),
        2 => pair().prop_map(|(from, to)| Move::Release(from, to)),
        1 => pair().prop_map(|(from, to)| Move::FlushAlone(from, to)),
        2 => (end(), 0..4_usize).prop_map(|(end, count)| Move::Consume(end, count)),
        6 => end().prop_map(|end| Move::Consume(end, usize::MAX)),
        6 => (end(), 1..12_usize).prop_map(|(end, rounds)| Move::Advance(end, rounds)),
        6 => end().prop_map(Move::Acknowledge),
        2 => end().prop_map(Move::Idle),
    ];
    prop::collection::vec(one, 500..1500)
}

struct World {
    ports: [Port<u32>; ENDS],
    kept: [VecDeque<Kept>; ENDS],
    clocks: [Instant; ENDS],
    written: Of<u32>,
    consumed: Of<u32>,
    /// By number who is to be told, and who was.
    expected: [Vec<u32>; ENDS],
    told: [Vec<u32>; ENDS],
    held: Of<VecDeque<u64>>,
}

impl World {
    fn new() -> Self {
        let (url, mem) = (Address::new("mem://").unwrap(), Mem::default());
        let domains: [_; ENDS] =
            array::from_fn(|_| mem.open(&url, &OpenOptions::listening()).unwrap());
        let contexts = domains.each_ref().map(|it| it.context(0).unwrap());
        let addresses = contexts.iter().map(|it| it.address().clone()).collect();
        let directory = Arc::new(Directory::new([9; 16], addresses));
        let window = u32::try_from(WINDOW).unwrap();
        let widest = u32::try_from(WIDEST).unwrap();
        let limits = Limits::default().block(96).window(window).widest(widest).idle(IDLE);
        let mut ends = 0..;
        // Of a transport that shares no memory, as far as they know.
        let ports = contexts.map(|context| {
            let end = ends.next().unwrap();
            Port::new(end, context, Arc::clone(&directory), Near::new(end, 1), limits)
        });
        let now = Instant::now();
        let (kept, written, consumed, expected, told, held) = Default::default();
        Self { ports, kept, clocks: [now; ENDS], written, consumed, expected, told, held }
    }

    fn happens(&mut self, next: Move) {
        match next {
            Move::Write(from, to, count) => {
                for at in 0..count {
                    self.write(from, to, at % 5 == 0);
                }
                self.ports[from].flush(end(to));
            }
            Move::Hold(from, to) => {
                self.ports[from].seal(end(to));
                if self.write(from, to, false) {
                    let name = self.written[from][to].into();
                    self.ports[from].hold(end(to), name);
                    self.held[from][to].push_back(name);
                }
            }
            Move::Release(from, to) => {
                if let Some(name) = self.held[from][to].pop_front() {
                    self.ports[from].release(end(to), name);
                }
            }
            Move::FlushAlone(from, to) => self.ports[from].flush_alone(end(to)),
            Move::Consume(end, count) => self.consume(end, count),
            Move::Advance(end, rounds) => (0..rounds).for_each(|_| self.advance(end)),
            Move::Acknowledge(end) => self.acknowledge(end),
            Move::Idle(end) => {
                self.clocks[end] += IDLE;
                self.advance(end);
            }
        }
        self.counts_what_is_wider();
    }

    fn write(&mut self, from: usize, to: usize, tells: bool) -> bool {
        let number = self.written[from][to];
        let room = self.ports[from].record(end(to), number, len(number), QUEUE);
        let Ok(room) = room else { return false };
        room.fill(u8::try_from(number % 251).unwrap());
        if tells {
            let notice = u32::try_from(self.expected[from].len()).unwrap();
            self.ports[from].tell(end(to), When::Consumed, notice);
            self.expected[from].push(notice);
        }
        self.written[from][to] += 1;
        true
    }

    fn consume(&mut self, at: usize, count: usize) {
        let count = count.min(self.kept[at].len());
        for mut block in self.kept[at].drain(..count) {
            let block = block.arrived();
            let of = &mut self.consumed[block.from() as usize][at];
            let mut bytes = block.bytes();
            while let Some(record) = next_record(&mut bytes).unwrap() {
                assert_eq!((record.tag, record.bytes.len()), (*of, len(*of)), "once, in order");
                assert!(record.bytes.iter().all(|byte| u32::from(*byte) == *of % 251));
                *of += 1;
            }
            self.ports[at].consumed(block);
        }
    }

    fn advance(&mut self, at: usize) {
        let (mut batch, port) = (Batch::default(), &mut self.ports[at]);
        port.advance(self.clocks[at], &mut batch).unwrap();
        while let Some(event) = port.next(&mut batch) {
            let Event::Block(block) = event else { panic!("{event:?}") };
            self.kept[at].push_back(block.keep());
        }
    }

    fn acknowledge(&mut self, at: usize) {
        self.ports[at].acknowledge();
        while let Some(notice) = self.ports[at].due() {
            self.told[at].push(notice);
        }
    }

    /// By how much the windows of an end are longer than at first, and what may be under way.
    fn counts_what_is_wider(&self) {
        for port in &self.ports {
            let wider: u64 = port.links.iter().map(|it| it.incoming.window() - WINDOW).sum();
            assert_eq!(port.widened, wider);
            assert!(wider <= WIDENED_MAX, "{wider}");
            for link in &port.links {
                assert!(link.out.unconsumed() - link.out.waiting() <= WIDEST);
            }
        }
    }

    /// Everything is written, consumed and told; `time`: that passes in a round.
    fn rest(&mut self, time: Duration, is_done: impl Fn(&Self) -> bool) -> bool {
        (0..ROUNDS).any(|_| {
            for at in 0..ENDS {
                for to in 0..ENDS {
                    while let Some(name) = self.held[at][to].pop_front() {
                        self.ports[at].release(end(to), name);
                    }
                }
                self.clocks[at] += time;
                self.advance(at);
                self.consume(at, usize::MAX);
                self.acknowledge(at);
                self.ports[at].flush_all();
            }
            self.counts_what_is_wider();
            is_done(self)
        })
    }

    fn are_all_told(&self) -> bool {
        let told = |at: usize| self.told[at].len() == self.expected[at].len();
        self.written == self.consumed && (0..ENDS).all(told)
    }

    /// What a sender believes its window to be, and what it is.
    fn windows(&self, from: usize, to: usize) -> (u64, u64) {
        let link = |at: usize, of: usize| {
            let place = self.ports[at].of_end[of] as usize;
            &self.ports[at].links[place - 1]
        };
        (link(from, to).out.window(), link(to, from).incoming.window())
    }

    fn pairs() -> impl Iterator<Item = (usize, usize)> {
        (0..ENDS).flat_map(|from| (0..ENDS).map(move |to| (from, to))).filter(|it| it.0 != it.1)
    }

    /// All comes to rest; with the next record each sender hears what its window is; and nothing is left of those that were longer.
    fn ends(&mut self) {
        assert!(self.rest(Duration::ZERO, Self::are_all_told), "nobody is stuck");
        for (from, to) in Self::pairs() {
            assert!(self.write(from, to, true));
        }
        assert!(self.rest(Duration::ZERO, Self::are_all_told), "nor later");
        for (from, to) in Self::pairs() {
            let (sender, receiver) = self.windows(from, to);
            assert_eq!(sender, receiver, "that from {from} to {to}");
        }
        for (told, expected) in self.told.iter_mut().zip(&self.expected) {
            told.sort_unstable();
            assert_eq!(told, expected, "each once");
        }
        let are_closed = |it: &Self| it.ports.iter().all(|port| port.connections() == 0);
        assert!(self.rest(IDLE, are_closed), "all are idle");
        for port in &self.ports {
            assert_eq!((port.queued(), port.widened), (0, 0), "back to nothing");
        }
        for (from, to) in Self::pairs() {
            assert_eq!(self.windows(from, to), (WINDOW, WINDOW));
        }
    }
}

fn end(at: usize) -> u32 {
    u32::try_from(at).unwrap()
}

/// Bytes of the record of this number.
fn len(number: u32) -> usize {
    number as usize * 37 % 180
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn windows_grow_and_are_the_short_ones_again_in_any_order_of_events(
        phases in prop::collection::vec(moves(), 1..4),
    ) {
        let mut world = World::new();
        for phase in phases {
            phase.into_iter().for_each(|next| world.happens(next));
            world.ends();
        }
    }
}
