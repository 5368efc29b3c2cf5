//! Contexts of one process on one queue pair: none of them costs the others a message, a wake-up or a connection.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hg_na::{
    Address, Completion, Context, Domain, Memory, Message, Op, OpenOptions, Peer, Plugin as _,
    Rights,
};
use hg_na_verbs::VerbsPlugin;
use watchdog::in_time;

use crate::imitation::{LIBRARY, break_pair, counts, left, set_port, silent};

/// The cards of the neighbours and of their peer, in tests that run one after the other: [`alone`].
const CARD: usize = 7;
const NEAR: &str = "verbs://imitated7";
const FAR: &str = "verbs://imitated8";
/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(20);

fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

type Contexts = Vec<Box<dyn Context>>;

fn open(url: &str, contexts: u8) -> (Arc<dyn Domain>, Contexts) {
    let options = OpenOptions::listening();
    let domain = VerbsPlugin::over(&LIBRARY).open(&Address::new(url).unwrap(), &options).unwrap();
    let contexts = (0..contexts).map(|id| domain.context(id).unwrap()).collect();
    (domain, contexts)
}

fn step(context: &mut dyn Context) -> Vec<Completion> {
    let mut done = Vec::new();
    context.progress(Instant::now(), &mut done).unwrap();
    done
}

/// Until nothing moves between them.
fn settle(contexts: &mut [&mut dyn Context]) {
    let start = Instant::now();
    let mut quiet = 0;
    while quiet < 100 {
        in_time!(start, "it never ends");
        let mut moved = false;
        for context in &mut *contexts {
            moved |= context.progress(Instant::now(), &mut Vec::new()).unwrap();
        }
        quiet = if moved { 0 } else { quiet + 1 };
    }
}

fn send(context: &mut dyn Context, to: Peer) {
    context.post(0, Op::SendUnexpected { to, message: Message::copied(b"hello") }).unwrap();
}

fn arrived(done: &[Completion]) -> usize {
    done.iter().filter(|it| matches!(it, Completion::Unexpected { .. })).count()
}

/// One message, and its arrival.
fn greet(from: &mut dyn Context, to: Peer, there: &mut dyn Context) {
    send(from, to);
    let (start, mut heard) = (Instant::now(), 0);
    while heard == 0 {
        in_time!(start, "it never arrives");
        step(from);
        heard = arrived(&step(there));
    }
}

fn connect(from: &mut dyn Context, to: &mut dyn Context) -> Peer {
    let peer = from.lookup(to.address()).unwrap();
    greet(from, peer, to);
    peer
}

/// Two neighbours, and how each reaches a third one.
struct Scene {
    domains: [Arc<dyn Domain>; 2],
    near: Contexts,
    far: Box<dyn Context>,
    there: [Peer; 2],
}

fn scene() -> Scene {
    let ((domain, mut near), (other, mut far)) = (open(NEAR, 2), open(FAR, 1));
    let mut far = far.remove(0);
    let there = [connect(&mut *near[0], &mut *far), connect(&mut *near[1], &mut *far)];
    Scene { domains: [domain, other], near, far, there }
}

#[test]
fn one_who_sleeps_is_woken_although_a_neighbour_has_taken_the_cards_signal() {
    let _alone = alone();
    let ((_domain, mut near), (_other, mut far)) = (open(NEAR, 3), open(FAR, 1));
    let far = &mut *far[0];
    let back: Vec<Peer> = near.iter_mut().map(|it| connect(far, &mut **it)).collect();
    let [sleeper, neighbour, third] = &mut near[..] else { panic!("three of them") };
    let (sleeper, neighbour) = (&mut **sleeper, &mut **neighbour);
    settle(&mut [&mut *sleeper, &mut *neighbour, &mut **third, &mut *far]);
    let start = Instant::now();
    while !sleeper.may_sleep() {
        in_time!(start, "it never sleeps");
        step(sleeper);
    }
    // More than are taken at once, and the last one is the sleeper's.
    (0..40).for_each(|_| [back[1], back[2]].iter().for_each(|it| send(far, *it)));
    send(far, back[0]);
    // The neighbour thinks of sleeping, finds something, and has enough of it.
    assert!(!neighbour.may_sleep());
    step(neighbour);
    let start = Instant::now();
    sleeper.waiter().wait(Some(PATIENCE)).unwrap();
    assert!(start.elapsed() < PATIENCE, "slept through a message");
    let mut heard = 0;
    while heard == 0 {
        in_time!(start, "it has not come");
        heard = arrived(&step(sleeper));
    }
}

#[test]
fn what_is_left_of_an_old_connection_does_not_end_the_next_one() {
    let _alone = alone();
    let Scene { mut near, mut far, there, domains: _domains } = scene();
    settle(&mut [&mut *far]);
    assert!(break_pair(CARD));
    // The neighbour finds the pair in error, and leaves word of it for the one who does not look.
    let _refused =
        near[1].post(0, Op::SendUnexpected { to: there[1], message: Message::copied(b"late") });
    (0..4).for_each(|_| drop(step(&mut *near[1])));
    near[0].forget(there[0]);
    let again = near[0].lookup(far.address()).unwrap();
    greet(&mut *near[0], again, &mut *far);
    let told = (0..100).flat_map(|_| step(&mut *near[0])).collect::<Vec<_>>();
    let is_lost = |it: &Completion| matches!(it, Completion::Gone { peer, .. } if *peer == again);
    assert!(!told.iter().any(is_lost), "{told:?}");
    greet(&mut *near[0], again, &mut *far);
}

/// Long enough to be written by the far card.
const LEN: usize = 1 << 20;

/// A neighbour that waits for a get ends, as it is told to, before the far end serves it; the other one goes on.
fn ends_with_a_get_under_way(end: impl FnOnce(&mut Contexts, Peer)) {
    let _alone = alone();
    let Scene { mut near, mut far, there, domains } = scene();
    settle(&mut [&mut *far]);
    let source = domains[1].register(Memory::from(vec![1; LEN]), Rights::all()).unwrap();
    let sink = domains[0].register(Memory::from(vec![0; LEN]), Rights::empty()).unwrap();
    let len = LEN as u64;
    let remote = source.descriptor().slice(0, len).unwrap();
    let local = sink.slice(0, len).unwrap();
    near[0].post(1, Op::Get { from: there[0], local, remote }).unwrap();
    step(&mut *near[0]);
    end(&mut near, there[0]);
    let neighbour = near.last_mut().unwrap();
    let (start, mut heard) = (Instant::now(), 0);
    send(&mut **neighbour, there[1]);
    while heard == 0 {
        in_time!(start, "it never arrives");
        heard = arrived(&step(&mut *far));
        let told = step(&mut **neighbour);
        assert!(!told.iter().any(|it| matches!(it, Completion::Gone { .. })), "{told:?}");
    }
    greet(&mut **neighbour, there[1], &mut *far);
    // What the far end has written since went elsewhere.
    let mut bytes = vec![9; LEN];
    sink.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|it| *it == 0), "its memory is written after its end");
    drop((near, far, source, sink, domains));
    assert_eq!(left(CARD), (0, 0));
}

#[test]
fn one_who_forgets_a_peer_with_a_get_under_way_costs_no_neighbour_the_pair() {
    ends_with_a_get_under_way(|near, peer| near[0].forget(peer));
}

#[test]
fn one_who_closes_with_a_get_under_way_costs_no_neighbour_the_pair() {
    ends_with_a_get_under_way(|near, _| drop(near.remove(0)));
}

/// A scene in which nothing moves, and its two neighbours.
fn quiet() -> (Scene, [Box<dyn Context>; 2]) {
    let mut scene = scene();
    let [mut one, mut neighbour] = <[_; 2]>::try_from(std::mem::take(&mut scene.near)).unwrap();
    settle(&mut [&mut *one, &mut *neighbour, &mut *scene.far]);
    (scene, [one, neighbour])
}

#[test]
fn what_one_leaves_silent_who_does_nothing_more_is_asked_for_by_a_neighbour() {
    let _alone = alone();
    let (scene, [mut one, mut neighbour]) = quiet();
    send(&mut *one, scene.there[0]);
    assert_eq!(silent(CARD), 1);
    let (start, mut now) = (Instant::now(), Instant::now());
    while silent(CARD) > 0 {
        in_time!(start, "it stays silent");
        now = neighbour.next_deadline().unwrap_or(now).max(now);
        neighbour.progress(now, &mut Vec::new()).unwrap();
    }
}

#[test]
fn what_one_that_closes_leaves_silent_is_asked_for_though_its_neighbour_sleeps() {
    let _alone = alone();
    let (scene, [mut one, _neighbour]) = quiet();
    send(&mut *one, scene.there[0]);
    one.forget(scene.there[0]);
    drop(one);
    assert_eq!(silent(CARD), 0);
}

#[test]
fn one_that_closes_while_the_port_is_down_leaves_it_to_a_neighbour_to_ask() {
    let _alone = alone();
    let (scene, [mut one, mut neighbour]) = quiet();
    send(&mut *one, scene.there[0]);
    one.forget(scene.there[0]);
    set_port(CARD, false);
    let before = counts(CARD);
    drop(one);
    assert_eq!((counts(CARD), silent(CARD)), (before, 1));
    set_port(CARD, true);
    let (start, mut now) = (Instant::now(), Instant::now());
    while silent(CARD) > 0 {
        in_time!(start, "it stays silent");
        now = neighbour.next_deadline().unwrap_or(now).max(now);
        neighbour.progress(now, &mut Vec::new()).unwrap();
    }
}
