//! What waits, against a transport that has room now and then.

use std::collections::{HashMap, VecDeque};

use hg_na::Message;
use proptest::prelude::*;

use super::*;
use crate::test_context::Scripted;

#[test]
fn of_any_number_of_calls_a_half_may_wait_for_one_peer_and_one_more_for_another() {
    const BYTES: u64 = 1 << 30;
    for calls in [1, 2, 3, 4, 5, 100, 65_536_usize] {
        let (least, mut shares) = (least(BYTES, calls), Shares::new(BYTES));
        let mut waiting = 0;
        while shares.admits(1, least) {
            shares.take(1, least);
            waiting += 1;
        }

        let half = calls.div_ceil(2);
        assert!(waiting >= half && waiting - half <= half / 1000, "{waiting} of {calls}");
        assert_eq!(shares.admits(2, least), calls > 1, "{calls}");
    }
}

const BYTES_MAX: u64 = 40_000;
const PEERS: u32 = 3;

#[derive(Debug, Clone)]
enum Event {
    Post {
        peer: u32,
        is_request: bool,
        len: usize,
    },
    Room {
        peer: u32,
        room: usize,
    },
    /// The call settles whose request waits at this place.
    Settle {
        peer: u32,
        at: usize,
    },
    HangUp {
        peer: u32,
    },
}

fn any_event() -> impl Strategy<Value = Event> {
    let peer = 0..PEERS;
    prop_oneof![
        8 => (peer.clone(), any::<bool>(), 0_usize..12_000)
            .prop_map(|(peer, is_request, len)| Event::Post { peer, is_request, len }),
        3 => (peer.clone(), 0_usize..4).prop_map(|(peer, room)| Event::Room { peer, room }),
        1 => (peer.clone(), 0_usize..4).prop_map(|(peer, at)| Event::Settle { peer, at }),
        1 => peer.prop_map(|peer| Event::HangUp { peer }),
    ]
}

/// Token, number, bytes.
type Waiting = VecDeque<(Token, u64, usize)>;

#[derive(Default)]
struct World {
    /// What is to wait, by peer and kind.
    waiting: HashMap<(Peer, bool), Waiting>,
    /// Of all that was posted, what has become of it: the transport has it, it was refused, or dropped.
    ended: HashMap<Token, u32>,
    posted: Token,
}

impl World {
    fn end(&mut self, token: Token) {
        *self.ended.entry(token).or_default() += 1;
    }

    fn post(
        &mut self,
        backlog: &mut Backlog,
        context: &mut Scripted,
        (to, is_request): (Peer, bool),
        len: usize,
    ) {
        let (token, message) = (self.posted, Message::from(vec![0; len]));
        self.posted += 1;
        let op = if is_request {
            Op::SendUnexpected { to, message }
        } else {
            Op::SendExpected { to, tag: 0, message }
        };
        let room = context.room.get(&to).copied().unwrap_or(0);
        let waiting = self.waiting.entry((to, is_request)).or_default();
        match backlog.post(context, token, op) {
            Posted::Accepted(_) => {
                assert!(waiting.is_empty() && room > 0, "nothing overtakes what waits");
                self.end(token);
            }
            Posted::Waits(number) => {
                assert!(room == 0 || !waiting.is_empty(), "nobody waits without need");
                waiting.push_back((token, number, len));
            }
            Posted::Refused(..) => {
                let is_short = len as u64 <= SHORT_ANSWER;
                assert!(is_request || !is_short, "a short answer is never refused");
                assert!(
                    !waiting.is_empty() || len as u64 > BYTES_MAX / 8,
                    "whom nothing of this kind waits for finds room beside others"
                );
                self.end(token);
            }
        }
    }

    fn hand_on(&mut self, backlog: &mut Backlog, context: &mut Scripted, which: (Peer, bool)) {
        let calls = Operations::new(1);
        while backlog.hand_on(context, which, some_instant(), &calls).is_some() {
            let first = self.waiting.get_mut(&which).and_then(VecDeque::pop_front);
            let (_, token, _) = context.taken.last().expect("the transport has it");
            assert_eq!(first.map(|it| it.0), Some(*token), "in order");
            self.end(first.expect("it has waited").0);
        }
    }

    fn run(&mut self, backlog: &mut Backlog, context: &mut Scripted, event: Event) {
        let of = |peer| Peer::new(peer, 1);
        match event {
            Event::Post { peer, is_request, len } => {
                self.post(backlog, context, (of(peer), is_request), len)
            }
            Event::Room { peer, room } => {
                context.room.insert(of(peer), room);
                for is_request in [false, true] {
                    self.hand_on(backlog, context, (of(peer), is_request));
                }
            }
            Event::Settle { peer, at } => {
                let waiting = self.waiting.entry((of(peer), true)).or_default();
                if let Some((token, number, _)) = waiting.remove(at) {
                    backlog.drop_request(of(peer), number);
                    backlog.drop_request(of(peer), number);
                    self.end(token);
                }
            }
            Event::HangUp { peer } => {
                let removed: Vec<_> = backlog.remove(of(peer)).map(|(token, _)| token).collect();
                let kinds = [false, true].map(|it| self.waiting.remove(&(of(peer), it)));
                let waited = kinds.into_iter().flatten().flatten().map(|it| it.0);
                assert!(waited.eq(removed.iter().copied()), "all of this peer's, answers first");
                removed.into_iter().for_each(|token| self.end(token));
            }
        }
    }

    fn check(&self, backlog: &Backlog) {
        let cost = |is_request: bool| -> u64 {
            let waiting = self.waiting.iter().filter(|((_, of), _)| *of == is_request);
            let least = if is_request { backlog.requests.least } else { 0 };
            waiting.flat_map(|(_, it)| it).map(|(.., len)| (*len as u64).max(least)).sum()
        };
        assert_eq!(backlog.bytes(), cost(true) + cost(false));
        let is_short = |len: &usize| *len as u64 <= SHORT_ANSWER;
        let short = self.waiting.iter().filter(|((_, is_request), _)| !is_request);
        let short = short.flat_map(|(_, it)| it).map(|it| it.2).filter(is_short).sum::<usize>();
        assert!(
            cost(true) <= BYTES_MAX && cost(false) - short as u64 <= BYTES_MAX,
            "bounded in bytes"
        );
        let any = self.waiting.values().any(|it| !it.is_empty());
        assert_eq!(backlog.is_empty(), !any);
    }
}

#[expect(clippy::disallowed_methods, reason = "any instant will do")]
fn some_instant() -> Instant {
    Instant::now()
}

proptest! {
    #[test]
    fn whatever_waits_ends_once_in_order_and_within_its_bytes(
        events in prop::collection::vec(any_event(), 0..120),
    ) {
        let (mut backlog, mut context) = (Backlog::new(BYTES_MAX, 64), Scripted::new());
        let mut world = World::default();
        for event in events {
            world.run(&mut backlog, &mut context, event);
            world.check(&backlog);
        }
        for peer in 0..PEERS {
            world.run(&mut backlog, &mut context, Event::Room { peer, room: usize::MAX });
        }
        world.check(&backlog);
        prop_assert!(backlog.is_empty() && backlog.bytes() == 0, "back to zero");
        let all_once = (0..world.posted).all(|token| world.ended.get(&token) == Some(&1));
        prop_assert!(all_once, "each exactly once: {:?}", world.ended);
    }
}
