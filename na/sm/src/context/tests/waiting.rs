//! Messages that wait for space while their context sleeps.

use hg_na::{Context, Message, Op, QUIET};

use super::{Pair, ends_a_sleep, falls_asleep};
use crate::{layout::REQUESTS_SLOTS, link::REQUESTS, receive::BURST, ring::WRITE_BACK};

impl Pair {
    /// Nothing is told of it.
    fn post(&mut self) {
        let op = Op::SendUnexpected { to: self.to, message: Message::copied(&[7; 8]) };
        self.origin.post(QUIET, op).unwrap();
    }
}

#[test]
fn what_another_post_sends_off_before_the_peer_rings_ends_the_sleep_of_who_waits_for_it() {
    let mut pair = Pair::connected();
    for _ in 0..REQUESTS_SLOTS + BURST {
        pair.post();
    }
    falls_asleep(&mut pair.origin);
    assert!(!Context::flush(&mut pair.origin) && !ends_a_sleep(&pair.origin));
    // The peer takes some, and has not looked yet whether it is to ring.
    let [from] = pair.target.connected()[..] else { panic!("one peer") };
    let (connection, mut taken) = (pair.target.peers.find(from).unwrap(), Vec::new());
    for _ in 0..2 {
        assert_eq!(connection.poll(&mut pair.target.intake, &mut taken), BURST);
    }
    assert!(taken.len() < WRITE_BACK as usize, "it has told nothing by itself");
    let link = connection.link.as_mut().unwrap();
    link.rx[REQUESTS].write_back(&link.own.rings.popped[REQUESTS].0);
    pair.post();
    assert!(ends_a_sleep(&pair.origin), "nobody else ends it");
    assert!(Context::flush(&mut pair.origin));
}
