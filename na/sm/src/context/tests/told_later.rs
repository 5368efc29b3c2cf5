//! Whoever is to begin a transfer later is told of room, also where nobody makes rounds but for what ends a sleep.

use std::time::Instant;

use hg_na::{Begun, Completion, Context as _, Direction, Memory, Region, Rights, Transit};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use watchdog::in_time;

use super::Pair;
use crate::{context::SmContext, region::state::SmRegion};

const LEN: u64 = 300_000;

/// Begins gets until it is too early for one more.
fn begin_until_later(pair: &mut Pair, near: &Region, far: &Region) {
    let (direction, peer, local, remote) =
        (Direction::Get, pair.to, near.state(), &far.descriptor());
    let (local_offset, remote_offset, len, may_wait) = (0, 0, LEN, true);
    let start = Instant::now();
    loop {
        in_time!(start, "as many are begun as anybody likes");
        let transit =
            Transit { direction, peer, local, local_offset, remote, remote_offset, len, may_wait };
        match pair.origin.begin(&transit) {
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

fn falls_asleep(context: &mut SmContext) {
    let start = Instant::now();
    while !context.may_sleep() {
        in_time!(start, "it never sleeps");
        context.progress(Instant::now(), &mut Vec::new()).unwrap();
    }
}

/// Whether a wait would return at once.
fn ends_a_sleep(context: &SmContext) -> bool {
    let waiter = context.waiter();
    let mut question = [PollFd::new(waiter.fd().unwrap(), PollFlags::POLLIN)];
    poll(&mut question, PollTimeout::ZERO).unwrap() > 0
}

#[test]
fn who_is_to_begin_later_is_told_before_a_sleep_and_ends_one() {
    let mut pair = Pair::connected();
    let [near, far] = [0, 1].map(|at: usize| {
        let memory = Memory::from(vec![0; LEN.try_into().unwrap()]);
        let regions = &pair.domains[at].regions;
        Region::new(SmRegion::register(regions, memory, Rights::all()).unwrap())
    });
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
