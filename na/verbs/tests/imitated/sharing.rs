//! Contexts of two processes over one queue pair: what each gets is its own, whoever posts, and whoever does not look.
//!
//! A process is a domain here.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use hg_na::{Address, Completion, Context, Domain, Message, Op, OpenOptions, Peer, Plugin as _};
use hg_na_verbs::VerbsPlugin;
use watchdog::in_time;

use crate::imitation::{LIBRARY, hold, left};

/// The card of these tests, which are one.
const CARD: usize = 2;
const URL: &str = "verbs://imitated2";

type Contexts = Vec<Box<dyn Context>>;

fn open(queue_pairs: &str, contexts: u8) -> (Arc<dyn Domain>, Contexts) {
    let options = OpenOptions::listening().with("queue-pairs", queue_pairs);
    let domain = VerbsPlugin::over(&LIBRARY).open(&Address::new(URL).unwrap(), &options).unwrap();
    let contexts = (0..contexts).map(|id| domain.context(id).unwrap()).collect();
    (domain, contexts)
}

/// Message `number` to a peer, from here.
fn send(context: &mut dyn Context, to: Peer, (from, number): (u32, u32)) {
    let bytes = [from.to_le_bytes(), number.to_le_bytes()].concat();
    context.post(0, Op::SendUnexpected { to, message: Message::copied(&bytes) }).unwrap();
}

/// What has come: who from, and its number.
fn step(context: &mut dyn Context, heard: &mut Vec<(u32, u32)>) {
    let mut done = Vec::new();
    context.progress(Instant::now(), &mut done).unwrap();
    heard.extend(done.iter().filter_map(|it| {
        let Completion::Unexpected { message, .. } = it else { return None };
        let word =
            |at: usize| u32::from_le_bytes(message.as_slice()[at..at + 4].try_into().unwrap());
        Some((word(0), word(4)))
    }));
}

/// Each one of `near` sends a message to each of `far`, all of which look until they have them.
fn cross(near: &mut Contexts, far: &mut Contexts) -> Vec<Vec<Peer>> {
    let addresses: Vec<Address> = far.iter().map(|it| it.address().clone()).collect();
    let peers: Vec<Vec<Peer>> = near
        .iter_mut()
        .map(|it| addresses.iter().map(|address| it.lookup(address).unwrap()).collect())
        .collect();
    for (from, context) in (0..).zip(near.iter_mut()) {
        peers[from as usize].iter().for_each(|peer| send(&mut **context, *peer, (from, 0)));
    }
    let start = Instant::now();
    let mut heard = vec![Vec::new(); far.len()];
    while heard.iter().any(|it| it.len() < near.len()) {
        in_time!(start, "{heard:?}");
        near.iter_mut().for_each(|it| step(&mut **it, &mut Vec::new()));
        far.iter_mut().zip(&mut heard).for_each(|(it, heard)| step(&mut **it, heard));
    }
    for mut of_one in heard {
        of_one.sort_unstable();
        assert_eq!(of_one, (0..).take(near.len()).map(|from| (from, 0)).collect::<Vec<_>>());
    }
    peers
}

fn one_pair_carries_all_lines() {
    let ((_one, mut near), (_other, mut far)) = (open("shared", 4), open("shared", 16));
    cross(&mut near, &mut far);
    assert_eq!(left(CARD).0, 2, "64 lines are on one queue pair, which has two ends");
    // The other direction has lines of its own, and no further pair.
    cross(&mut far, &mut near);
    assert_eq!(left(CARD).0, 2);
    // While a line is left, so is the pair.
    far.truncate(1);
    near.truncate(1);
    cross(&mut near, &mut far);
    assert_eq!(left(CARD).0, 2);
    let ((_third, mut third), start) = (open("shared", 2), Instant::now());
    cross(&mut third, &mut far);
    assert_eq!(left(CARD).0, 4, "another process has another pair");
    drop((near, third));
    while left(CARD).0 > 0 {
        in_time!(start, "pairs without lines stay");
        step(&mut *far[0], &mut Vec::new());
    }
}

fn who_shares_nothing_has_pairs_of_its_own() {
    for (near, far) in [("own", "own"), ("shared", "own"), ("own", "shared")] {
        let ((_one, mut near), (_other, mut far)) = (open(near, 2), open(far, 8));
        cross(&mut near, &mut far);
        assert_eq!(left(CARD).0, 32, "16 connections have a pair each");
    }
}

fn who_does_not_look_holds_up_no_other() {
    const EACH: u32 = 5_000;
    let ((_one, mut near), (_other, mut far)) = (open("shared", 2), open("shared", 2));
    let peers = cross(&mut near, &mut far);
    // The first one is sent more than it will ever be taken for; its sender waits for credits.
    for number in 1..1_000 {
        send(&mut *near[0], peers[0][0], (0, number));
    }
    let (start, mut heard) = (Instant::now(), Vec::new());
    for number in 1..EACH {
        send(&mut *near[0], peers[0][1], (0, number));
        send(&mut *near[1], peers[1][1], (1, number));
        while heard.len() < 2 * number as usize {
            in_time!(start, "{} after {number}", heard.len());
            near.iter_mut().for_each(|it| step(&mut **it, &mut Vec::new()));
            step(&mut *far[1], &mut heard);
        }
    }
    // It is there when it is asked for, in order.
    let mut late = Vec::new();
    while late.len() < 999 {
        in_time!(start, "{}", late.len());
        step(&mut *near[0], &mut Vec::new());
        step(&mut *far[0], &mut late);
    }
    assert_eq!(late, (1..1_000).map(|number| (0, number)).collect::<Vec<_>>());
}

/// Threads with a context each, all of which post to the pair of the two processes at the same time, and sleep when there is nothing to do.
fn threads_post_to_one_pair() {
    const THREADS: u8 = 4;
    const EACH: u32 = 3_000;
    let ((_one, mut near), (_other, mut far)) = (open("shared", THREADS), open("shared", THREADS));
    let peers = cross(&mut near, &mut far);
    assert_eq!(left(CARD).0, 2);
    let start = Instant::now();
    thread::scope(|scope| {
        for (from, (mut context, peers)) in (0_u32..).zip(near.drain(..).zip(&peers)) {
            scope.spawn(move || {
                let to = peers[from as usize];
                for number in 1..=EACH {
                    let bytes = [from.to_le_bytes(), number.to_le_bytes()].concat();
                    let mut op = Op::SendUnexpected { to, message: Message::copied(&bytes) };
                    while let Err(rejected) = context.post(1, op) {
                        in_time!(start, "{}", rejected.error);
                        op = rejected.op;
                        step(&mut *context, &mut Vec::new());
                    }
                    step(&mut *context, &mut Vec::new());
                }
                // Flushed: the other end has everything.
                while !context.flush() {
                    in_time!(start, "no flush");
                    step(&mut *context, &mut Vec::new());
                }
                context
            });
        }
        for (from, mut context) in (0..).zip(far.drain(..)) {
            scope.spawn(move || {
                let (waiter, mut heard) = (context.waiter(), Vec::new());
                while heard.len() < EACH as usize {
                    in_time!(start, "{} of {EACH}", heard.len());
                    step(&mut *context, &mut heard);
                    if context.may_sleep() {
                        waiter.wait(Some(std::time::Duration::from_secs(20))).unwrap();
                    }
                }
                assert_eq!(heard, (1..=EACH).map(|number| (from, number)).collect::<Vec<_>>());
                context
            });
        }
    });
}

/// One that sleeps until its flush is over is woken, although another context has taken the completion.
fn a_flush_that_another_one_sees_the_end_of_ends_a_sleep() {
    const PATIENCE: Duration = Duration::from_secs(20);
    let ((_one, mut near), (_other, mut far)) = (open("shared", 2), open("shared", 1));
    let peers = cross(&mut near, &mut far);
    let settle = |context: &mut dyn Context| (0..8).for_each(|_| step(context, &mut Vec::new()));
    near.iter_mut().for_each(|it| settle(&mut **it));
    hold(CARD, true);
    send(&mut *near[0], peers[0][0], (0, 1));
    assert!(!near[0].flush());
    let start = Instant::now();
    while !near[0].may_sleep() {
        in_time!(start, "it never sleeps");
        step(&mut *near[0], &mut Vec::new());
    }
    assert!(!near[0].flush());
    hold(CARD, false);
    settle(&mut *near[1]);
    // It takes what the card has rung with, too.
    near[1].may_sleep();
    let start = Instant::now();
    near[0].waiter().wait(Some(PATIENCE)).unwrap();
    assert!(start.elapsed() < PATIENCE, "slept through the end of its flush");
    settle(&mut *near[0]);
    assert!(near[0].flush());
}

#[test]
fn contexts_of_two_processes_share_a_queue_pair_and_nothing_else() {
    one_pair_carries_all_lines();
    who_shares_nothing_has_pairs_of_its_own();
    who_does_not_look_holds_up_no_other();
    threads_post_to_one_pair();
    a_flush_that_another_one_sees_the_end_of_ends_a_sleep();
    assert_eq!(left(CARD), (0, 0));
}
