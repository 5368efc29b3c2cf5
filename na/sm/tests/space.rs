//! A peer that takes nothing for long is left to its doorbell, and is sent all that waits when it takes again.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::time::Instant;

use hg_na::{Completion, Context, Error, Message, Op, OpenOptions, Peer, Plugin as _, QUIET};
use watchdog::in_time;

/// Many more than a peer is looked at in vain.
const ROUNDS: usize = 20_000;

fn open() -> Box<dyn Context> {
    let options = OpenOptions::listening();
    hg_na_sm::SmPlugin.open(&"sm://".parse().unwrap(), &options).unwrap().context(0).unwrap()
}

/// One round: requests that came, and whether room was told.
fn round(context: &mut dyn Context) -> (usize, bool) {
    let (mut done, mut came, mut room) = (Vec::new(), 0, false);
    context.progress(Instant::now(), &mut done).unwrap();
    for completion in done {
        match completion {
            Completion::Unexpected { .. } => came += 1,
            Completion::Room { .. } => room = true,
            other => panic!("unexpected: {other:?}"),
        }
    }
    (came, room)
}

/// Whether it was taken; nothing is told of it.
fn post(context: &mut dyn Context, to: Peer, len: usize) -> bool {
    let message = Message::from(vec![7; len]);
    match context.post(QUIET, Op::SendUnexpected { to, message }) {
        Ok(_) => true,
        Err(rejected) => {
            assert!(matches!(rejected.error, Error::Again), "{}", rejected.error);
            false
        }
    }
}

#[test]
fn a_peer_that_takes_nothing_for_long_is_sent_all_that_waits_when_it_takes_again() {
    for len in [8, 200, 100_000] {
        let (mut one, mut other) = (open(), open());
        let to = one.lookup(other.address()).unwrap();
        let start = Instant::now();
        let mut left = usize::from(post(one.as_mut(), to, len));
        while left > 0 {
            round(one.as_mut());
            left -= round(other.as_mut()).0;
            in_time!(start, "no message of {len} bytes comes");
        }
        // Twice: whoever was left to its doorbell is so again.
        for _ in 0..2 {
            while post(one.as_mut(), to, len) {
                left += 1;
            }
            for _ in 0..ROUNDS {
                assert_eq!(round(one.as_mut()), (0, false), "room at a peer that takes nothing");
            }
            let mut rooms = 0;
            while left > 0 || rooms == 0 {
                rooms += usize::from(round(one.as_mut()).1);
                left -= round(other.as_mut()).0;
                in_time!(start, "{left} of {len} bytes never come");
            }
            assert_eq!(rooms, 1, "for one refusal");
        }
    }
}
