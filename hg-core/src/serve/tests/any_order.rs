//! Admission in every order of events.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const ORIGINS: u32 = 3;
const MAX: usize = 8;
/// From one id to the next, at the same place of a table.
const NEXT: u64 = 1 << 28;

#[derive(Debug, Clone)]
enum Event {
    Arrive {
        origin: u32,
        is_one_way: bool,
    },
    /// Of the requests of this round one ends, or goes on.
    End {
        at: usize,
    },
    GoOn {
        at: usize,
    },
    /// A handler that has gone on ends.
    EndLater {
        at: usize,
    },
    /// A cancellation of what has arrived, runs, is held, or comes next.
    Cancel {
        at: usize,
    },
    /// It takes its answers from now on, or does not.
    Takes {
        origin: u32,
        takes: bool,
    },
    HangUp {
        origin: u32,
    },
    /// The round ends: what has arrived in it and has not ended goes on.
    Round,
}

fn any_event() -> impl Strategy<Value = Event> {
    let (origin, at) = (0..ORIGINS, 0_usize..16);
    prop_oneof![
        8 => (origin.clone(), any::<bool>())
            .prop_map(|(origin, is_one_way)| Event::Arrive { origin, is_one_way }),
        2 => at.clone().prop_map(|at| Event::End { at }),
        2 => at.clone().prop_map(|at| Event::GoOn { at }),
        4 => at.clone().prop_map(|at| Event::EndLater { at }),
        2 => at.prop_map(|at| Event::Cancel { at }),
        1 => (origin.clone(), any::<bool>()).prop_map(|(origin, takes)| Event::Takes { origin, takes }),
        1 => origin.prop_map(|origin| Event::HangUp { origin }),
        4 => Just(Event::Round),
    ]
}

type Request = (Peer, u64);

struct World {
    serves: Serves,
    next: u64,
    /// The generation of each origin, of which it has another one after it has hung up.
    generations: [u32; ORIGINS as usize],
    takes: BTreeMap<Peer, bool>,
    shut: BTreeMap<Peer, bool>,
    arrived: Vec<(Peer, u64, bool)>,
    /// Of those, the cancelled ones and the one-way calls whose origin has hung up, which count twice until their handlers have run.
    remembered: BTreeSet<u64>,
    running: Vec<Request>,
    /// What was cancelled before it has begun.
    early: BTreeSet<Request>,
    held: BTreeMap<Peer, VecDeque<(u64, bool)>>,
}

impl World {
    fn new() -> Self {
        Self {
            serves: Serves::new(MAX, None),
            next: 0,
            generations: [1; ORIGINS as usize],
            takes: BTreeMap::new(),
            shut: BTreeMap::new(),
            arrived: Vec::new(),
            remembered: BTreeSet::new(),
            running: Vec::new(),
            early: BTreeSet::new(),
            held: BTreeMap::new(),
        }
    }

    fn peer(&self, origin: u32) -> Peer {
        Peer::new(origin, self.generations[origin as usize])
    }

    fn of(&self, peer: Peer) -> usize {
        let arrived = self.arrived.iter().filter(|it| it.0 == peer).count();
        arrived + self.running.iter().filter(|it| it.0 == peer).count()
    }

    fn arrive(&mut self, from: Peer, is_one_way: bool) {
        let kind = if is_one_way { Kind::OneWay } else { Kind::Request };
        let (id, has_held) = (self.next, self.held.contains_key(&from));
        self.next += NEXT;
        let message = encoded(&Header::request(kind, id, RpcId(5)));
        let left = MAX.saturating_sub(self.serves.in_service());
        match self.serves.handle_message(from, &message) {
            Arrival::Hold => {
                let alone = self.arrived.is_empty() && self.of(from) == 0;
                assert!(
                    has_held || left == 0 || !alone,
                    "who has nothing is served while there is room"
                );
                self.serves.hold(from, Message::copied(&message), some_instant());
                self.held.entry(from).or_default().push_back((id, is_one_way));
            }
            arrival => {
                assert!(!has_held, "nothing overtakes what is held");
                assert!(self.of(from) < left, "no more than is left for all others");
                if self.begins((from, id), &arrival) {
                    self.arrived.push((from, id, is_one_way));
                }
            }
        }
    }

    /// Whether a request whose turn it is runs: unless it was cancelled before. What was said of those before it is forgotten.
    fn begins(&mut self, request: Request, arrival: &Arrival) -> bool {
        let (from, id) = request;
        let is_cancelled = self.early.contains(&request);
        self.early.retain(|it| it.0 != from || it.1 > id);
        match arrival {
            Arrival::Run { header, .. } => assert!(header.id == id && !is_cancelled, "in order"),
            other => assert!(is_cancelled, "nobody has cancelled it: {other:?}"),
        }
        !is_cancelled
    }

    fn cancel(&mut self, at: usize) {
        let arrived = self.arrived.iter().map(|it| (it.0, it.1));
        let held = self.held.iter().flat_map(|(peer, it)| it.iter().map(|it| (*peer, it.0)));
        let next = (0..ORIGINS).map(|origin| (self.peer(origin), self.next));
        let begun = self.arrived.len() + self.running.len();
        let mut all = arrived.chain(self.running.iter().copied()).chain(held).chain(next);
        let Some((from, id)) = all.nth(at) else { return };
        drop(all);
        let has_arrived = at < self.arrived.len();
        self.serves.handle_cancel(from, id, has_arrived, &mut Vec::new());
        assert_eq!(self.serves.is_cancelled(from, id), at < begun, "its handler is told");
        if has_arrived {
            self.remembered.insert(id);
        } else if at >= begun {
            self.early.insert((from, id));
        }
    }

    fn end_round(&mut self) {
        for (from, id, _) in std::mem::take(&mut self.arrived) {
            self.remembered.remove(&id);
            self.serves.keep_running(from, id);
            self.running.push((from, id));
        }
        while let Some((from, _, arrival)) = self.serves.take_held(some_instant()) {
            let held = self.held.get_mut(&from).expect("something of it was held");
            let (id, _) = held.pop_front().expect("something of it was held");
            if held.is_empty() {
                self.held.remove(&from);
            }
            if self.begins((from, id), &arrival) {
                self.serves.keep_running(from, id);
                self.running.push((from, id));
            }
        }
        let takes = self.takes.clone();
        let takes = |peer: Peer| takes.get(&peer).copied().unwrap_or(true);
        while self.serves.has_chores()
            && let Some(admission) = self.serves.poll_admission(takes)
        {
            if let Admission::OfPeer(peer, open) = admission {
                assert_ne!(self.shut.insert(peer, !open), Some(!open), "told once");
            }
        }
        for origin in 0..ORIGINS {
            let peer = self.peer(origin);
            let has_share = self.of(peer) >= MAX.saturating_sub(self.serves.in_service());
            let is_own = self.held.contains_key(&peer) || !takes(peer);
            let is_shut = self.shut.get(&peer).copied().unwrap_or(false);
            assert!(!is_shut || is_own || has_share, "nobody is shut for what others do");
            assert!(is_shut || !is_own, "who takes no answers, or of whom something is held");
        }
    }

    fn run(&mut self, event: &Event) {
        match *event {
            Event::Arrive { origin, is_one_way } => {
                let peer = self.peer(origin);
                self.arrive(peer, is_one_way);
            }
            Event::End { at } if at < self.arrived.len() => {
                let (from, id, _) = self.arrived.remove(at);
                self.remembered.remove(&id);
                self.serves.end_in_round(from, id);
            }
            Event::GoOn { at } if at < self.arrived.len() => {
                let (from, id, _) = self.arrived.remove(at);
                self.remembered.remove(&id);
                self.serves.keep_running(from, id);
                self.running.push((from, id));
            }
            Event::EndLater { at } if at < self.running.len() => {
                let (from, id) = self.running.remove(at);
                assert!(self.serves.end(from, id), "answered");
                assert!(!self.serves.end(from, id), "once");
            }
            Event::Cancel { at } => self.cancel(at),
            Event::Takes { origin, takes } => {
                let peer = self.peer(origin);
                self.takes.insert(peer, takes);
                self.serves.handle_change(peer);
            }
            Event::HangUp { origin } => self.hang_up(origin),
            Event::Round => self.end_round(),
            _ => {}
        }
    }

    fn hang_up(&mut self, origin: u32) {
        let peer = self.peer(origin);
        self.generations[origin as usize] += 1;
        self.takes.remove(&peer);
        self.shut.remove(&peer);
        self.early.retain(|it| it.0 != peer);
        // As the protocol does: two-way requests of this round are not begun.
        for (_, id, _) in self.arrived.extract_if(.., |it| it.0 == peer && !it.2) {
            self.remembered.remove(&id);
            self.serves.end_in_round(peer, id);
        }
        let arrived = self.arrived.iter().filter(|it| it.0 == peer);
        let arrived: Vec<_> = arrived.map(|it| it.1).collect();
        self.remembered.extend(&arrived);
        self.serves.handle_hung_up(peer, arrived.into_iter(), &mut Vec::new());
        self.serves.handle_gone(peer, std::iter::empty());
        if let Some(held) = self.held.get_mut(&peer) {
            held.retain(|(_, is_one_way)| *is_one_way);
            if held.is_empty() {
                self.held.remove(&peer);
            }
        }
    }

    fn check(&self) {
        let counted = self.arrived.len() + self.remembered.len() + self.running.len();
        assert_eq!(self.serves.in_service(), counted);
        assert!(self.arrived.len() + self.running.len() <= MAX);
        assert_eq!(self.serves.has_held(), !self.held.is_empty());
    }
}

proptest! {
    #[test]
    fn each_request_ends_once_nobody_has_more_than_a_share_and_nothing_is_left(
        events in prop::collection::vec(any_event(), 0..150),
    ) {
        let mut world = World::new();
        for event in &events {
            world.run(event);
            world.check();
        }
        (0..ORIGINS).for_each(|origin| world.run(&Event::Takes { origin, takes: true }));
        for _ in &events {
            world.run(&Event::Round);
            world.run(&Event::EndLater { at: 0 });
        }
        // The next request of each says that those before it have come, or never will.
        for origin in 0..ORIGINS {
            world.run(&Event::Arrive { origin, is_one_way: false });
            world.run(&Event::End { at: 0 });
        }
        world.run(&Event::Round);
        world.check();
        prop_assert!(world.serves.early_cancels.is_empty());
        prop_assert!(world.running.is_empty() && world.held.is_empty(), "all has its turn");
        let Serves { running, shares, turns, full, shut, hung_up, repeating, .. } = &world.serves;
        prop_assert!(running.is_empty() && shares.total() == 0 && turns.is_empty());
        prop_assert!(full.is_empty() && shut.is_empty());
        prop_assert!(hung_up.is_empty() && repeating.is_empty());
        prop_assert_eq!(world.serves.in_service(), 0);
    }
}
