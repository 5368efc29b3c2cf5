//! A recorded plugin passes the suite, and its record tells what happened.

use std::time::Instant;

use hg_na::{Address, Message, Op, OpenOptions, Plugin as _};
use hg_na_conformance::{Event, Mem, RECORDS_MAX, Traced};

hg_na_conformance::suite!(Traced::new(Mem::default()), "mem://", in_process_only);

#[test]
fn the_record_tells_each_operation_and_its_end() {
    let traced = Traced::new(Mem::default());
    let url = Address::new("mem://").unwrap();
    let domain = traced.open(&url, &OpenOptions::listening()).unwrap();
    let mut context = domain.context(0).unwrap();
    let own = context.address().clone();
    let peer = context.lookup(&own).unwrap();
    let op = Op::SendUnexpected { to: peer, message: Message::copied(b"to myself") };
    let posted_id = context.post(77, op).unwrap();
    let mut batch = Vec::new();
    while batch.len() < 2 {
        context.progress(Instant::now(), &mut batch).unwrap();
    }
    let events: Vec<Event> = traced.records().into_iter().map(|record| record.event).collect();
    let [first, second, rest @ ..] = &events[..] else { panic!("{events:?}") };
    assert!(matches!(first, Event::LookedUp { address, .. } if *address == own), "{events:?}");
    assert!(
        matches!(second, Event::Posted { id, token: 77, op } if *id == posted_id && op.contains("9 bytes")),
        "{events:?}"
    );
    let ended = |event: &&Event| matches!(event, Event::Done { id, token: 77, error: None } if *id == posted_id);
    assert_eq!(rest.iter().filter(ended).count(), 1, "{events:?}");
    let arrived =
        |event: &&Event| matches!(event, Event::Arrived(text) if text.contains("9 bytes"));
    assert_eq!(rest.iter().filter(arrived).count(), 1, "{events:?}");
}

#[test]
fn the_record_is_bounded() {
    let traced = Traced::new(Mem::default());
    let url = Address::new("mem://").unwrap();
    let domain = traced.open(&url, &OpenOptions::listening()).unwrap();
    let mut context = domain.context(0).unwrap();
    let own = context.address().clone();
    for _ in 0..RECORDS_MAX + 10 {
        context.lookup(&own).unwrap();
    }
    assert_eq!(traced.records().len(), RECORDS_MAX);
}
