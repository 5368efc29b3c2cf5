//! Several ports of one engine, and what cards say of themselves: ports that go down and come back, cards that are removed, queues that are lost.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    net::TcpListener,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    time::{Duration, Instant},
};

use hg_na::{
    Address, Completion, Context, Domain, Error, GoneReason, Memory, Message, Op, OpenOptions,
    Peer, Plugin as _, Rights,
};
use hg_na_verbs::VerbsPlugin;
use rdma_core_sys as sys;
use watchdog::{Watchdog, in_time};

use crate::imitation::{
    LIBRARY, counts, fail_polls, left, lose_queues, on_port_down, remove, set_port, silent,
    tell_of_pair,
};

/// The cards of these tests, which use them one after the other: [`alone`].
const CARDS: [usize; 2] = [3, 4];
const BOTH: &str = "imitated3,imitated4";

/// Leaves both ports up behind it.
struct Alone(#[expect(dead_code, reason = "kept")] MutexGuard<'static, ()>);

fn alone() -> Alone {
    static ONE: Mutex<()> = Mutex::new(());
    Alone(ONE.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Drop for Alone {
    fn drop(&mut self) {
        CARDS.iter().for_each(|card| set_port(*card, true));
    }
}

type Opened = (Arc<dyn Domain>, Box<dyn Context>);

fn open_with(settings: &[(&str, &str)]) -> Opened {
    let options = settings
        .iter()
        .fold(OpenOptions::listening(), |options, (name, value)| options.with(name, value));
    let url = Address::new("verbs://").unwrap();
    let domain = VerbsPlugin::over(&LIBRARY).open(&url, &options).unwrap();
    let context = domain.context(0).unwrap();
    (domain, context)
}

fn open(devices: &str) -> Opened {
    open_with(&[("device", devices)])
}

fn step(context: &mut dyn Context, done: &mut Vec<Completion>) {
    context.progress(Instant::now(), done).unwrap();
}

fn post(context: &mut dyn Context, to: Peer) {
    context.post(1, Op::SendUnexpected { to, message: Message::copied(&[7; 8]) }).unwrap();
}

/// Progresses both until something holds of what each was told.
fn until(
    (one, other): (&mut Opened, &mut Opened),
    mut holds: impl FnMut(&[Completion], &[Completion]) -> bool,
) {
    let (start, mut near, mut far) = (Instant::now(), Vec::new(), Vec::new());
    while !holds(&near, &far) {
        in_time!(start, "{near:?} {far:?}");
        step(&mut *one.1, &mut near);
        step(&mut *other.1, &mut far);
    }
}

fn has_arrived(done: &[Completion]) -> bool {
    done.iter().any(|it| matches!(it, Completion::Unexpected { .. }))
}

/// `from` sends one message to `to`, which gets it.
fn connect(from: &mut Opened, to: &mut Opened) -> Peer {
    let peer = from.1.lookup(to.1.address()).unwrap();
    send(from, to, peer);
    peer
}

fn send(from: &mut Opened, to: &mut Opened, peer: Peer) {
    post(&mut *from.1, peer);
    until((from, to), |_, far| has_arrived(far));
}

/// Queue pairs of each card.
fn pairs() -> [usize; 2] {
    CARDS.map(|card| left(card).0)
}

fn gone(done: &[Completion], of: Peer) -> Option<&GoneReason> {
    done.iter().find_map(|it| match it {
        Completion::Gone { peer, reason } if *peer == of => Some(reason),
        _ => None,
    })
}

/// Progresses both until a peer is gone for the first one; why.
fn awaits_end(near: &mut Opened, far: &mut Opened, peer: Peer) -> String {
    let mut why = String::new();
    until((near, far), |near, _| match gone(near, peer) {
        Some(reason) => {
            why = reason.to_string();
            true
        }
        None => false,
    });
    why
}

/// A receive that ends with the peer.
fn await_message(near: &mut Opened, from: Peer) {
    near.1.post(9, Op::RecvExpected { from, tag: 1 }).unwrap();
}

#[test]
fn peers_are_spread_over_the_ports_that_are_named_and_bulk_data_goes_over_either() {
    let _alone = alone();
    let mut own = open(BOTH);
    assert!(own.1.address().as_str().contains("imitated3:1@127.0.0.4:"), "{}", own.1.address());
    assert!(own.1.address().as_str().contains(",imitated4:1@127.0.0.5:"), "{}", own.1.address());
    let mut others: Vec<_> = (0..4).map(|_| open(BOTH)).collect();
    for (place, other) in (0_u8..).zip(&mut others) {
        let peer = connect(&mut own, other);
        let far = other.0.register(Memory::from(vec![place; 100_000]), Rights::all()).unwrap();
        let near = own.0.register(Memory::from(vec![9; 100_000]), Rights::empty()).unwrap();
        let remote = far.descriptor().slice(0, 100_000).unwrap();
        let op = Op::Get { from: peer, local: near.slice(0, 100_000).unwrap(), remote };
        own.1.post(2, op).unwrap();
        let is_over = |it: &Completion| matches!(it, Completion::Done(done) if done.token == 2 && done.result.is_ok());
        until((&mut own, other), |near, _| near.iter().any(is_over));
    }
    // Both ends of each pair are on the same card.
    assert_eq!(pairs(), [4, 4]);
    // Who has one port reaches both of ours, and is reached.
    let mut single = open("imitated4");
    connect(&mut single, &mut own);
    connect(&mut own, &mut single);
    drop((own, others, single));
    assert_eq!(CARDS.map(left), [(0, 0); 2]);
}

#[test]
fn new_peers_are_met_over_ports_that_are_up_at_both_ends() {
    let _alone = alone();
    let (mut own, mut kept) = (open(BOTH), open(BOTH));
    let peer = connect(&mut own, &mut kept);
    assert_eq!(pairs(), [2, 0]);
    set_port(CARDS[1], false);
    let mut others: Vec<_> = (0..3).map(|_| open(BOTH)).collect();
    // The ports are up for all that those know: it is this side that refuses.
    others.iter_mut().for_each(|other| {
        connect(other, &mut own);
    });
    others.iter_mut().for_each(|other| {
        connect(&mut own, other);
    });
    assert_eq!(pairs()[1], 0);
    set_port(CARDS[1], true);
    send(&mut own, &mut kept, peer);
    let mut late: Vec<_> = (0..2).map(|_| open(BOTH)).collect();
    late.iter_mut().for_each(|other| {
        connect(&mut own, other);
    });
    assert_eq!(pairs()[1], 2, "it carries new peers again");
}

#[test]
fn a_place_of_an_address_that_nobody_answers_at_is_passed_over() {
    let _alone = alone();
    let (mut own, mut other) = (open("imitated3"), open("imitated3"));
    let place = other.1.address().rest().to_owned();
    let unused = TcpListener::bind("127.0.0.5:0").unwrap().local_addr().unwrap();
    let address = Address::new(&format!("verbs://imitated4:1@{unused},{place}")).unwrap();
    let peer = own.1.lookup(&address).unwrap();
    send(&mut own, &mut other, peer);
    let nobody =
        own.1.lookup(&Address::new(&format!("verbs://a:1@{unused},b:1@{unused}")).unwrap());
    let nobody = nobody.unwrap();
    post(&mut *own.1, nobody);
    awaits_end(&mut own, &mut other, nobody);
    send(&mut own, &mut other, peer);
}

#[test]
fn a_port_that_comes_back_loses_nothing_and_one_that_stays_down_ends_its_peers_alone() {
    let _alone = alone();
    let settings = [("device", BOTH), ("silence-bound-ms", "3000")];
    let (mut own, mut first, mut second) = (open_with(&settings), open(BOTH), open(BOTH));
    let (lost, kept) = (connect(&mut own, &mut first), connect(&mut own, &mut second));
    assert_eq!(pairs(), [2, 2]);
    set_port(CARDS[0], false);
    post(&mut *own.1, lost);
    await_message(&mut own, lost);
    // While it waits the other port carries on.
    send(&mut own, &mut second, kept);
    set_port(CARDS[0], true);
    until((&mut own, &mut first), |_, far| has_arrived(far));
    set_port(CARDS[0], false);
    post(&mut *own.1, lost);
    let why = awaits_end(&mut own, &mut first, lost);
    assert!(why.contains("the port is down"), "{why}");
    send(&mut own, &mut second, kept);
    set_port(CARDS[0], true);
    let again = own.1.lookup(first.1.address()).unwrap();
    send(&mut own, &mut first, again);
}

#[test]
fn an_idle_queue_asks_for_nothing_while_its_port_is_down_and_asks_once_that_is_up() {
    const MOMENT: Duration = Duration::from_millis(50);
    let _alone = alone();
    let (mut own, mut other) = (open("imitated3"), open("imitated4"));
    let peer = connect(&mut own, &mut other);
    // By a clock of its own: nothing here takes time.
    let mut now = Instant::now();
    let mut rounds = |own: &mut Opened, pass: Duration| {
        now += pass;
        for _ in 0..20 {
            own.1.progress(now, &mut Vec::new()).unwrap();
            other.1.progress(now, &mut Vec::new()).unwrap();
        }
        own.1.next_deadline()
    };
    rounds(&mut own, Duration::ZERO);
    post(&mut *own.1, peer);
    rounds(&mut own, Duration::ZERO);
    assert_eq!(silent(CARDS[0]), 1);
    set_port(CARDS[0], false);
    let before = counts(CARDS[0]);
    for _ in 0..20 {
        assert!(rounds(&mut own, MOMENT).is_some(), "who sleeps looks again");
    }
    assert_eq!((counts(CARDS[0]), silent(CARDS[0])), (before, 1));
    set_port(CARDS[0], true);
    for _ in 0..20 {
        rounds(&mut own, MOMENT);
    }
    let after = counts(CARDS[0]);
    assert_eq!((after.0 - before.0, after.1 - before.1, silent(CARDS[0])), (1, 1, 0));
    assert_eq!(rounds(&mut own, MOMENT), None);
}

#[test]
fn a_port_that_comes_back_while_one_context_hears_of_its_end_is_up_for_all() {
    let _alone = alone();
    let (mut own, mut kept) = (open(BOTH), open(BOTH));
    let mut neighbour = own.0.context(1).unwrap();
    let (say, said) = mpsc::channel();
    on_port_down(move || {
        set_port(CARDS[1], true);
        // It makes rounds, and may hear of that first.
        (0..1_000).for_each(|_| step(&mut *neighbour, &mut Vec::new()));
        say.send(neighbour).unwrap();
    });
    set_port(CARDS[1], false);
    let start = Instant::now();
    let _neighbour = loop {
        in_time!(start);
        step(&mut *own.1, &mut Vec::new());
        if let Ok(neighbour) = said.try_recv() {
            break neighbour;
        }
    };
    connect(&mut own, &mut kept);
    let mut late = open(BOTH);
    connect(&mut own, &mut late);
    assert_eq!(pairs(), [2, 2], "it carries new peers again");
}

#[test]
fn a_card_that_is_removed_ends_its_peers_with_a_name_and_the_other_card_goes_on() {
    let _alone = alone();
    let (mut own, mut first, mut second) = (open(BOTH), open("imitated3"), open("imitated4"));
    let (lost, kept) = (connect(&mut own, &mut first), connect(&mut own, &mut second));
    await_message(&mut own, lost);
    remove(CARDS[0]);
    let why = awaits_end(&mut own, &mut second, lost);
    assert!(why.contains("the card was removed"), "{why}");
    send(&mut own, &mut second, kept);
    // Whoever has nothing else is told so, and does not fail.
    let nobody = first.1.lookup(second.1.address()).unwrap();
    // It has heard of it by then.
    (0..1_000).for_each(|_| step(&mut *first.1, &mut Vec::new()));
    post(&mut *first.1, nobody);
    let why = awaits_end(&mut first, &mut second, nobody);
    assert!(why.contains("no card of this engine's is there"), "{why}");
    send(&mut own, &mut second, kept);
    drop((own, first));
    // Opened anew it is there.
    let mut anew = open(BOTH);
    connect(&mut anew, &mut second);
}

#[test]
fn events_of_a_queue_pair_end_its_peer_and_no_other() {
    let _alone = alone();
    let mut own = open(BOTH);
    for (kind, sentence) in [
        (sys::EVENT_QP_FATAL, "gave its queue pair up"),
        (sys::EVENT_QP_REQ_ERR, "what makes no sense"),
        (sys::EVENT_QP_ACCESS_ERR, "memory that it may not reach"),
        (sys::EVENT_QP_LAST_WQE_REACHED, "in error"),
    ] {
        let (mut first, mut second) = (open("imitated3"), open("imitated3"));
        let (lost, kept) = (connect(&mut own, &mut first), connect(&mut own, &mut second));
        await_message(&mut own, lost);
        assert!(tell_of_pair(CARDS[0], kind));
        let why = awaits_end(&mut own, &mut first, lost);
        assert!(why.contains(sentence), "{why}");
        send(&mut own, &mut second, kept);
        own.1.forget(kept);
        drop((first, second));
        let start = Instant::now();
        while pairs() != [0, 0] {
            in_time!(start, "{:?}", pairs());
            step(&mut *own.1, &mut Vec::new());
        }
    }
}

#[test]
fn a_lost_queue_ends_the_peers_of_its_port_alone() {
    let _alone = alone();
    for (lose, sentence) in [
        (lose_queues as fn(usize), "a completion queue is lost"),
        (fail_polls, "the queues of this process on the card are lost"),
    ] {
        let (mut own, mut first, mut second) = (open(BOTH), open("imitated3"), open("imitated4"));
        let (lost, kept) = (connect(&mut own, &mut first), connect(&mut own, &mut second));
        await_message(&mut own, lost);
        lose(CARDS[0]);
        let why = awaits_end(&mut own, &mut second, lost);
        assert!(why.contains(sentence), "{why}");
        send(&mut own, &mut second, kept);
    }
}

#[test]
fn a_sleeping_context_is_woken_by_what_its_card_says() {
    let _alone = alone();
    let (mut own, mut other) = (open("imitated3"), open("imitated3"));
    let peer = connect(&mut own, &mut other);
    await_message(&mut own, peer);
    let (waiter, start, _watchdog) = (own.1.waiter(), Instant::now(), Watchdog::start());
    while !own.1.may_sleep() {
        in_time!(start);
        step(&mut *own.1, &mut Vec::new());
    }
    remove(CARDS[0]);
    waiter.wait(None).unwrap();
    awaits_end(&mut own, &mut other, peer);
}

/// It sleeps, and nothing ends that.
fn sleeps(context: &mut dyn Context) {
    const NAP: Duration = Duration::from_millis(200);
    for _ in 0..100 {
        step(context, &mut Vec::new());
        if context.may_sleep() {
            let start = Instant::now();
            context.waiter().wait(Some(NAP)).unwrap();
            if start.elapsed() >= NAP {
                return;
            }
        }
    }
    panic!("it spins");
}

#[test]
fn contexts_whose_card_was_removed_or_whose_queue_is_lost_sleep_on() {
    let _alone = alone();
    for lose in [remove as fn(usize), fail_polls, lose_queues] {
        let (mut own, mut other) = (open("imitated3"), open("imitated4"));
        let mut neighbour = own.0.context(1).unwrap();
        let there = connect(&mut other, &mut own);
        let back = connect(&mut own, &mut other);
        sleeps(&mut *own.1);
        sleeps(&mut *neighbour);
        // Something has come when it is gone.
        post(&mut *other.1, there);
        lose(CARDS[0]);
        until((&mut own, &mut other), |near, _| gone(near, back).is_some());
        sleeps(&mut *own.1);
        sleeps(&mut *neighbour);
    }
}

#[test]
fn ports_that_make_no_sense_are_refused() {
    let try_open = |url: &str, devices: &str| {
        let options = OpenOptions::listening().with("device", devices);
        VerbsPlugin::over(&LIBRARY).open(&Address::new(url).unwrap(), &options).map(drop)
    };
    for (url, devices) in [("verbs://imitated3", BOTH), ("verbs://@127.0.0.4", BOTH)] {
        assert!(matches!(try_open(url, devices), Err(Error::BadSetting { .. })), "{url}");
    }
    let missing = try_open("verbs://", "imitated3,imitated9").unwrap_err();
    assert!(missing.to_string().contains("no such RDMA port"), "{missing}");
}
