//! Entry point of the fuzz target `ofi_lifeline`: what anybody may write who reaches the port of a context's lifelines.
//!
//! Of any bytes: as records they are refused or taken off one by one, however they are cut, and what was taken encodes to what is taken
//! again; as a frame they are refused or have a header that encodes to the same bytes. And contexts of `ofi+tcp`, with a key and without,
//! where libfabric is there, hear them on a new lifeline: they go on, and nobody who has hung up is left in their tables.

use std::{
    cell::RefCell,
    io::Write as _,
    net::{Shutdown, TcpStream},
    time::{Duration, Instant},
};

use hg_na::{Completion, Context, Domain as _, Key, OpenOptions};

use hg_na_link::{
    Header,
    frame::HEADER,
    record::{self, RECORD_MAX},
};

use crate::{domain::OfiDomain, wire::Greeting};

type Record = record::Record<Greeting>;

/// Longest time for which a lifeline that was closed may stand in the table.
const GONE: Duration = Duration::from_secs(8);
/// Rounds between what a stranger says and his end.
const ROUNDS: usize = 4;

thread_local! {
    /// One context without a key and one with it, for all inputs: opening one takes a tenth of a second.
    static CONTEXTS: RefCell<Vec<Box<dyn Context>>> =
        RefCell::new([None, Some(Key([7; 32]))].into_iter().filter_map(open).collect());
}

fn open(key: Option<Key>) -> Option<Box<dyn Context>> {
    let url = "ofi+tcp://127.0.0.1".parse().ok()?;
    let mut options = OpenOptions::listening();
    options.key = key;
    OfiDomain::open(&url, &options).ok()?.context(0).ok()
}

/// Any bytes on a lifeline; the first one says where they are cut in two.
pub fn fuzz_lifeline(data: &[u8]) {
    let Some((cut, bytes)) = data.split_first() else { return };
    let parts = bytes.split_at(usize::from(*cut).min(bytes.len()));
    check_records(bytes, parts);
    check_header(bytes);
    CONTEXTS.with_borrow_mut(|contexts| {
        for context in contexts {
            hear(context.as_mut(), parts);
        }
    });
}

/// Takes records until there is none, or something that is none (`false`).
fn take_all(input: &mut Vec<u8>, into: &mut Vec<Record>) -> bool {
    loop {
        match Record::take(input) {
            Ok(Some(record)) => into.push(record),
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

fn check_records(bytes: &[u8], (front, back): (&[u8], &[u8])) {
    let (mut whole, mut at_once) = (bytes.to_vec(), Vec::new());
    let is_whole_good = take_all(&mut whole, &mut at_once);
    assert!(!is_whole_good || whole.len() < 4 + RECORD_MAX, "a record that never ends");
    let (mut cut, mut one_by_one) = (front.to_vec(), Vec::new());
    let is_front_good = take_all(&mut cut, &mut one_by_one);
    if is_front_good {
        cut.extend(back);
        assert_eq!(take_all(&mut cut, &mut one_by_one), is_whole_good, "a cut decides");
    }
    assert!(at_once.starts_with(&one_by_one), "a cut changes what is said");
    for record in at_once {
        let mut encoded = record.encode();
        let again = Record::take(&mut encoded).expect("it reads").expect("it is whole");
        assert!(encoded.is_empty(), "it is longer than it says");
        match (&record, &again) {
            // A sentence is shortened to what may be said.
            (Record::Refuse(_), Record::Refuse(_)) => {}
            _ => assert_eq!(again, record),
        }
    }
}

fn check_header(bytes: &[u8]) {
    let Some((link, header, content)) = Header::decode(bytes) else { return };
    let mut encoded = [0; HEADER];
    header.encode(link, &mut encoded);
    assert!(bytes.starts_with(&encoded) && bytes.ends_with(content), "it says something else");
}

/// Says it to a context, and hangs up.
fn hear(context: &mut dyn Context, (front, back): (&[u8], &[u8])) {
    let Ok(mut stranger) = TcpStream::connect(context.address().rest()) else { return };
    let mut done = Vec::new();
    let mut round = |done: &mut Vec<Completion>| {
        context.progress(Instant::now(), done).expect("no stranger ends an endpoint");
    };
    for part in [front, back] {
        // It may have been cut off.
        let _ = stranger.write_all(part);
        (0..ROUNDS).for_each(|_| round(&mut done));
    }
    let _ = stranger.shutdown(Shutdown::Both);
    drop(stranger);
    let end = Instant::now() + GONE;
    while !shows_nobody(&format!("{context:?}")) {
        assert!(Instant::now() < end, "it is never gone: {context:?}");
        context.progress(Instant::now(), &mut done).expect("no stranger ends an endpoint");
    }
}

fn shows_nobody(context: &str) -> bool {
    context.ends_with(", 0 peers)")
}
