//! While admission is closed a peer that has hung up costs its last requests, and no descriptor. One test in
//! a process of its own: it counts the descriptors of the process.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{fs, time::Instant};

use hg_na::{Completion, Context, GoneReason, Message, Op, OpenOptions, Plugin as _};
use hg_na_sm::SmPlugin;
use watchdog::in_time;

fn open() -> Box<dyn Context> {
    let options = OpenOptions::listening();
    SmPlugin.open(&"sm://".parse().unwrap(), &options).unwrap().context(0).unwrap()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Makes progress on all until something is true.
fn until(
    contexts: &mut [&mut Box<dyn Context>],
    done: &mut Vec<Completion>,
    mut is_so: impl FnMut(&[Completion]) -> bool,
) {
    let start = Instant::now();
    while !is_so(done) {
        for context in contexts.iter_mut() {
            context.progress(Instant::now(), done).unwrap();
        }
        in_time!(start, "nothing came: {done:?}");
    }
}

#[test]
fn a_peer_that_left_while_admission_was_closed_keeps_its_requests_and_no_descriptor() {
    const LENS: [usize; 3] = [8, 56, 70_000];
    let mut target = open();
    let before = descriptors();
    let mut done = Vec::new();

    let mut origin = open();
    let to = origin.lookup(target.address()).unwrap();
    origin.post(1, Op::SendUnexpected { to, message: Message::copied(&[0; 8]) }).unwrap();
    until(&mut [&mut target, &mut origin], &mut done, |done| done.len() == 2);
    done.clear();

    target.set_admission(false);
    for len in LENS {
        let mut message = origin.message(to, len).unwrap();
        message.as_mut_slice().fill(7);
        origin.post(2, Op::SendUnexpected { to, message }).unwrap();
    }
    until(&mut [&mut origin], &mut done, |done| done.len() == LENS.len());
    done.clear();
    drop(origin);

    until(&mut [&mut target], &mut done, |done| !done.is_empty());
    let hung_up = done.pop();
    let is_closed =
        |it: &Completion| matches!(it, Completion::HungUp { reason: GoneReason::Closed, .. });
    assert!(done.is_empty() && hung_up.as_ref().is_some_and(is_closed), "{hung_up:?}, {done:?}");
    assert_eq!(descriptors(), before);
    let start = Instant::now();
    while !target.may_sleep() {
        target.progress(Instant::now(), &mut done).unwrap();
        assert!(done.is_empty(), "admission is closed: {done:?}");
        in_time!(start, "what waits for admission keeps the context awake");
    }
    target.set_admission(true);
    until(&mut [&mut target], &mut done, |done| done.len() > LENS.len());
    for (completion, len) in done.iter().zip(LENS) {
        let Completion::Unexpected { message, .. } = completion else { panic!("{completion:?}") };
        assert!(message.as_slice() == vec![7; len]);
    }
    let last = done.last();
    let is_gone =
        |it: &Completion| matches!(it, Completion::Gone { reason: GoneReason::Closed, .. });
    assert!(last.is_some_and(is_gone), "{last:?}");
}
