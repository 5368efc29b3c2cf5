//! Whoever is to begin a transfer later is told of room, also where nobody makes rounds but for what ends a sleep.

use std::time::{Duration, Instant};

use hg_na::{
    Begun, Completion, Context as _, Direction, Memory, Region, Rights, Transit, Waiter as _,
};
use watchdog::in_time;

use super::{Pair, ends_a_sleep, falls_asleep};
use crate::{context::SmContext, region::state::SmRegion};

const LEN: u64 = 300_000;

/// Memory of each of the two.
fn regions(pair: &Pair) -> [Region; 2] {
    pair.domains.each_ref().map(|domain| {
        let memory = Memory::from(vec![0; LEN.try_into().unwrap()]);
        Region::new(SmRegion::register(&domain.regions, memory, Rights::all()).unwrap())
    })
}

/// Begins a get.
fn begin<'near>(pair: &mut Pair, near: &'near Region, far: &Region) -> Begun<'near> {
    let (direction, peer, local, remote) =
        (Direction::Get, pair.to, near.state(), &far.descriptor());
    let (local_offset, remote_offset, len, may_wait) = (0, 0, LEN, true);
    let transit =
        Transit { direction, peer, local, local_offset, remote, remote_offset, len, may_wait };
    pair.origin.begin(&transit)
}

/// Begins gets until it is too early for one more.
fn begin_until_later(pair: &mut Pair, near: &Region, far: &Region) {
    let start = Instant::now();
    loop {
        in_time!(start, "as many are begun as anybody likes");
        match begin(pair, near, far) {
            Begun::Later => return,
            begun @ (Begun::Over | Begun::Ready(_)) => drop(begun),
            Begun::No => panic!("the kernel moves bytes within a process"),
        }
    }
}

fn is_told(context: &mut SmContext) -> bool {
    let mut done = Vec::new();
    context.progress(Instant::now(), &mut done).unwrap();
    done.iter().any(|it| matches!(it, Completion::Room { .. }))
}

#[test]
fn who_is_to_begin_later_is_told_before_a_sleep_and_ends_one() {
    let mut pair = Pair::connected();
    let [near, far] = regions(&pair);
    // A round begins the count anew, and leaves nothing else to do.
    falls_asleep(&mut pair.origin);
    assert!(!is_told(&mut pair.origin));
    begin_until_later(&mut pair, &near, &far);
    assert!(!pair.origin.may_sleep(), "somebody is owed a word");
    assert!(is_told(&mut pair.origin));

    falls_asleep(&mut pair.origin);
    assert!(!ends_a_sleep(&pair.origin));
    begin_until_later(&mut pair, &near, &far);
    assert!(ends_a_sleep(&pair.origin), "nobody else ends it");
    assert!(is_told(&mut pair.origin));
    falls_asleep(&mut pair.origin);
}

#[test]
fn whoever_lacks_a_word_for_a_pin_is_told_when_one_is_free_and_the_context_sleeps_until_then() {
    let mut pair = Pair::connected();
    let [near, far] = regions(&pair);
    falls_asleep(&mut pair.origin);
    assert!(!is_told(&mut pair.origin));
    let link = pair.origin.peers.find(pair.to).unwrap().link.as_ref().unwrap();
    let words = link.own.rings.pins.0.len();
    let mut begun: Vec<_> = (0..words).map(|_| begin(&mut pair, &near, &far)).collect();
    assert!(begun.iter().all(|it| matches!(it, Begun::Ready(_))), "{begun:?}");
    for _ in 0..2 {
        assert!(matches!(begin(&mut pair, &near, &far), Begun::Later));
        for _ in 0..3 {
            assert!(!is_told(&mut pair.origin), "all words are in use");
        }
        pair.origin.waiter.wait(Some(Duration::ZERO)).unwrap(); // What has ended the sleep before.
        falls_asleep(&mut pair.origin);
        assert!(!ends_a_sleep(&pair.origin));
    }
    drop(begun.pop());
    assert!(ends_a_sleep(&pair.origin), "nobody else ends it");
    assert!(is_told(&mut pair.origin));
    // Who wants none is not woken.
    pair.origin.waiter.wait(Some(Duration::ZERO)).unwrap();
    falls_asleep(&mut pair.origin);
    drop(begun);
    assert!(!ends_a_sleep(&pair.origin) && !is_told(&mut pair.origin));
}
