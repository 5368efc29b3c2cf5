//! The two state machines against a naive stream: any order of writing, refusal, delivery, consumption and news, and an end at any
//! step.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use hg_na::{Address, OpenOptions, Plugin as _};
use proptest::prelude::*;
use watchdog::Watchdog;

use crate::{
    Batch, Directory, Event, Limits, Near, Port,
    incoming::Incoming,
    near::Parcel,
    outgoing::{Outgoing, Pool, When},
    wire::{HEADER, Header, Told, next_record},
};

/// What the world does next.
#[derive(Debug, Clone, Copy)]
enum Move {
    /// A record of so many bytes; with somebody to be told.
    Write(usize, Option<When>),
    Seal,
    SealShort,
    Flush,
    /// The next record is held.
    Hold,
    /// The first one that is held is let go, or the last one.
    Release(bool),
    /// The same; its record means something else now.
    ReleaseRetagged(bool),
    /// The transport takes one block.
    Post,
    /// The same with an open block, if that is short.
    PostShort,
    CloseEmpty,
    /// One block arrives.
    Deliver,
    /// The receiver consumes one block.
    Consume,
    /// The receiver tells how far it is.
    Tell,
    /// What it has told arrives.
    Hear,
    Narrow([bool; 2]),
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        6 => (0_usize..90, 0..4_u8).prop_map(|(len, told)| Move::Write(len, match told {
            0 => Some(When::Sent),
            1 => Some(When::Consumed),
            _ => None,
        })),
        1 => Just(Move::Seal),
        1 => Just(Move::SealShort),
        2 => Just(Move::Flush),
        1 => Just(Move::Hold),
        2 => any::<bool>().prop_map(Move::Release),
        1 => any::<bool>().prop_map(Move::ReleaseRetagged),
        4 => Just(Move::Post),
        2 => Just(Move::PostShort),
        1 => Just(Move::CloseEmpty),
        4 => Just(Move::Deliver),
        4 => Just(Move::Consume),
        2 => Just(Move::Tell),
        2 => Just(Move::Hear),
        1 => any::<[bool; 2]>().prop_map(Move::Narrow),
    ]
}

/// Half of it is more than a block with its longest record here.
const WINDOW: u32 = 512;
const WIDEST: u64 = 4 * 512;
const BLOCK: usize = 128;
/// A bit of tags.
const RETAGGED: u32 = 1 << 31;

const NOTHING: Told = Told { consumed: 0, doubled: 0 };

struct World {
    pool: Pool,
    out: Outgoing<u32>,
    incoming: Incoming,
    /// Blocks that the transport has, and blocks that have arrived.
    under_way: VecDeque<Vec<u8>>,
    arrived: VecDeque<Vec<u8>>,
    news: VecDeque<Told>,
    written: u32,
    posted: u32,
    consumed: u32,
    held: VecDeque<u64>,
    retagged: Vec<u32>,
    expected: Vec<(u32, When)>,
    told: Vec<u32>,
}

impl World {
    fn new() -> Self {
        Self {
            pool: Pool::new(BLOCK),
            out: Outgoing::new(WINDOW),
            incoming: Incoming::new(WINDOW),
            under_way: VecDeque::new(),
            arrived: VecDeque::new(),
            news: VecDeque::new(),
            written: 0,
            posted: 0,
            consumed: 0,
            held: VecDeque::new(),
            retagged: Vec::new(),
            expected: Vec::new(),
            told: Vec::new(),
        }
    }

    fn step(&mut self, next: Move) {
        match next {
            Move::Write(len, told) => self.write(len, told),
            Move::Seal => {
                self.out.seal();
            }
            Move::SealShort => self.out.seal_short(),
            Move::Flush => self.out.flush(),
            Move::Hold => {
                self.out.seal_short();
                let number = self.written;
                self.write(4, None);
                if self.written > number {
                    self.out.hold(u64::from(number));
                    self.held.push_back(u64::from(number));
                }
            }
            Move::Release(is_first) | Move::ReleaseRetagged(is_first) => {
                let name = if is_first { self.held.pop_front() } else { self.held.pop_back() };
                if let Some(name) = name {
                    if matches!(next, Move::ReleaseRetagged(_)) {
                        self.out.retag(name, |tag| tag | RETAGGED);
                        self.retagged.push(u32::try_from(name).unwrap());
                    }
                    self.out.release(name);
                }
            }
            Move::Post => self.post(),
            Move::PostShort => self.post_short(),
            Move::CloseEmpty => self.out.close_empty(&mut self.pool),
            Move::Deliver => self.deliver(),
            Move::Consume => self.consume(),
            Move::Tell => {
                if self.incoming.owes() {
                    self.news.push_back(self.incoming.tell());
                }
            }
            Move::Hear => {
                if let Some(told) = self.news.pop_front() {
                    self.out.consume(told).unwrap();
                }
            }
            // Whoever closes an idle connection; both do, but for one that has another one.
            Move::Narrow([at_sender, at_receiver]) => {
                if self.out.is_quiet() {
                    if at_sender {
                        self.out.narrow();
                    }
                    if at_receiver {
                        self.incoming.narrow();
                    }
                }
            }
        }
        while let Some(notice) = self.out.due() {
            let (number, when) = self.expected[notice as usize];
            let reached = if when == When::Sent { self.posted } else { self.consumed };
            assert!(number < reached, "record {number} had not come so far");
            self.told.push(notice);
        }
    }

    fn write(&mut self, len: usize, told: Option<When>) {
        if !self.out.has_room(len, 4 * BLOCK as u64) {
            return;
        }
        let room = self.out.record(&mut self.pool, self.written, u32::try_from(len).unwrap());
        assert_eq!(room.len(), len);
        room.fill(u8::try_from(len).unwrap());
        if let Some(when) = told {
            let notice = u32::try_from(self.expected.len()).unwrap();
            self.expected.push((self.written, when));
            self.out.tell(when, notice);
        }
        self.written += 1;
    }

    fn post(&mut self) {
        let Some(block) = self.out.front() else { return };
        block.address(NOTHING);
        let bytes = block.message().to_vec();
        self.take(bytes);
        let block = self.out.leave().unwrap();
        self.pool.take_back(block);
    }

    fn post_short(&mut self) {
        let Some(bytes) = self.out.short(56, NOTHING) else { return };
        let bytes = bytes.to_vec();
        assert!((HEADER + 1..=56).contains(&bytes.len()));
        self.take(bytes);
        self.out.leave_short();
    }

    fn take(&mut self, bytes: Vec<u8>) {
        let mut left = &bytes[HEADER..];
        while let Some(record) = next_record(&mut left).unwrap() {
            let is_retagged = self.retagged.contains(&self.posted);
            let tag = self.posted | if is_retagged { RETAGGED } else { 0 };
            assert_eq!(record.tag, tag, "in order, once");
            self.posted += 1;
        }
        self.under_way.push_back(bytes);
        let bytes: usize =
            self.under_way.iter().chain(&self.arrived).map(|it| it.len() - HEADER).sum();
        assert!(bytes as u64 <= WIDEST, "{bytes} bytes are on their way");
    }

    fn deliver(&mut self) {
        let Some(block) = self.under_way.pop_front() else { return };
        let bytes = (block.len() - HEADER) as u64;
        self.incoming.arrive(bytes).unwrap();
        let has_waited = Header::read(&block).unwrap().waited;
        let is_first = self.arrived.is_empty();
        self.arrived.push_back(block);
        if has_waited && self.incoming.is_too_narrow(bytes) {
            assert!(is_first, "it keeps what has come before");
            if 2 * self.incoming.window() <= WIDEST {
                self.incoming.widen();
            }
        }
    }

    fn consume(&mut self) {
        let Some(block) = self.arrived.pop_front() else { return };
        let header = Header::read(&block).unwrap();
        let mut left = &block[HEADER..];
        while let Some(record) = next_record(&mut left).unwrap() {
            assert_eq!(record.tag & !RETAGGED, self.consumed, "in order, once");
            assert!(record.bytes.iter().all(|byte| usize::from(*byte) == record.bytes.len()));
            self.consumed += 1;
        }
        self.incoming.consume((block.len() - HEADER) as u64, header.asks);
    }

    /// Everything moves until nothing is left.
    fn finish(&mut self) {
        self.step(Move::Flush);
        for _ in 0..10_000 {
            for next in [
                Move::Release(true),
                Move::Post,
                Move::Deliver,
                Move::Consume,
                Move::Tell,
                Move::Hear,
            ] {
                self.step(next);
            }
            if self.consumed == self.written && !self.incoming.owes() && self.news.is_empty() {
                break;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_record_arrives_once_and_in_order_and_whoever_waits_is_told(
        moves in prop::collection::vec(moves(), 0..200),
    ) {
        let mut world = World::new();
        for next in moves {
            world.step(next);
        }
        world.finish();
        prop_assert_eq!(world.consumed, world.written, "nobody is stuck");
        let mut told = world.told.clone();
        told.sort_unstable();
        let all: Vec<u32> = (0..u32::try_from(world.expected.len()).unwrap()).collect();
        prop_assert_eq!(told, all, "each once");
    }

    #[test]
    fn after_an_end_everybody_who_waits_is_given_back_once(
        moves in prop::collection::vec(moves(), 0..100), is_refused in any::<bool>(),
    ) {
        let mut world = World::new();
        for next in moves {
            world.step(next);
        }
        if is_refused && world.out.front().is_some() {
            let block = world.out.leave().unwrap();
            world.out.refuse(&block);
            prop_assert!(!world.out.is_waiting() && world.out.front().is_none());
            prop_assert_eq!(world.out.due(), None, "none of it has left");
            while !(world.under_way.is_empty() && world.arrived.is_empty() && world.news.is_empty()) {
                // What was taken before may still be consumed, and heard of.
                for next in [Move::Deliver, Move::Consume, Move::Tell, Move::Hear] {
                    world.step(next);
                }
            }
        }
        let mut all = world.out.end();
        all.append(&mut world.told.clone());
        all.sort_unstable();
        let expected: Vec<u32> = (0..u32::try_from(world.expected.len()).unwrap()).collect();
        prop_assert_eq!(all, expected);
        prop_assert!(world.out.front().is_none() && world.out.is_quiet());
    }

    #[test]
    fn a_claim_that_cannot_be_is_refused_and_an_old_one_changes_nothing(
        moves in prop::collection::vec(moves(), 0..60), ahead in 1_u32..u32::MAX / 2,
    ) {
        let mut world = World::new();
        for next in moves {
            world.step(next);
        }
        let Told { consumed: known, doubled } = world.out.known();
        let told = |consumed| Told { consumed, doubled };
        let posted = world.out.written().wrapping_sub(u32::try_from(world.out.waiting()).unwrap());
        // Further than half of all positions is behind.
        if posted.wrapping_add(ahead).wrapping_sub(known) <= u32::MAX / 2 {
            prop_assert!(world.out.consume(told(posted.wrapping_add(ahead))).is_err());
        }
        prop_assert_eq!(world.out.consume(told(known.wrapping_sub(ahead))), Ok(false));
        prop_assert_eq!(world.out.known(), told(known));
        for doubled in [16, 31, u8::MAX] {
            let longest = Told { consumed: known, doubled };
            prop_assert!(world.out.consume(longest).is_err(), "over 16 MiB");
        }
    }
}

/// A sender that always has more than fits, for so many windows; its receiver consumes all that has come, or all but the latest block.
fn after(windows: usize, keeps: bool) -> World {
    let mut world = World::new();
    for _ in 0..windows {
        for _ in 0..20 {
            world.step(Move::Write(32, None));
            world.step(Move::Flush);
            world.step(Move::Post);
        }
        while !world.under_way.is_empty() {
            world.step(Move::Deliver);
            while world.arrived.len() > usize::from(keeps) {
                world.step(Move::Consume);
            }
        }
        world.step(Move::Tell);
        world.step(Move::Hear);
    }
    world
}

fn window_after(windows: usize, keeps: bool) -> u64 {
    after(windows, keeps).incoming.window()
}

#[test]
fn a_sender_hears_that_its_window_is_the_short_one_again() {
    let mut world = after(50, false);
    world.finish();
    assert_eq!((world.out.window(), world.out.unconsumed()), (WIDEST, 0));
    // The receiver has left an idle connection, and the sender had more to send: both go on by it.
    world.incoming.narrow();
    let longest = world.out.known();
    world.write(0, Some(When::Consumed));
    world.finish();
    assert_eq!(world.out.window(), u64::from(WINDOW));
    // What was said before comes late.
    assert_eq!(world.out.consume(longest), Ok(false));
    assert_eq!(world.out.window(), u64::from(WINDOW));
}

#[test]
fn a_window_is_doubled_once_a_window_while_its_receiver_has_nothing_left_to_consume() {
    assert_eq!(window_after(1, false), u64::from(WINDOW), "nothing has waited");
    assert_eq!(window_after(2, false), u64::from(2 * WINDOW));
    assert_eq!(window_after(3, false), u64::from(2 * WINDOW), "less than a window has come");
    assert_eq!(window_after(50, false), WIDEST);
    assert_eq!(window_after(50, true), u64::from(WINDOW), "the receiver is slow");
}

#[test]
fn a_sender_that_ignores_the_window_is_found_out() {
    let mut incoming = Incoming::new(100);
    assert!(incoming.arrive(60).is_ok());
    assert!(incoming.arrive(41).is_err());
    incoming.consume(60, false);
    assert!(incoming.owes(), "more than half of the window");
    incoming.tell();
    assert!(incoming.arrive(100).is_ok());
}

/// A record that is too long for a message of the shortest kind.
const SHORT: u32 = 41;

#[test]
fn a_thread_that_takes_nothing_is_given_at_most_two_windows_of_memory_by_each_sender() {
    let url = Address::new("sm://").unwrap();
    let domain = hg_na_sm::SmPlugin.open(&url, &OpenOptions::listening()).unwrap();
    let context = domain.context(0).unwrap();
    let addresses = vec![context.address().clone(); 2];
    let (directory, near) = (Arc::new(Directory::new([9; 16], addresses)), Near::new(0, 2));
    let limits = Limits::default();
    let mut port = Port::<u64>::new(0, context, directory, Arc::clone(&near), limits);
    // Nothing may wait to leave.
    while port.record(1, 0, SHORT as usize, 0).map(|room| room.fill(1)).is_ok() {
        port.flush(1);
    }
    let mut parcels = Vec::new();
    near.take(1, &mut parcels);
    let memory = |parcel: &Parcel| match parcel {
        Parcel::Records { block, .. } => block.memory(),
        other => panic!("{other:?}"),
    };
    let memory: usize = parcels.iter().map(memory).sum();
    assert!(parcels.len() > 5000 && memory <= 2 * limits.window as usize, "{memory} bytes");
}

/// Queues this many short records that somebody waits for, in messages of their own.
fn queue(out: &mut Outgoing<u64>, pool: &mut Pool, count: u64) {
    for notice in 0..count {
        out.record(pool, 0, 8).fill(1);
        out.tell(When::Consumed, notice);
        out.seal_short();
    }
}

#[test]
fn what_a_long_queue_took_is_given_back_when_it_is_empty() {
    const COUNT: u64 = 100_000;
    let (mut out, mut pool) = (Outgoing::new(1 << 20), Pool::new(4096));
    queue(&mut out, &mut pool, COUNT);
    assert!(out.memory() > 100 * 4096, "{}", out.memory());
    let mut told = 0;
    while told < COUNT {
        while out.front().is_some() {
            pool.take_back(out.leave().unwrap());
        }
        let consumed = out.written().wrapping_sub(u32::try_from(out.waiting()).unwrap());
        out.consume(Told { consumed, doubled: 0 }).unwrap();
        while let Some(notice) = out.due() {
            assert_eq!(notice, told);
            told += 1;
        }
    }
    // What is used again, and the open block.
    assert!(out.memory() <= 10 * 4096, "{}", out.memory());
    out.rest(&mut pool);
    assert_eq!(out.memory(), 0, "of one that rests");
    // It goes on.
    queue(&mut out, &mut pool, 1);
    assert!(out.front().is_some());
}

#[test]
fn what_waited_for_an_end_that_is_gone_takes_no_memory() {
    const COUNT: u64 = 10_000;
    let (mut out, mut pool) = (Outgoing::new(1 << 20), Pool::new(4096));
    queue(&mut out, &mut pool, COUNT);
    assert!(out.end().into_iter().eq(0..COUNT));
    assert_eq!(out.memory(), 0);
}

#[test]
fn a_connection_that_was_closed_keeps_no_memory_for_its_receiver() {
    const COUNT: u64 = 2000;
    let _watchdog = Watchdog::start();
    let url = Address::new("sm://").unwrap();
    let domain = hg_na_sm::SmPlugin.open(&url, &OpenOptions::listening()).unwrap();
    let contexts = [0, 1].map(|at| domain.context(at).unwrap());
    let addresses = contexts.iter().map(|it| it.address().clone()).collect();
    let directory = Arc::new(Directory::new([9; 16], addresses));
    let limits = Limits::default().idle(Duration::from_millis(1));
    let ports = contexts.into_iter().zip(0..).map(|(context, end)| {
        Port::new(end, context, Arc::clone(&directory), Near::new(end, 1), limits)
    });
    let mut ports: Vec<Port<u64>> = ports.collect();
    for notice in 0..COUNT {
        ports[0].record(1, 0, 8, u64::MAX).unwrap().fill(1);
        ports[0].tell(1, When::Consumed, notice);
    }
    ports[0].flush(1);
    let (mut batch, mut told) = (Batch::default(), 0);
    watchdog::until("all are told, and the connection is closed", || {
        for port in &mut ports {
            port.advance(Instant::now(), &mut batch).unwrap();
            while let Some(event) = port.next(&mut batch) {
                let Event::Block(block) = event else { panic!("{event:?}") };
                port.consumed(block);
            }
            port.acknowledge();
            told += u64::try_from(std::iter::from_fn(|| port.due()).count()).unwrap();
        }
        told == COUNT && ports.iter().all(|it| it.connections() == 0)
    });
    assert_eq!([ports[0].memory(), ports[1].memory()], [0, 0]);
}

#[test]
fn records_that_are_held_take_at_most_twice_the_memory_that_they_need() {
    const COUNT: u64 = 100;
    let (mut out, mut pool) = (Outgoing::<u32>::new(1 << 20), Pool::new(4096));
    for name in 0..COUNT {
        out.record(&mut pool, 0, SHORT).fill(1);
        out.seal_short();
        out.record(&mut pool, 0, SHORT).fill(1);
        out.hold(name);
    }
    (0..COUNT).for_each(|name| out.release(name));
    let (mut blocks, mut memory, mut messages) = (0, 0, 0);
    while out.front().is_some() {
        let block = out.leave().unwrap();
        (blocks, memory, messages) =
            (blocks + 1, memory + block.memory(), messages + block.message().len());
    }
    // Before the first one nothing has waited.
    assert!(blocks == 2 * COUNT && memory <= 2 * messages + 4096, "{memory} bytes");
}
