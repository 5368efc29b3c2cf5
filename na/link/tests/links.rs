//! Peers of one context under any order of events: what `na` promises of operations, messages and last words.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hg_na::{Completion, Error, GoneReason, Message, Op, OpId, Peer, QUIET, Tag};
use hg_na_link::{Lane, Limits, Links};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};

const LIMITS: Limits = Limits { message: 64, control: 8, depth: 4, transfers: 4 };
const TARGETS: u8 = 3;

#[derive(Debug, Clone)]
enum Event {
    Post {
        target: u8,
        kind: u8,
        len: usize,
        tag: Tag,
        is_quiet: bool,
    },
    /// The transport takes a message, and has sent it.
    Leave(u8, usize),
    Cancel(usize),
    Come(u8, usize, Tag),
    Admission(bool),
    AdmissionOf(u8, bool),
    Admit(usize),
    Close(u8),
    End(u8),
    Forget(u8),
}

fn event() -> impl Strategy<Value = Event> {
    let (target, lane) = (0..TARGETS, 0_usize..3);
    let post = (0..TARGETS, 0_u8..4, 0_usize..70, 0_u64..4, any::<bool>());
    let post = post.prop_map(|(target, kind, len, tag, is_quiet)| Event::Post {
        target,
        kind,
        len: if kind == 1 { len / 8 } else { len },
        tag,
        is_quiet,
    });
    prop_oneof![
        8 => post,
        4 => (target.clone(), lane.clone()).prop_map(|(target, lane)| Event::Leave(target, lane)),
        2 => (0_usize..40).prop_map(Event::Cancel),
        4 => (target.clone(), lane, 0_u64..4).prop_map(|(target, lane, tag)| Event::Come(target, lane, tag)),
        1 => any::<bool>().prop_map(Event::Admission),
        1 => (target.clone(), any::<bool>()).prop_map(|(target, open)| Event::AdmissionOf(target, open)),
        2 => (0_usize..6).prop_map(Event::Admit),
        1 => target.clone().prop_map(Event::Close),
        1 => target.clone().prop_map(Event::End),
        1 => target.prop_map(Event::Forget),
        1 => Just(Event::Admit(100)),
    ]
}

/// What is to be said of one peer still.
#[derive(Debug, Default)]
struct Known {
    has_hung_up: bool,
    is_gone: bool,
    is_forgotten: bool,
    /// Unexpected messages that have come and were not handed out.
    withheld: VecDeque<u64>,
    /// Lanes that have refused something, and for which room was not told since.
    refused: Vec<Lane>,
}

struct World {
    links: Links<u8, ()>,
    peers: BTreeMap<Peer, Known>,
    /// The present peer of each target.
    present: BTreeMap<u8, Peer>,
    open: BTreeSet<(u32, u64)>,
    all: Vec<OpId>,
    done: Vec<Completion>,
    count: u64,
}

impl World {
    fn new() -> Self {
        Self {
            links: Links::new(0, LIMITS),
            peers: BTreeMap::new(),
            present: BTreeMap::new(),
            open: BTreeSet::new(),
            all: Vec::new(),
            done: Vec::new(),
            count: 0,
        }
    }

    fn peer(&mut self, target: u8) -> Peer {
        let peer = self.links.look_up(target, || ());
        self.peers.entry(peer).or_default();
        assert!(!self.peers[&peer].has_hung_up, "a new incarnation has a new handle");
        self.present.insert(target, peer);
        peer
    }

    fn act(&mut self, event: Event) {
        match event {
            Event::Post { target, kind, len, tag, is_quiet } => {
                self.post(target, kind, len, tag, is_quiet);
            }
            Event::Leave(target, lane) => self.leave(target, Lane::ALL[lane]),
            Event::Cancel(at) => {
                let Some(id) = self.all.get(at).copied() else { return };
                let was_open = self.open.contains(&(id.scope, id.serial));
                let told = self.links.cancel(id, &mut self.done).is_some();
                assert_eq!(told, was_open, "what waits is taken back, and nothing else");
                if let Some(link) = self.links.at(id.scope) {
                    link.tell_room(&LIMITS, 0, &mut self.done);
                }
            }
            Event::Come(target, lane, tag) => self.come(target, Lane::ALL[lane], tag),
            Event::Admission(open) => drop(self.links.set_admission(open)),
            Event::AdmissionOf(target, open) => {
                let peer = self.peer(target);
                self.links.set_admission_of(peer, open);
            }
            Event::Admit(most) => {
                let (before, mut released) = (self.done.len(), 0);
                self.links.admit(most, &mut self.done, |_, len| {
                    assert_eq!(len, 8);
                    released += 1;
                });
                let handed = |it: &&Completion| matches!(it, Completion::Unexpected { .. });
                let handed = self.done[before..].iter().filter(handed).count();
                assert!(handed == released && handed <= most);
            }
            Event::Close(target) => {
                let peer = self.peer(target);
                self.links.close(peer, GoneReason::Closed);
                let message = Message::inline(0);
                let refused = self.links.post(0, Op::SendControl { to: peer, message }, |()| 0);
                assert!(matches!(refused.unwrap_err().error, Error::PeerGone(_)));
                // Nobody finds it by its address; it ends by itself.
                self.links.end(peer, &GoneReason::Closed, &mut self.done);
            }
            Event::End(target) => {
                let peer = self.peer(target);
                self.links.end(peer, &GoneReason::Exited, &mut self.done);
            }
            Event::Forget(target) => {
                let Some(peer) = self.present.get(&target).copied() else { return };
                if let Some(known) = self.peers.get_mut(&peer) {
                    known.withheld.clear();
                    known.is_forgotten = true;
                }
                if !self.links.forget(peer, &mut self.done) {
                    self.links.end(peer, &GoneReason::Forgotten, &mut self.done);
                }
                assert!(self.links.get(peer).is_none());
            }
        }
    }

    fn post(&mut self, target: u8, kind: u8, len: usize, tag: Tag, is_quiet: bool) {
        let peer = self.peer(target);
        let message = Message::from(vec![0; len]);
        let op = match kind {
            0 => Op::SendUnexpected { to: peer, message },
            1 => Op::SendControl { to: peer, message },
            2 => Op::SendExpected { to: peer, tag, message },
            _ => Op::RecvExpected { from: peer, tag },
        };
        let token = if is_quiet && kind < 3 { QUIET } else { 0 };
        match self.links.post(token, op, |()| 0) {
            Ok(id) => {
                assert!(self.open.insert((id.scope, id.serial)), "numbers are never used twice");
                self.all.push(id);
            }
            Err(rejected) => match rejected.error {
                Error::Again => {
                    let lane = [Lane::Unexpected, Lane::Control, Lane::Expected][usize::from(kind)];
                    let refused = &mut self.peers.get_mut(&peer).unwrap().refused;
                    refused.retain(|it| *it != lane);
                    refused.push(lane);
                }
                Error::TooLong { .. } | Error::TagInUse(_) => {}
                other => panic!("{other}"),
            },
        }
        let link = self.links.find(peer).unwrap();
        assert!(Lane::ALL.iter().all(|lane| link.queues.len(*lane) <= LIMITS.depth));
    }

    fn leave(&mut self, target: u8, lane: Lane) {
        let peer = self.peer(target);
        let link = self.links.find(peer).unwrap();
        if let Some(sending) = link.queues.pop(lane) {
            if sending.token & QUIET != 0 {
                self.open.remove(&(sending.id.scope, sending.id.serial));
            }
            sending.sent(&mut self.done);
        }
        link.tell_room(&LIMITS, 0, &mut self.done);
    }

    fn come(&mut self, target: u8, lane: Lane, tag: Tag) {
        let peer = self.peer(target);
        let admission = self.links.admission();
        self.count += 1;
        if lane == Lane::Unexpected {
            self.peers.get_mut(&peer).unwrap().withheld.push_back(self.count);
        }
        let message = Message::copied(&self.count.to_le_bytes());
        let link = self.links.find(peer).unwrap();
        if !link.deliver((lane, tag), message, admission, &mut self.done) {
            self.links.await_admission(peer);
        }
    }

    /// Everything that was completed is allowed to.
    fn check(&mut self) {
        for completion in std::mem::take(&mut self.done) {
            match completion {
                Completion::Done(done) => {
                    let id = (done.id.scope, done.id.serial);
                    assert!(self.open.remove(&id), "{id:?} completes twice, or was never accepted");
                    let known = self.peers.iter().rfind(|(peer, _)| peer.index() == id.0);
                    assert!(known.is_some_and(|(_, known)| !known.has_hung_up));
                }
                Completion::Unexpected { from, message } => {
                    let known = self.peers.get_mut(&from).unwrap();
                    let number = u64::from_le_bytes(message.as_slice().try_into().unwrap());
                    assert_eq!(known.withheld.pop_front(), Some(number), "in order, each once");
                    assert!(!known.is_gone);
                }
                Completion::Control { from, .. } => assert!(!self.peers[&from].has_hung_up),
                Completion::HungUp { peer, .. } => {
                    let known = self.peers.get_mut(&peer).unwrap();
                    assert!(!std::mem::replace(&mut known.has_hung_up, true));
                    self.all.retain(|id| id.scope != peer.index());
                    assert!(self.open.iter().all(|(scope, _)| *scope != peer.index()));
                }
                Completion::Gone { peer, .. } => {
                    let known = self.peers.get_mut(&peer).unwrap();
                    assert!(known.has_hung_up && known.withheld.is_empty());
                    assert!(!std::mem::replace(&mut known.is_gone, true));
                }
                Completion::Room { peer } => {
                    let known = self.peers.get_mut(&peer).unwrap();
                    let queues = &self.links.find(peer).unwrap().queues;
                    let before = known.refused.len();
                    known.refused.retain(|lane| queues.len(*lane) > LIMITS.depth / 2);
                    assert!(!known.has_hung_up && known.refused.len() < before, "once for each");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn every_operation_completes_once_and_every_peer_has_one_last_word(
        events in proptest::collection::vec(event(), 1..200),
    ) {
        let mut world = World::new();
        for event in events {
            world.act(event);
            world.check();
        }
        for target in 0..TARGETS {
            world.act(Event::End(target));
            world.check();
        }
        assert!(world.open.is_empty(), "{:?} never completed", world.open);
        let peers: Vec<_> = world.peers.keys().copied().collect();
        world.links.set_admission(true);
        for peer in peers {
            world.links.set_admission_of(peer, true);
        }
        world.act(Event::Admit(1000));
        world.check();
        assert!(world.links.is_empty() && world.links.hung_up() == 0);
        for known in world.peers.values() {
            assert!(known.is_gone && known.withheld.is_empty());
        }
    }
}

#[test]
fn room_is_told_when_a_full_queue_has_come_down_to_half() {
    let mut world = World::new();
    let post = Event::Post { target: 0, kind: 0, len: 1, tag: 0, is_quiet: false };
    (0..=LIMITS.depth).for_each(|_| world.act(post.clone()));
    let told = |world: &World| world.done.iter().any(|it| matches!(it, Completion::Room { .. }));
    let unexpected = Lane::Unexpected.place();
    world.act(Event::Leave(0, unexpected));
    assert!(!told(&world));
    world.act(Event::Leave(0, unexpected));
    assert!(told(&world));
    world.check();
    world.act(Event::Leave(0, unexpected));
    assert!(!told(&world), "once");
}

#[test]
fn room_is_told_for_each_queue_that_was_full() {
    let mut world = World::new();
    let lanes = [(1, Lane::Control), (2, Lane::Expected)];
    for (kind, _) in lanes {
        let post = Event::Post { target: 0, kind, len: 1, tag: 0, is_quiet: false };
        (0..=LIMITS.depth).for_each(|_| world.act(post.clone()));
    }
    for (_, lane) in lanes {
        (0..LIMITS.depth / 2).for_each(|_| world.act(Event::Leave(0, lane.place())));
        let told = world.done.iter().filter(|it| matches!(it, Completion::Room { .. }));
        assert_eq!(told.count(), 1);
        world.check();
    }
    assert!(world.peers.values().all(|known| known.refused.is_empty()));
}

#[test]
fn handles_carry_their_tables_mark_and_are_not_found_without_it() {
    for mark in [0, Peer::SECOND] {
        let mut links: Links<u8, ()> = Links::new(mark, LIMITS);
        let all: Vec<_> = (0..3).map(|target| links.look_up(target, || ())).collect();
        for (place, peer) in (0..).zip(&all) {
            assert_eq!(peer.index(), place | mark);
            assert!(links.find(*peer).is_some_and(|link| link.peer == *peer));
            assert!(links.at(peer.index()).is_some_and(|link| link.peer == *peer));
            let other = Peer::new(peer.index() ^ Peer::SECOND, peer.generation());
            assert!(links.find(other).is_none() && links.at(other.index()).is_none());
            assert!(links.get(other).is_none());
        }
        let mut done = Vec::new();
        links.end(all[1], &GoneReason::Closed, &mut done);
        assert!(links.find(all[1]).is_none() && links.len() == 2);
        let again = links.look_up(1, || ());
        assert!(again.index() == all[1].index() && again != all[1]);
        let message = Message::inline(0);
        let refused = links.post(0, Op::SendControl { to: all[1], message }, |()| 0);
        assert!(matches!(refused.unwrap_err().error, Error::PeerGone(GoneReason::Ended)));
    }
}

#[test]
fn of_requests_that_take_too_much_memory_those_of_the_greediest_peer_are_dropped() {
    const MOST: u64 = 40 * 1024;
    let mut links: Links<u8, ()> = Links::new(0, LIMITS);
    let mut done = Vec::new();
    links.set_admission(false);
    let [modest, greedy, gone] = [(); 3].map(|()| links.accept(()));
    let withhold = |links: &mut Links<u8, ()>, peer, len: usize, done: &mut Vec<_>| {
        let link = links.find(peer).unwrap();
        assert!(!link.deliver((Lane::Unexpected, 0), Message::from(vec![1; len]), false, done));
        links.withhold(peer, len, MOST, done)
    };
    assert_eq!(withhold(&mut links, modest, 5000, &mut done), None);
    for _ in 0..3 {
        assert_eq!(withhold(&mut links, gone, 5000, &mut done), None);
    }
    links.end(gone, &GoneReason::Exited, &mut done);
    // The one that takes most has gone already: that is its last word, and nobody else is concerned.
    for _ in 0..2 {
        assert_eq!(withhold(&mut links, modest, 5000, &mut done), None);
    }
    assert_eq!(withhold(&mut links, greedy, 9000, &mut done), None);
    assert_eq!(withhold(&mut links, greedy, 5000, &mut done), None);
    let is_last = |it: &Completion| matches!(it, Completion::Gone { peer, .. } if *peer == gone);
    assert!(done.iter().any(is_last) && links.find(gone).is_none(), "{done:?}");
    assert_eq!(withhold(&mut links, greedy, 9000, &mut done), None);
    assert_eq!(withhold(&mut links, greedy, 9000, &mut done), Some(greedy));
    links.end(greedy, &GoneReason::Exhausted("memory".into()), &mut done);
    assert!(links.find(greedy).is_none(), "nothing is kept of it");
    // What the others had sent comes, and leaves room for as much.
    for _ in 0..3 {
        done.clear();
        links.set_admission(true);
        links.admit(100, &mut done, |_, _| {});
        assert!(matches!(done[0], Completion::Unexpected { from, .. } if from == modest));
        links.set_admission(false);
        for _ in 0..7 {
            assert_eq!(withhold(&mut links, modest, 5000, &mut done), None);
        }
    }
}

#[test]
fn peers_whose_messages_wait_are_heard_in_turn_however_few_are_admitted_at_a_time() {
    const EACH: usize = 3;
    let mut links: Links<u8, ()> = Links::new(0, LIMITS);
    let mut done = Vec::new();
    links.set_admission(false);
    let all = [(); 3].map(|()| links.accept(()));
    for peer in all.repeat(EACH) {
        let link = links.find(peer).unwrap();
        assert!(!link.deliver((Lane::Unexpected, 0), Message::inline(8), false, &mut done));
        assert_eq!(links.withhold(peer, 8, u64::MAX, &mut done), None);
    }
    for _ in 0..all.len() * EACH {
        links.set_admission(true);
        links.admit(1, &mut done, |_, _| {});
        links.set_admission(false);
    }
    let heard = done.iter().map(|it| match it {
        Completion::Unexpected { from, .. } => *from,
        other => panic!("{other:?}"),
    });
    assert!(heard.eq(all.repeat(EACH)), "{done:?}");
}
