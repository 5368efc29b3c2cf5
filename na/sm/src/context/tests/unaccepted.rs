//! Peers that end before they have accepted who waits for them.

use std::{fs::File, sync::Arc, time::Instant};

use hg_na::{
    Address, Completion, Context as _, Error, GoneReason, Guest, Harvest, Message, Op, OpenOptions,
};
use watchdog::in_time;

use super::open;
use crate::{context::SmContext, domain::Shared};

/// What one is told that has said hello at an address; who listens there ends so, without having looked.
fn told_at(address: &Address, end: impl FnOnce()) -> GoneReason {
    let (_domain, mut origin) = open();
    let to = origin.lookup(address).unwrap();
    origin.post(1, Op::SendUnexpected { to, message: Message::copied(&[7; 8]) }).unwrap();
    let mut done = Vec::new();
    origin.progress(Instant::now(), &mut done).unwrap();
    end();
    let start = Instant::now();
    loop {
        in_time!(start, "nobody tells that the peer is gone: {done:?}");
        origin.waiter.ask(|_| true).unwrap();
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

/// A domain that listens, and has no context yet.
fn domain() -> (Arc<Shared>, Address) {
    let url = Address::new("sm://").unwrap();
    let shared = Shared::open(&url, &OpenOptions::listening()).unwrap();
    let address = shared.name.address(0);
    (shared, address)
}

#[test]
fn a_peer_that_closes_before_it_has_accepted_has_closed() {
    let (_domain, target) = open();
    assert_eq!(told_at(&target.address.clone(), || drop(target)), GoneReason::Closed);
}

#[test]
fn a_domain_that_is_dropped_before_it_has_a_context_has_closed() {
    let (domain, address) = domain();
    assert_eq!(told_at(&address, || drop(domain)), GoneReason::Closed);
}

#[test]
fn a_context_that_cannot_be_opened_has_closed() {
    let (domain, address) = domain();
    let no_set = File::open("/dev/null").unwrap().into();
    let guest = Guest { set: no_set, harvest: Harvest::new() };
    let reason = told_at(&address, || {
        let opened = SmContext::open(&domain, 0, Some(guest));
        assert!(matches!(opened, Err(Error::Os { .. })), "{opened:?}");
    });
    assert_eq!(reason, GoneReason::Closed);
}

/// The kernel closes what a killed process had open before it tells of its end.
#[test]
fn a_hang_up_without_a_goodbye_is_a_death_though_nobody_has_accepted() {
    let (_domain, mut target) = open();
    let reason = told_at(&target.address.clone(), || drop(target.listener.take()));
    assert_eq!(reason, GoneReason::Exited);
}
