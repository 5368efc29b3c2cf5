//! What is said on lifelines, and when.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod descriptors;
mod nowhere;
mod parts;

use std::{
    io::{ErrorKind, Read as _},
    net::TcpListener,
    os::unix::net::UnixListener,
    sync::Arc,
    time::{Duration, Instant},
};

use hg_na::{
    Address, Completion, Context as _, GoneReason, Memory, Message, Op, QUIET, Region, Rights,
};
use hg_na_frames::lifeline::{Lifeline, Place};
use hg_na_link::Record;
use hg_na_memory::ForkGuard;
use hg_na_parts::regions::{Regions, ServedRegion};
use watchdog::in_time;

use crate::nowhere::{Name, Raw, named, open, round, socket};

#[test]
fn one_that_says_goodbye_and_has_sent_less_than_it_says_keeps_nobody_awake() {
    let name = named("goodbye");
    let mut end = open(&name, 10);
    for _ in 0..3 {
        let mut raw = Raw::connect(&name);
        assert_eq!(raw.hear(&mut end), Record::Welcome(Name));
        let [peer] = end.connected()[..] else { panic!("one is connected") };
        raw.say(&[Record::Goodbye(u64::MAX)]);
        let start = Instant::now();
        while end.links.get(peer).unwrap().gone().is_none() {
            in_time!(start, "its goodbye was not heard");
            assert!(round(&mut end).is_empty());
        }
        // Its frames may come late; until then there is nothing to do.
        let heard = Instant::now();
        let mut done = Vec::new();
        end.progress(heard, &mut done).unwrap();
        assert!(end.may_sleep() && done.is_empty(), "{done:?}");
        let until = end.next_deadline().unwrap();
        assert!(until <= heard + Duration::from_secs(1));
        end.progress(until, &mut done).unwrap();
        assert!(
            matches!(done[0], Completion::HungUp { reason: GoneReason::Closed, .. }),
            "{done:?}"
        );
        assert!(end.may_sleep() && end.next_deadline().is_none());
    }
}

#[test]
fn connections_are_made_whatever_the_bound_of_silence() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = Place::Network(listener.local_addr().unwrap());
    for bound in [Duration::from_millis(1 << 31), Duration::MAX] {
        Lifeline::connect(&place, None, bound).unwrap();
    }
}

#[test]
fn what_is_said_behind_a_refusal_opens_nothing() {
    let (name, there) = (named("refused"), named("refuses"));
    let mut end = open(&name, 10);
    let listener = UnixListener::bind_addr(&socket(&there)).unwrap();
    let to = end.lookup(&Address::new(&format!("nowhere://{there}")).unwrap()).unwrap();
    let op = Op::SendUnexpected { to, message: Message::copied(b"hello") };
    assert!(end.post(QUIET, op).is_ok());
    let mut first = Raw::of(listener.accept().unwrap().0);
    assert_eq!(first.hear(&mut end), Record::Hello(Name));
    first.say(&[Record::Refuse("elsewhere".into()), Record::Welcome(Name)]);
    listener.set_nonblocking(true).unwrap();
    let start = Instant::now();
    let mut second = loop {
        in_time!(start, "no other way is tried");
        assert!(round(&mut end).is_empty() && end.connected().is_empty());
        if let Ok((stream, _)) = listener.accept() {
            break Raw::of(stream);
        }
    };
    assert_eq!(second.hear(&mut end), Record::Hello(Name));
    // It is the last way.
    second.say(&[Record::Welcome(Name), Record::Refuse("after all".into()), Record::Welcome(Name)]);
    let reason = loop {
        in_time!(start, "it was not refused");
        let gone = |it| match it {
            Completion::Gone { reason, .. } => Some(reason),
            _ => None,
        };
        if let Some(reason) = round(&mut end).into_iter().find_map(gone) {
            break reason;
        }
    };
    assert_eq!(reason, GoneReason::Refused("after all".into()));
    assert!(end.links.is_empty());
}

/// Nobody reaches it: the transport does not count it with what a peer may still write to.
#[test]
fn memory_of_which_a_peer_was_not_told_is_taken_back_before_its_way_is_let_go_of() {
    let name = named("untold");
    let mut end = open(&name, 10);
    let mut raw = Raw::connect(&name);
    assert_eq!(raw.hear(&mut end), Record::Welcome(Name));
    let [from] = end.connected()[..] else { panic!("one is connected") };
    end.transport.lends = true;
    let regions = Arc::new(Regions::new(Arc::new(ForkGuard::new().unwrap())).unwrap());
    let memory = Memory::from(vec![0; 1 << 20]);
    let region = ServedRegion::register(&regions, memory, Rights::all()).unwrap();
    let region = Region::new(region);
    let remote = region.descriptor().slice(0, 1 << 20).unwrap();
    let local = region.slice(0, 1 << 20).unwrap();
    assert!(end.post(1, Op::Get { from, local, remote }).is_ok());
    round(&mut end);
    assert_eq!(end.transport.log, ["lent"]);
    end.forget(from);
    assert_eq!(end.transport.log, ["lent", "revoked", "parted"]);
}

#[test]
fn strangers_that_cannot_be_watched_count_as_nobody() {
    let name = named("unwatched");
    let mut end = open(&name, 1);
    end.transport.is_full = true;
    let start = Instant::now();
    for _ in 0..3 {
        let mut raw = Raw::connect(&name);
        while is_open(&mut raw) {
            in_time!(start, "it was not closed");
            round(&mut end);
        }
        assert!(end.links.is_empty());
    }
    end.transport.is_full = false;
    let mut first = Raw::connect(&name);
    assert_eq!(first.hear(&mut end), Record::Welcome(Name));
    let mut second = Raw::connect(&name);
    assert!(matches!(second.hear(&mut end), Record::Refuse(why) if why.contains("max-peers")));
    assert_eq!(end.connected().len(), 1);
}

fn is_open(raw: &mut Raw) -> bool {
    matches!(raw.stream.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}
