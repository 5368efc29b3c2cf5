//! A network that is busy for long: nobody watches its descriptor, the local plugin is looked at now and then.

use std::{sync::atomic::Ordering, time::Instant};

use hg_na::{Peer, QUIET};
use hg_na_conformance::layer::Layered;
use hg_na_route::Route;
use hg_na_sm::{SmPlugin, node_id};
use watchdog::{LIMIT, in_time};

use super::{
    Counting,
    common::Net,
    end::{End, arrived, greet, until},
    route,
};

/// More messages, and more rounds, than it takes to be busy.
const MANY: u32 = 1000;

/// Sends so many messages to the target, one after the other, which looks for each.
fn keep_busy(target: &mut End, far: &mut End, peer: Peer) {
    for number in 0..MANY {
        far.send(QUIET, peer, &number.to_le_bytes());
        assert_eq!(until(target, far, arrived).1, number.to_le_bytes());
    }
}

/// Makes progress until it may sleep.
pub(crate) fn rest(end: &mut End) {
    let start = Instant::now();
    while !end.context.may_sleep() {
        in_time!(start, "it never comes to rest");
        end.round();
    }
}

#[test]
fn a_network_that_was_busy_ends_a_sleep_all_the_same() {
    let mut target = End::open(&route(), "net://", &[]);
    let mut far = End::open(&Net, "net://", &[]);
    let part = target.context.address().part("net").unwrap();
    let peer = far.context.lookup(&part).unwrap();
    greet(&mut far, &mut target, peer);
    for _ in 0..3 {
        keep_busy(&mut target, &mut far, peer);
        rest(&mut target);
        let (start, waiter) = (Instant::now(), target.context.waiter());
        far.send(QUIET, peer, b"wake up");
        far.round();
        waiter.wait(Some(LIMIT)).unwrap();
        in_time!(start, "slept through what arrived");
        assert_eq!(until(&mut target, &mut far, arrived).1, b"wake up");
    }
}

#[test]
fn beside_a_busy_network_a_silent_local_plugin_is_looked_at_now_and_then_and_a_busy_one_always() {
    let counting = Counting::default();
    let local = Layered::new(SmPlugin, counting.clone());
    let mut target = End::open(&Route::new(local, Net, node_id, &["uid", "net"]), "net://", &[]);
    let mut far = End::open(&Net, "net://", &[]);
    let part = target.context.address().part("net").unwrap();
    let by_network = far.context.lookup(&part).unwrap();
    greet(&mut far, &mut target, by_network);
    let mut near = End::open(&route(), "net://", &[]);
    let by_memory = near.lookup(&target);
    greet(&mut near, &mut target, by_memory);
    keep_busy(&mut target, &mut far, by_network);
    let looks = || counting.rounds.load(Ordering::Relaxed);
    let before = looks();
    for number in 0..MANY {
        far.send(QUIET, by_network, &number.to_le_bytes());
        target.round();
        far.round();
    }
    assert!(looks() - before <= u64::from(MANY) / 2, "{} looks", looks() - before);
    let mut taken = 0;
    while taken < MANY {
        until(&mut target, &mut far, arrived);
        taken += 1;
    }
    // What comes by memory is found while the network goes on, and is looked for in every round from then on.
    far.send(QUIET, by_network, b"by network");
    near.send(QUIET, by_memory, b"by memory");
    let mut both =
        [until(&mut target, &mut near, arrived).1, until(&mut target, &mut far, arrived).1];
    both.sort();
    assert_eq!(both, [b"by memory".to_vec(), b"by network".to_vec()]);
    let before = looks();
    for _ in 0..10 {
        target.round();
    }
    assert_eq!(looks() - before, 10);
}
