//! Flushes beside a peer that is tried locally and makes no progress: what is posted to it waits here.

use std::time::Instant;

use hg_na::{Op, QUIET};
use watchdog::in_time;

use super::{
    end::{End, arrived, ended, gone, until},
    route,
};

#[test]
fn a_flush_does_not_wait_for_what_was_posted_after_it_began_to_a_peer_on_trial() {
    let mut here = End::open(&route(), "net://", &[]);
    let mut near = End::open(&route(), "net://", &[]);
    let still = End::open(&route(), "net://", &[]);
    let (to_near, to_still) = (here.lookup(&near), here.lookup(&still));
    here.send(QUIET, to_near, b"before");
    assert!(!here.context.flush(), "it waits for a peer that has made no progress");
    here.send(QUIET, to_still, b"after");
    let start = Instant::now();
    while !here.context.flush() {
        in_time!(start, "it waits for what came later");
        here.round();
        near.round();
    }
    assert_eq!(here.take(gone), None, "the other was not waited for until it was given up");
    assert_eq!(until(&mut near, &mut here, arrived).1, b"before");
    // The next one waits for both, and is over once the other peer has taken its message.
    assert!(!here.context.flush());
    let mut still = still;
    while !here.context.flush() {
        in_time!(start, "it does not end");
        here.round();
        still.round();
    }
    assert_eq!(until(&mut still, &mut here, arrived).1, b"after");
}

#[test]
fn a_flush_does_not_wait_for_a_receive_from_a_peer_on_trial() {
    let mut here = End::open(&route(), "net://", &[]);
    let still = End::open(&route(), "net://", &[]);
    let from = here.lookup(&still);
    here.post(1, Op::RecvExpected { from, tag: 9 });
    let start = Instant::now();
    while !here.context.flush() {
        in_time!(start, "it waits for a receive");
        here.round();
    }
    assert_eq!(here.take(ended(1)), None, "it waits still");
}
