//! A seeded simulation of both sides of `na/link`: a hub and its peers exchange messages and transfers in frames, with little room, refusals,
//! late words, cancellations, unregistered memory, closed admission, deaths at any step, liars and strangers.
//!
//! What must hold in every run:
//! - each operation completes exactly once, and says what has happened: messages arrive once and in order, bytes are where they belong;
//! - what a peer can make an end keep is bounded, whatever it says;
//! - when nothing is posted any more, everything comes back to zero: queues, credits, lent memory, places of the table;
//! - one peer's fate is never another's.
//!
//! `HG_LINK_SEED=n` runs one seed alone.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod devices;
mod end;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use end::{End, Fabric, LIMITS, Rng};
use hg_na::{
    Completion, Done, Error, GoneReason, Memory, Message, Op, OpId, Peer, QUIET, Region,
    RegionState, Returned, Rights,
};
use hg_na_link::{
    Framed, Header, Kind, Strangers,
    frame::{HEADER, WINDOW},
    strangers::PATIENCE,
};
use hg_na_parts::regions::ServedRegion;

/// Peers of the hub. An end is the hub, or the number of its wire.
const WIRES: usize = 3;
const HUB: usize = 0;
const STEPS: usize = 1_500;
const SEEDS: u64 = 60;
/// Rounds in which everything has to come to rest.
const REST: usize = 3_000;

/// What an operation is to do.
enum Asked {
    /// Of this number, in its lane.
    Message(usize, u32),
    Receive,
    Transfer {
        is_put: bool,
        near: Arc<ServedRegion>,
        far: Option<Arc<ServedRegion>>,
        byte: u8,
    },
}

struct Posted {
    wire: usize,
    asked: Asked,
    is_quiet: bool,
    is_cancelled: bool,
    is_done: bool,
}

struct World {
    rng: Rng,
    fabric: Fabric,
    ends: Vec<End>,
    posted: BTreeMap<(usize, u64), Posted>,
    ids: Vec<(usize, OpId)>,
    /// Numbers of messages, by end that gets them, wire and lane.
    arrived: BTreeMap<(usize, usize, usize), Vec<u32>>,
    count: u32,
    tags: u64,
    /// Wires whose peer has died, or was put out.
    dead: BTreeSet<usize>,
    /// Ends that tell lies on their wire: what they say is not held against anybody.
    lying: BTreeSet<usize>,
    hung_up: BTreeSet<(usize, usize)>,
    /// Refused, and not told of room since.
    refused: BTreeSet<(usize, usize)>,
    strangers: Strangers<u32>,
    /// When each of them came.
    came: BTreeMap<u32, Instant>,
    now: Instant,
}

/// The other end of a wire.
fn across(end: usize, wire: usize) -> usize {
    if end == HUB { wire } else { HUB }
}

#[expect(clippy::disallowed_methods, reason = "there is no other way to have a time")]
fn some_time() -> Instant {
    Instant::now()
}

impl World {
    fn new(seed: u64) -> Self {
        let fabric: Fabric = Rc::new(RefCell::new(BTreeMap::new()));
        let mut ends: Vec<_> =
            (0..=WIRES as u64).map(|end| End::new(seed * 31 + end, &fabric)).collect();
        for wire in 1..=WIRES {
            let there = ends[HUB].links.accept(Framed::new(wire));
            ends[HUB].peers.insert(wire, there);
            let here = ends[wire].links.look_up(HUB, || Framed::new(wire));
            ends[wire].peers.insert(wire, here);
        }
        Self {
            rng: Rng(seed),
            fabric,
            ends,
            posted: BTreeMap::new(),
            ids: Vec::new(),
            arrived: BTreeMap::new(),
            count: 0,
            tags: 0,
            dead: BTreeSet::new(),
            lying: BTreeSet::new(),
            hung_up: BTreeSet::new(),
            refused: BTreeSet::new(),
            strangers: Strangers::default(),
            came: BTreeMap::new(),
            now: some_time(),
        }
    }

    fn step(&mut self) {
        let wire = 1 + self.rng.below(WIRES);
        let end = if self.rng.one_in(2) { HUB } else { wire };
        match self.rng.below(100) {
            0..20 => self.post(end, wire),
            20..50 => drop(self.ends[end].send(wire)),
            50..78 => self.deliver(end, wire),
            78..84 => {
                let at = self.rng.below(4);
                self.ends[end].land(at);
            }
            84..88 => self.ends[end].moved(),
            88..91 => self.cancel(),
            91..93 => self.unregister(),
            93..97 => self.admission(end, wire),
            97..99 => self.stranger(),
            _ if self.rng.one_in(12) => self.die(wire, &GoneReason::Exited),
            _ if self.rng.one_in(8) => self.lie(wire),
            _ => {}
        }
        self.look();
    }

    fn message(&mut self, most: usize) -> (u32, Message) {
        self.count += 1;
        let mut bytes = self.count.to_le_bytes().to_vec();
        let len = self.rng.below(most - 4);
        bytes.resize(4 + len, self.count.to_le_bytes()[0]);
        (self.count, Message::from(bytes))
    }

    fn post(&mut self, end: usize, wire: usize) {
        let Some(peer) = self.ends[end].peers.get(&wire).copied() else { return };
        match self.rng.below(6) {
            0 => {
                let (number, message) = self.message(LIMITS.control);
                let op = Op::SendControl { to: peer, message };
                self.post_op((end, wire), op, Asked::Message(0, number));
            }
            1 | 2 => {
                let (number, message) = self.message(LIMITS.message);
                let op = Op::SendUnexpected { to: peer, message };
                self.post_op((end, wire), op, Asked::Message(2, number));
            }
            3 => {
                self.tags += 1;
                let (other, tag) = (across(end, wire), self.tags);
                let Some(there) = self.ends[other].peers.get(&wire).copied() else { return };
                let receive = Op::RecvExpected { from: there, tag };
                self.post_op((other, wire), receive, Asked::Receive);
                let (number, message) = self.message(LIMITS.message);
                let op = Op::SendExpected { to: peer, tag, message };
                self.post_op((end, wire), op, Asked::Message(1, number));
            }
            _ => self.transfer(end, wire, peer),
        }
    }

    fn transfer(&mut self, end: usize, wire: usize, peer: Peer) {
        let (is_put, len) = (self.rng.one_in(2), self.rng.below(600));
        let byte = u8::try_from(1 + self.rng.below(250)).unwrap();
        let right = if is_put { Rights::WRITE } else { Rights::READ };
        let rights = if self.rng.one_in(10) { Rights::all() & !right } else { right };
        let filled = |is_source| Memory::from(vec![if is_source { byte } else { 0 }; len]);
        let (own, others) = (&self.ends[end].regions, &self.ends[across(end, wire)].regions);
        let near = ServedRegion::register(own, filled(is_put), Rights::all()).unwrap();
        let far = ServedRegion::register(others, filled(!is_put), rights).unwrap();
        let region = Region::new(Arc::clone(&near) as Arc<dyn RegionState>);
        let local = region.slice(0, len as u64).unwrap();
        // Whoever has a descriptor may say anything of its rights.
        let told = far.descriptor();
        let told = hg_na::Descriptor::new(len as u64, Rights::all(), told.opaque());
        let remote = told.slice(0, len as u64).unwrap();
        let op = match is_put {
            true => Op::Put { to: peer, local, remote },
            false => Op::Get { from: peer, local, remote },
        };
        self.post_op((end, wire), op, Asked::Transfer { is_put, near, far: Some(far), byte });
    }

    fn post_op(&mut self, (end, wire): (usize, usize), op: Op, asked: Asked) {
        let is_quiet = matches!(asked, Asked::Message(..)) && self.rng.one_in(4);
        let token = if is_quiet { QUIET } else { 0 };
        match self.ends[end].links.post(token, op, |_| 0) {
            Ok(id) => {
                let posted = Posted { wire, asked, is_quiet, is_cancelled: false, is_done: false };
                self.posted.insert((end, id.serial), posted);
                self.ids.push((end, id));
            }
            Err(rejected) => match rejected.error {
                Error::Again => drop(self.refused.insert((end, wire))),
                Error::PeerGone(_) => assert!(self.dead.contains(&wire)),
                other => panic!("{other}"),
            },
        }
    }

    /// A frame arrives at an end.
    fn deliver(&mut self, end: usize, wire: usize) {
        let out = &mut self.ends[across(end, wire)].card.out;
        let Some(frame) = out.get_mut(&wire).and_then(VecDeque::pop_front) else { return };
        self.arrive(end, wire, &frame);
    }

    fn arrive(&mut self, end: usize, wire: usize, frame: &[u8]) {
        if let Err(why) = self.ends[end].take(wire, frame) {
            assert!(self.lying.contains(&wire), "who tells no lies is put out: {why}");
            self.die(wire, &GoneReason::Misbehaved(why.into()));
        }
    }

    /// The peer of a wire says something else than it was to say, or something more, or more than it may.
    fn lie(&mut self, wire: usize) {
        self.lying.insert(wire);
        self.ends[HUB].is_lied_to = true;
        if self.rng.one_in(3) {
            return self.flood(wire);
        }
        let (at, by, is_new) = (self.rng.below(60), self.rng.below(255), self.rng.one_in(2));
        let frame = self.ends[wire].card.out.get_mut(&wire).and_then(VecDeque::pop_front);
        let mut frame = frame.filter(|_| !is_new).unwrap_or_else(|| vec![0; HEADER + at]);
        let at = at % frame.len();
        frame[at] = frame[at].wrapping_add(u8::try_from(1 + by).unwrap_or(1));
        self.arrive(HUB, wire, &frame);
    }

    /// More requests than there are credits, which nobody takes meanwhile.
    fn flood(&mut self, wire: usize) {
        let Some(peer) = self.ends[HUB].peers.get(&wire).copied() else { return };
        self.ends[HUB].links.set_admission_of(peer, false);
        let taken = self.ends[wire]
            .links
            .iter()
            .next()
            .map(|it| it.way.lanes.header(Kind::Credit, 0, false));
        let Some(Header { taken, .. }) = taken else { return };
        let mut frame = [0; HEADER];
        Header { kind: Kind::Unexpected, more: false, tag: 0, taken }.encode(0, &mut frame);
        for _ in 0..=WINDOW {
            self.arrive(HUB, wire, &frame);
            self.ends[HUB].check_bounds();
        }
        assert!(self.dead.contains(&wire), "who sends without credits is put out");
    }

    fn die(&mut self, wire: usize, reason: &GoneReason) {
        // What is there may arrive, or not.
        let most = self.rng.below(8);
        if self.dead.insert(wire) {
            (0..most).for_each(|_| self.deliver(HUB, wire));
            self.ends[HUB].end(wire, reason);
            self.ends[wire].end(wire, &GoneReason::Closed);
        }
    }

    /// One of the last operations.
    fn recent(&mut self) -> Option<(usize, OpId)> {
        let since = self.ids.len().saturating_sub(8);
        self.rng.pick(&self.ids[since..]).copied()
    }

    fn cancel(&mut self) {
        let Some((end, id)) = self.recent() else { return };
        self.posted.get_mut(&(end, id.serial)).unwrap().is_cancelled = true;
        self.ends[end].cancel(id);
    }

    /// Of an end that moves nothing just now: else it would be waited for.
    fn unregister(&mut self) {
        let Some((end, id)) = self.recent() else { return };
        let posted = self.posted.get_mut(&(end, id.serial)).unwrap();
        if self.ends[across(end, posted.wire)].is_moving() {
            return;
        }
        if let Asked::Transfer { far, .. } = &mut posted.asked {
            *far = None;
        }
    }

    fn admission(&mut self, end: usize, wire: usize) {
        let (is_open, peer) = (self.rng.one_in(2), self.ends[end].peers.get(&wire).copied());
        let links = &mut self.ends[end].links;
        match (self.rng.below(3), peer) {
            (0, _) => drop(links.set_admission(is_open)),
            (1, Some(peer)) => drop(links.set_admission_of(peer, is_open)),
            _ => {
                let most = 1 + self.rng.below(4);
                self.ends[end].admit(most);
            }
        }
    }

    /// Somebody comes to the hub without a word; who has waited longest makes room.
    fn stranger(&mut self) {
        self.now += Duration::from_millis(self.rng.below(200) as u64);
        let peer = self.ends[HUB].links.accept(Framed::new(0));
        assert!(!self.strangers.came(self.now, peer.index()), "far from too many");
        self.came.insert(peer.index(), self.now);
        let is_known = self.ends[HUB].peers.values().any(|it| it.index() == peer.index());
        assert!(!is_known, "a stranger has somebody's place");
        if let Some(place) = self.strangers.to_shed(self.now) {
            self.drop_stranger(place);
        }
    }

    fn drop_stranger(&mut self, place: u32) {
        let links = &mut self.ends[HUB].links;
        let peer = links.at(place).unwrap().peer;
        links.drop_unmet(peer);
        self.strangers.went(self.came.remove(&place).unwrap(), place);
    }

    /// What has completed is what was asked for, and did so once.
    fn look(&mut self) {
        for end in 0..self.ends.len() {
            self.ends[end].check_bounds();
            for completion in std::mem::take(&mut self.ends[end].done) {
                self.completed(end, completion);
            }
        }
    }

    fn completed(&mut self, end: usize, completion: Completion) {
        let wire_of = |peer: Peer| {
            let mut all = self.ends[end].peers.iter();
            *all.find(|(_, it)| **it == peer).expect("only of peers that are known").0
        };
        match completion {
            Completion::Done(done) => self.ended(end, done),
            Completion::Control { from, message } => {
                let wire = wire_of(from);
                self.message_came((end, wire, 0), &message);
            }
            Completion::Unexpected { from, message } => {
                let wire = wire_of(from);
                self.message_came((end, wire, 2), &message);
            }
            Completion::Room { peer } => {
                let wire = wire_of(peer);
                self.refused.remove(&(end, wire));
            }
            Completion::HungUp { peer, .. } => {
                let wire = wire_of(peer);
                assert!(self.dead.contains(&wire), "who lives is said to be gone");
                assert!(self.hung_up.insert((end, wire)), "twice");
            }
            Completion::Gone { peer, .. } => {
                let wire = wire_of(peer);
                assert!(self.hung_up.contains(&(end, wire)));
                self.ends[end].peers.remove(&wire);
            }
            other => panic!("{other:?}"),
        }
    }

    fn message_came(&mut self, place: (usize, usize, usize), message: &Message) {
        if self.lying.contains(&place.1) {
            return;
        }
        let (number, rest) = message.as_slice().split_first_chunk::<4>().unwrap();
        assert!(rest.iter().all(|byte| *byte == number[0]), "bytes of another message");
        let number = u32::from_le_bytes(*number);
        let before = self.arrived.entry(place).or_default();
        assert!(before.last().is_none_or(|last| *last < number), "twice, or out of order");
        before.push(number);
    }

    fn ended(&mut self, end: usize, done: Done) {
        let posted = self.posted.get_mut(&(end, done.id.serial)).unwrap();
        assert!(!std::mem::replace(&mut posted.is_done, true), "{:?} completes twice", done.id);
        let (wire, is_trusted) = (posted.wire, !self.lying.contains(&posted.wire));
        match (done.result.map_err(|failure| failure.error), &posted.asked) {
            (Ok(()), Asked::Transfer { is_put, near, far, byte }) if is_trusted => {
                // Of memory that was unregistered meanwhile nobody has the bytes any more.
                let target = if *is_put { far.as_ref() } else { Some(near) };
                if let Some(target) = target {
                    let mut bytes = vec![0; usize::try_from(near.len()).unwrap()];
                    target.read(0, &mut bytes).unwrap();
                    assert!(bytes.iter().all(|it| it == byte), "bytes that are not there");
                }
            }
            (Ok(()), Asked::Receive) => {
                let Returned::Message(message) = done.returned else { panic!("no message") };
                self.message_came((end, wire, 1), &message);
            }
            (Ok(()), _) => {}
            (Err(Error::Cancelled), _) => assert!(posted.is_cancelled),
            (Err(Error::PeerGone(_)), _) => assert!(self.dead.contains(&wire)),
            (Err(Error::Denied { .. }), Asked::Transfer { .. }) => {}
            (Err(Error::StaleDescriptor), Asked::Transfer { far, .. }) => {
                assert!(far.is_none() || !is_trusted);
            }
            (Err(other), _) => assert!(!is_trusted, "{other}"),
        }
    }

    /// Nothing is posted any more; everything that is under way ends.
    fn come_to_rest(&mut self) {
        for end in 0..self.ends.len() {
            self.ends[end].links.set_admission(true);
            for peer in self.ends[end].peers.values().copied().collect::<Vec<_>>() {
                self.ends[end].links.set_admission_of(peer, true);
            }
        }
        // A liar's transfers may never end: its connection does.
        for wire in self.lying.clone() {
            self.die(wire, &GoneReason::Closed);
        }
        for _ in 0..REST {
            for wire in 1..=WIRES {
                for end in [HUB, wire] {
                    self.ends[end].admit(100);
                    let _may_send_more = self.ends[end].send(wire);
                    self.deliver(end, wire);
                    self.ends[end].land(0);
                    self.ends[end].moved();
                }
            }
            self.look();
            if self.ends.iter().all(End::is_quiet) {
                return;
            }
        }
        panic!("something is never over");
    }

    /// What must hold once nothing is under way.
    fn check_rest(&self) {
        assert!(self.fabric.borrow().is_empty(), "memory stays lent");
        for ((end, serial), posted) in &self.posted {
            let is_over = match posted.asked {
                Asked::Receive => true,
                _ => posted.is_done || posted.is_quiet,
            };
            assert!(is_over, "operation {serial} of end {end} never ends");
            let Asked::Message(lane, number) = posted.asked else { continue };
            let is_certain = !posted.is_cancelled && !self.dead.contains(&posted.wire);
            if is_certain && lane != 1 {
                let place = (across(*end, posted.wire), posted.wire, lane);
                assert!(self.arrived[&place].binary_search(&number).is_ok(), "a message is lost");
            }
        }
        let waits = |(_, wire): &(usize, usize)| !self.dead.contains(wire);
        assert!(!self.refused.iter().any(waits), "room is never told");
    }

    fn close(&mut self) {
        for wire in 1..=WIRES {
            self.die(wire, &GoneReason::Closed);
        }
        self.look();
        (0..self.ends.len()).for_each(|end| self.ends[end].admit(1_000));
        self.look();
        while let Some(place) = self.strangers.to_shed(self.now + PATIENCE) {
            self.drop_stranger(place);
        }
        assert!(self.posted.values().all(|it| it.is_done || it.is_quiet));
        for end in &self.ends {
            assert!(end.links.is_empty() && end.links.hung_up() == 0, "a place is never free");
        }
        assert_eq!(self.hung_up.len(), 2 * WIRES, "both ends of each wire are told");
    }
}

#[test]
fn everything_ends_once_nothing_is_left_and_no_peer_pays_for_another() {
    let one = std::env::var("HG_LINK_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = one.map_or(0..SEEDS, |seed| seed..seed + 1);
    for seed in seeds {
        let run = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            (0..STEPS).for_each(|_| world.step());
            world.come_to_rest();
            world.check_rest();
            world.close();
        });
        if let Err(panic) = run {
            panic!("HG_LINK_SEED={seed}: {:?}", panic.downcast_ref::<String>());
        }
    }
}
