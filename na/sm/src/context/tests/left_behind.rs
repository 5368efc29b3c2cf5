//! Requests of peers that have ended, while admission is closed.

use std::time::Instant;

use hg_na::{Completion, Context as _, Message, Op};
use watchdog::in_time;

use super::{open, open_with};
use crate::{arena::MESSAGE_MAX, context::SmContext};

fn round(context: &mut SmContext, done: &mut Vec<Completion>) {
    context.waiter.ask(|_| true).unwrap();
    context.progress(Instant::now(), done).unwrap();
}

/// Sends so many requests of that length, and ends.
fn leave(target: &mut SmContext, seen: &mut Vec<Completion>, count: usize, len: usize) {
    let (_shared, mut origin) = open();
    let to = origin.lookup(target.address()).unwrap();
    for _ in 0..count {
        origin.post(1, Op::SendUnexpected { to, message: Message::copied(&vec![7; len]) }).unwrap();
    }
    let (start, mut done) = (Instant::now(), Vec::new());
    while done.len() < count {
        in_time!(start, "not all were sent: {done:?}");
        round(&mut origin, &mut done);
        round(target, seen);
    }
}

fn count(seen: &[Completion], is_so: impl Fn(&Completion) -> bool) -> usize {
    seen.iter().filter(|it| is_so(it)).count()
}

fn is_gone(it: &Completion) -> bool {
    matches!(it, Completion::Gone { .. })
}

#[test]
fn requests_of_ended_peers_take_what_is_allowed_and_the_greediest_lose_theirs() {
    let (_shared, mut target) = open_with(&[("max-held-mib", "1")]);
    target.set_admission(false);
    let mut seen = Vec::new();
    leave(&mut target, &mut seen, 3, 9);
    for _ in 0..3 {
        leave(&mut target, &mut seen, 15, MESSAGE_MAX as usize);
    }
    let start = Instant::now();
    let is_told = |it: &Completion| matches!(it, Completion::HungUp { .. });
    while count(&seen, is_told) < 4 || count(&seen, is_gone) < 3 {
        in_time!(start, "what they left behind stays: {seen:?}");
        round(&mut target, &mut seen);
    }
    assert_eq!((seen.len(), target.peers.len()), (7, 1), "{seen:?}");
    target.set_admission(true);
    while count(&seen, is_gone) < 4 {
        in_time!(start, "{seen:?}");
        round(&mut target, &mut seen);
    }
    let is_short = |it: &Completion| matches!(it, Completion::Unexpected { message, .. } if message.len() == 9);
    assert_eq!((seen.len(), count(&seen, is_short)), (11, 3), "{seen:?}");
    assert_eq!(target.partings.greediest(0), None);
}
