//! Transfers in every order of events, over a transport that has room now and then.

use std::collections::BTreeMap;

use super::*;
use crate::test_context::Scripted;

const PEERS: u32 = 3;
const LEN: u64 = 100;

#[derive(Debug, Clone)]
enum Event {
    Begin {
        peer: u32,
        pieces: u64,
    },
    Room {
        peer: u32,
        room: usize,
    },
    /// What the transport has taken ends, well or not.
    End {
        at: usize,
        is_ok: bool,
    },
    /// The next piece that this side moves, and what becomes of the one that it has.
    Next,
    Move {
        at: usize,
        came: Came,
    },
    Cancel {
        at: usize,
    },
    Abandon {
        at: usize,
    },
    /// It is to end now.
    Expire {
        at: usize,
    },
    HangUp {
        peer: u32,
    },
}

fn any_event() -> impl Strategy<Value = Event> {
    let (peer, at) = (0..PEERS, 0_usize..8);
    let came = prop_oneof![Just(Came::Over), Just(Came::Later), Just(Came::Not)];
    prop_oneof![
        4 => (peer.clone(), 1_u64..12).prop_map(|(peer, pieces)| Event::Begin { peer, pieces }),
        4 => (peer.clone(), 0_usize..6).prop_map(|(peer, room)| Event::Room { peer, room }),
        6 => (at.clone(), prop::bool::weighted(0.9)).prop_map(|(at, is_ok)| Event::End { at, is_ok }),
        4 => Just(Event::Next),
        4 => (at.clone(), came).prop_map(|(at, came)| Event::Move { at, came }),
        1 => at.clone().prop_map(|at| Event::Cancel { at }),
        1 => at.clone().prop_map(|at| Event::Abandon { at }),
        1 => at.prop_map(|at| Event::Expire { at }),
        1 => peer.prop_map(|peer| Event::HangUp { peer }),
    ]
}

struct World {
    calls: Operations,
    context: Scripted,
    memory: Arc<dyn Domain>,
    now: Instant,
    moving: Vec<Move>,
    /// Those that were begun and not abandoned, with whom, whether anybody has stopped them or any of their pieces, and whether they
    /// have ended.
    begun: BTreeMap<OperationId, (Peer, bool, bool)>,
}

fn of(peer: u32) -> Peer {
    Peer::new(peer, 1)
}

impl World {
    fn new(moves: bool) -> Self {
        let address = Address::new("mem://").unwrap();
        let memory = Mem::default().open(&address, &OpenOptions::default()).unwrap();
        let mut context = Scripted::new();
        context.moves = moves;
        let (calls, now) = (Operations::new(8), some_instant());
        Self { calls, context, memory, now, moving: Vec::new(), begun: BTreeMap::new() }
    }

    fn begin(&mut self, peer: u32, pieces: u64) {
        let register =
            || Local::register(self.memory.as_ref(), 0, vec![1; 100].into(), Rights::all());
        let [near, far] = [(); 2].map(|()| Arc::new(register().unwrap()));
        let far = far.descriptor("mem").range(..).unwrap();
        let limits = Limits { piece: LEN.div_ceil(pieces), in_flight: 2 };
        let plan = Plan::new(Near::Pull(near.all()), far, limits);
        let id = self.calls.begin_transfer(of(peer), plan, &mut self.context);
        self.begun.insert(id, (of(peer), false, false));
    }

    fn nth(&self, at: usize) -> Option<OperationId> {
        self.begun.keys().nth(at).copied()
    }

    fn stop(&mut self, id: OperationId) {
        if let Some((_, is_stopped, _)) = self.begun.get_mut(&id) {
            *is_stopped = true;
        }
    }

    fn end_op(&mut self, at: usize, is_ok: bool) {
        if at >= self.context.taken.len() {
            return;
        }
        let (op, token, _) = self.context.taken.remove(at);
        let Owner::Transfer(id) = Owner::of(token) else { unreachable!("a transfer's") };
        if !is_ok {
            self.stop(id);
        }
        let result = if is_ok { Ok(()) } else { Err(TransferError::Cancelled) };
        self.calls.handle_piece_done((id, op), result, Returned::Nothing, &mut self.context);
    }

    fn run(&mut self, event: &Event) {
        match *event {
            Event::Begin { peer, pieces } => self.begin(peer, pieces),
            Event::Room { peer, room } => {
                self.context.room.insert(of(peer), room);
                self.calls.hand_on_transfers(of(peer), &mut self.context);
            }
            Event::End { at, is_ok } => self.end_op(at, is_ok),
            Event::Next => {
                let next = self.calls.next_move(&mut self.context);
                let is_second = next.as_ref().is_some_and(|next| {
                    self.moving.iter().any(|it| it.op.peer() == next.op.peer())
                });
                assert!(!is_second, "of one peer one piece at a time");
                self.moving.extend(next);
            }
            Event::Move { at, came } if at < self.moving.len() => {
                let moving = self.moving.remove(at);
                let peer = moving.op.peer();
                self.calls.handle_moved(moving, came, Some(&mut self.context));
                if came == Came::Later {
                    self.run(&Event::Room { peer: peer.index(), room: 1 }); // It is told.
                }
            }
            Event::Cancel { at } => {
                if let Some(id) = self.nth(at) {
                    self.stop(id);
                    self.calls.cancel(id, self.now);
                }
            }
            Event::Abandon { at } => {
                if let Some(id) = self.nth(at) {
                    self.begun.remove(&id);
                    assert!(self.calls.abandon(id, self.now).is_none());
                }
            }
            Event::Expire { at } => {
                if let Some(id) = self.nth(at) {
                    self.stop(id);
                    self.now += Duration::from_millis(2); // Those that were stopped before are told.
                    self.calls.set_deadline(id, self.now);
                    self.calls.handle_timeout(self.now, |_| true);
                }
            }
            Event::HangUp { peer } => {
                let ids: Vec<_> =
                    self.begun.iter().filter(|(_, it)| it.0 == of(peer)).map(|it| *it.0).collect();
                ids.into_iter().for_each(|id| self.stop(id));
                self.calls.stop_transfers_of(of(peer), &TransferError::Cancelled, self.now);
            }
            Event::Move { .. } => {}
        }
        self.take();
    }

    /// Takes what has ended.
    fn take(&mut self) {
        drop(drain(&mut self.calls));
        for (id, (_, is_stopped, has_ended)) in &mut self.begun {
            if let Some(outcome) = self.calls.take(*id) {
                let Outcome::Moved(moved) = outcome else { unreachable!("a transfer's") };
                assert!(moved.result.is_ok() || *is_stopped, "nobody has stopped it");
                *has_ended = true;
            }
        }
    }

    /// All that is under way ends well.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            if self.calls.is_empty() {
                return self.run(&Event::Next); // Forgets those that have ended.
            }
            (0..PEERS).for_each(|peer| self.run(&Event::Room { peer, room: 100 }));
            self.run(&Event::Next);
            self.run(&Event::Move { at: 0, came: Came::Over });
            self.run(&Event::End { at: 0, is_ok: true });
        }
    }
}

proptest! {
    #[test]
    fn each_transfer_ends_only_those_that_were_stopped_fail_and_nothing_is_left(
        moves in any::<bool>(),
        events in prop::collection::vec(any_event(), 0..100),
    ) {
        let mut world = World::new(moves);
        events.iter().for_each(|event| world.run(event));
        world.finish();
        let World { calls, begun, .. } = &world;
        prop_assert!(begun.values().all(|(.., has_ended)| *has_ended), "{begun:?}");
        prop_assert!(calls.is_empty() && calls.others == 0 && calls.settled == 0, "{calls:?}");
        prop_assert!(calls.moving.is_empty() && !calls.has_moves() && !calls.timers.any());
    }
}
