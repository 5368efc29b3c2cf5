//! Peers that end before they have accepted who waits for them.

use std::time::Instant;

use hg_na::{Completion, Context as _, GoneReason, Message, Op};
use watchdog::in_time;

use super::Pair;
use crate::context::SmContext;

/// What one is told that has said hello to another one, which ends so without having looked.
fn told_of(end: impl FnOnce(SmContext)) -> GoneReason {
    let Pair { mut origin, target, to, .. } = Pair::strangers();
    origin.post(1, Op::SendUnexpected { to, message: Message::copied(&[7; 8]) }).unwrap();
    let mut done = Vec::new();
    origin.progress(Instant::now(), &mut done).unwrap();
    end(target);
    let start = Instant::now();
    loop {
        in_time!(start, "nobody tells that the peer is gone: {done:?}");
        origin.waiter.poll().unwrap();
        origin.progress(Instant::now(), &mut done).unwrap();
        let told = done.iter().find_map(|it| match it {
            Completion::HungUp { reason, .. } => Some(reason.clone()),
            _ => None,
        });
        if let Some(reason) = told {
            return reason;
        }
    }
}

#[test]
fn a_peer_that_closes_before_it_has_accepted_has_closed() {
    assert_eq!(told_of(drop), GoneReason::Closed);
}

/// The kernel closes what a killed process had open before it tells of its end.
#[test]
fn a_hang_up_without_a_goodbye_is_a_death_though_nobody_has_accepted() {
    let mut killed = None;
    let reason = told_of(|mut target| {
        drop(target.listener.take());
        killed = Some(target);
    });
    assert_eq!(reason, GoneReason::Exited);
}
