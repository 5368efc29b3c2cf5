//! Hang-ups, admission and answers of peers that move from one way to the other: the user hears of one peer.

use std::time::Instant;

use hg_na::{Address, Completion, Context, Error, Message, Op, OpId, Peer, Rejected, Token};
use hg_na_conformance::layer::{Layer, Layered, Layers};
use hg_na_route::Route;
use hg_na_sm::{SmPlugin, node_id};

use crate::{
    common::Net,
    end::{End, arrived, ended, gone, greet, until},
    full_target, route,
};

/// Says the last word about a peer some rounds after its hang-up.
#[derive(Debug, Default)]
struct SlowToBury(Vec<(u32, Completion)>);

#[derive(Debug)]
struct SlowToBuryLayers;

impl Layers for SlowToBuryLayers {
    fn layer(&self, _: &Address) -> Box<dyn Layer> {
        Box::new(SlowToBury::default())
    }
}

impl Layer for SlowToBury {
    fn progress(
        &mut self,
        inner: &mut dyn Context,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<bool, Error> {
        let mut fresh = Vec::new();
        let mut moved = inner.progress(now, &mut fresh)?;
        for completion in fresh {
            if matches!(completion, Completion::Gone { .. }) {
                self.0.push((3, completion));
            } else {
                done.push(completion);
            }
        }
        for (rounds, completion) in std::mem::take(&mut self.0) {
            moved = true;
            match rounds {
                0 => done.push(completion),
                _ => self.0.push((rounds - 1, completion)),
            }
        }
        Ok(moved)
    }
}

fn hung_up(completion: &Completion) -> Option<Peer> {
    match completion {
        Completion::HungUp { peer, .. } => Some(*peer),
        _ => None,
    }
}

fn rounds(ends: &mut [&mut End]) {
    for _ in 0..2000 {
        ends.iter_mut().for_each(|end| end.round());
    }
}

#[test]
fn who_took_the_network_hangs_up_once_by_each_name_and_then_is_gone() {
    let (mut target, _first) = full_target();
    let local = Layered::new(SmPlugin, SlowToBuryLayers);
    let slow = Route::new(local, Net, node_id, &["uid", "net", "sm+net"]);
    let mut second = End::open(&slow, "net://", &[]);
    let part = second.context.lookup(&target.context.address().part("net").unwrap()).unwrap();
    greet(&mut second, &mut target, part);
    let moved = second.lookup(&target);
    greet(&mut second, &mut target, moved);
    assert_eq!(second.context.way(moved), "net");
    rounds(&mut [&mut second, &mut target]);
    assert!(second.take(hung_up).is_none() && second.take(gone).is_none(), "it has only moved");
    second.post(7, Op::RecvExpected { from: moved, tag: 7 });
    drop(target);
    let mut idle = End::open(&route(), "net://", &[]);
    assert!(!until(&mut second, &mut idle, ended(7)).0);
    rounds(&mut [&mut second]);
    for peer in [part, moved] {
        let of =
            |it: &Completion| hung_up(it) == Some(peer) || gone(it).is_some_and(|it| it.0 == peer);
        let told: Vec<_> = second.seen.iter().filter(|it| of(it)).collect();
        let right = matches!(told[..],
            [Completion::HungUp { reason, .. }, Completion::Gone { reason: last, .. }] if reason == last);
        assert!(right, "{told:?}");
    }
    let ends = second.seen.iter().filter(|it| hung_up(it).is_some() || gone(it).is_some());
    assert_eq!(ends.count(), 4, "{:?}", second.seen);
}

#[test]
fn who_is_not_admitted_on_trial_is_not_admitted_by_the_network_either() {
    let (mut target, _first) = full_target();
    let mut second = End::open(&route(), "net://", &[]);
    let peer = second.lookup(&target);
    second.context.set_admission_of(peer, false);
    let back = greet(&mut second, &mut target, peer);
    assert_eq!(second.context.way(peer), "net");
    target.send(1, back, b"withheld");
    target.post(2, Op::SendControl { to: back, message: Message::copied(b"passes") });
    let control = |it: &Completion| matches!(it, Completion::Control { .. }).then_some(());
    until(&mut second, &mut target, control);
    rounds(&mut [&mut second, &mut target]);
    drop(target);
    let mut idle = End::open(&route(), "net://", &[]);
    assert_eq!(until(&mut second, &mut idle, hung_up), peer);
    let refused = second.context.post(3, Op::RecvExpected { from: peer, tag: 1 });
    assert!(matches!(refused.unwrap_err().error, Error::PeerGone(_)));
    rounds(&mut [&mut second]);
    assert!(second.take(arrived).is_none() && second.take(gone).is_none());
    second.context.set_admission_of(peer, true);
    assert_eq!(until(&mut second, &mut idle, arrived), (peer, b"withheld".to_vec()));
    assert_eq!(until(&mut second, &mut idle, gone).0, peer);
}

/// Takes one unexpected message in so many rounds.
#[derive(Debug, Default)]
struct Narrow {
    /// Rounds until it takes another one.
    rounds: u32,
    /// Who was refused meanwhile.
    refused: Option<Peer>,
}

const ROUNDS_PER_MESSAGE: u32 = 2000;

#[derive(Debug)]
struct NarrowLayers;

impl Layers for NarrowLayers {
    fn layer(&self, _: &Address) -> Box<dyn Layer> {
        Box::new(Narrow::default())
    }
}

impl Layer for Narrow {
    fn post(&mut self, inner: &mut dyn Context, token: Token, op: Op) -> Result<OpId, Rejected> {
        if let Op::SendUnexpected { .. } = op {
            if self.rounds > 0 {
                self.refused = Some(op.peer());
                return Err(Rejected { op, error: Error::Again });
            }
            self.rounds = ROUNDS_PER_MESSAGE;
        }
        inner.post(token, op)
    }

    fn progress(
        &mut self,
        inner: &mut dyn Context,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<bool, Error> {
        self.rounds = self.rounds.saturating_sub(1);
        let refused = if self.rounds == 0 { self.refused.take() } else { None };
        done.extend(refused.map(|peer| Completion::Room { peer }));
        Ok(inner.progress(now, done)? || refused.is_some())
    }

    fn may_sleep(&mut self, inner: &mut dyn Context) -> bool {
        self.rounds == 0 && inner.may_sleep()
    }
}

#[test]
fn answers_find_their_receives_although_requests_wait_for_the_network() {
    let (mut target, _first) = full_target();
    let narrow = Layered::new(Net, NarrowLayers);
    let route = Route::new(SmPlugin, narrow, node_id, &["uid", "net", "sm+net"]);
    let mut second = End::open(&route, "net://", &[]);
    let peer = second.lookup(&target);
    let receive = |second: &mut End, tag: u64| {
        second.post(tag, Op::RecvExpected { from: peer, tag });
    };
    // Posted without a round in between, so that each is there with its request.
    (0..4).for_each(|tag| second.send(100 + u64::from(tag), peer, &[tag]));
    (0..4).for_each(|tag| receive(&mut second, tag));
    for answered in 0..8 {
        let (from, bytes) = until(&mut target, &mut second, arrived);
        let tag = u64::from(bytes[0]);
        assert_eq!(tag, answered);
        target.post(50, Op::SendExpected { to: from, tag, message: Message::copied(&bytes) });
        if answered == 0 {
            assert_eq!(second.context.way(peer), "net");
            // Behind those that wait.
            (4..8).for_each(|tag| receive(&mut second, tag));
            for tag in 4..8 {
                let message = Message::copied(&[tag]);
                let mut op = Op::SendUnexpected { to: peer, message };
                while let Err(rejected) = second.context.post(100 + u64::from(tag), op) {
                    op = rejected.op;
                    second.round();
                }
            }
        }
        let (ok, answer) = until(&mut second, &mut target, ended(answered));
        assert!(ok && answer.unwrap() == bytes);
    }
}
