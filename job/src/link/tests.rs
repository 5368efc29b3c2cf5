//! A rank's connection to a hub that is a test's own: one that does not read, or answers late.

use std::{
    os::unix::net::UnixStream,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
};

use super::*;
use crate::frame::VALUE_MAX;

const LONG: Duration = Duration::from_secs(50);

/// Rank 0 of two, and the hub's end. `hub_gone`: whether the process ends with the hub, for a test that must not make it so.
fn pair(hub_gone: bool) -> (Link, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    let hello = Hello { token: Vec::new(), rank: 0, size: 2, host: "host".into() };
    let endings = Endings { abort: false, hub_gone };
    let link = Link::open(Stream::Unix(near), hello, LONG, Holder::Rank(0), endings, None);
    (link.unwrap(), far)
}

/// The hub says something, and the rank has heard it.
fn heard(link: &Link, far: &mut UnixStream, down: &Down) {
    far.write_all(&down.encode()).unwrap();
    far.write_all(&Down::Welcome { nodes: vec![0, 0] }.encode()).unwrap();
    link.join(after(LONG)).unwrap();
}

/// A frame of the rank's.
fn frame(far: &mut UnixStream) -> Vec<u8> {
    let (mut body, more) = beginning(far);
    rest(far, more, &mut body);
    body
}

/// At most the beginning of a frame, and how much is left of it.
fn beginning(far: &mut UnixStream) -> (Vec<u8>, usize) {
    let mut length = [0; 4];
    far.read_exact(&mut length).unwrap();
    let length = u32::from_le_bytes(length) as usize;
    let mut body = vec![0; length.min(1024)];
    far.read_exact(&mut body).unwrap();
    let more = length - body.len();
    (body, more)
}

fn rest(far: &mut UnixStream, more: usize, body: &mut Vec<u8>) {
    let begun = body.len();
    body.resize(begun + more, 0);
    far.read_exact(&mut body[begun..]).unwrap();
}

/// After frames that end so comes the first barrier of channel `b`, which ends.
fn barrier_is_made(link: &Link, far: &mut UnixStream, before: &[&[u8]]) {
    let (channel, number) = ("b".to_owned(), 0);
    let gathered = Down::Gathered { channel: channel.clone(), number, values: Vec::new() };
    let barrier = Up::Gather { channel, number, what: What::Barrier, values: Vec::new() };
    thread::scope(|scope| {
        let call = scope.spawn(|| link.collect("b", What::Barrier, None, LONG));
        for end in before {
            assert!(frame(far).ends_with(end));
        }
        assert_eq!(frame(far), barrier.encode()[4..]);
        far.write_all(&gathered.encode()).unwrap();
        call.join().unwrap().unwrap();
    });
}

#[test]
fn a_call_that_the_hub_does_not_take_in_ends_within_its_bound() {
    let _watchdog = watchdog::Watchdog::start();
    let (link, _far) = pair(true);
    let within = Duration::from_millis(100);
    let value = vec![0; VALUE_MAX];
    for _ in 0..2 {
        let said = link.collect("c", What::Gather, Some(&value), within).unwrap_err().to_string();
        let expected = "sending did not end within 100ms, and rank 0, which holds the job together, does not answer";
        assert_eq!(said, expected);
    }
}

#[test]
fn others_calls_and_an_abort_do_not_wait_behind_one_that_the_hub_does_not_take_in() {
    let _watchdog = watchdog::Watchdog::start();
    let (link, mut far) = pair(true);
    let value = vec![0; VALUE_MAX];
    thread::scope(|scope| {
        let long = scope.spawn(|| link.collect("c", What::Gather, Some(&value), Duration::MAX));
        // It is in the middle of its call, and the hub reads no further.
        let _hello_and_call = [beginning(&mut far), beginning(&mut far)];
        // Whoever watches hears that the hub is silent, and goes on.
        scope.spawn(|| {
            let mut asked = 0;
            let mut late = |ranks: Option<&Ranks>| {
                assert_eq!(ranks, None);
                asked += 1;
                if asked == 3 {
                    link.abort(1, "enough");
                }
            };
            link.gather_watched("w", b"", Duration::from_millis(1), &mut late).unwrap_err();
        });
        long.join().unwrap().unwrap_err();
    });
}

#[test]
fn a_call_that_has_no_room_to_begin_within_its_bound_is_not_made_and_ends_no_other() {
    let _watchdog = watchdog::Watchdog::start();
    let (link, mut far) = pair(false);
    let value = vec![7; VALUE_MAX];
    thread::scope(|scope| {
        let long = scope.spawn(|| link.collect("c", What::Gather, Some(&value), Duration::MAX));
        let _hello = frame(&mut far);
        let (mut call, more) = beginning(&mut far);
        for within in [Duration::ZERO, Duration::from_millis(10)] {
            let said = link.collect("b", What::Barrier, None, within).unwrap_err().to_string();
            let why = "what this rank sent before has not left yet";
            assert_eq!(said, format!("barrier was not made within {within:?}: {why}"));
            let said = link.exchange("e", &[1], b"", within).unwrap_err().to_string();
            assert!(said.ends_with("waiting for rank 1"), "{said}");
        }
        link.check().unwrap();
        rest(&mut far, more, &mut call);
        assert!(call.ends_with(&value));
        let (channel, number) = ("c".to_owned(), 0);
        let gathered = Down::Gathered { channel, number, values: Vec::new() };
        far.write_all(&gathered.encode()).unwrap();
        long.join().unwrap().unwrap();
    });
    barrier_is_made(&link, &mut far, &[]);
    // Of the exchanges that were late nothing is with the hub, so that it need not pass it on.
    thread::scope(|scope| {
        let exchange = scope.spawn(|| link.exchange("e", &[1], b"", LONG));
        let letter = Letter { from: 0, to: Run::of(&[1]), value: b""[..].into() };
        let post = Post { channel: "e".into(), number: 2, letters: vec![letter] };
        assert_eq!(frame(&mut far), Up::Post(post.clone()).encode()[4..]);
        let letters = vec![Letter { from: 1, to: Run::of(&[0]), value: b"x"[..].into() }];
        far.write_all(&Down::Post(Post { letters, ..post }).encode()).unwrap();
        assert_eq!(&*exchange.join().unwrap().unwrap()[&1], b"x");
    });
}

#[test]
fn an_exchange_whose_own_value_has_not_left_has_not_ended_well() {
    let _watchdog = watchdog::Watchdog::start();
    let (link, mut far) = pair(false);
    locked(&link.shared.state).is_given = true;
    let letters = vec![Letter { from: 1, to: Run::of(&[0]), value: b"x"[..].into() }];
    heard(&link, &mut far, &Down::Post(Post { channel: "e".into(), number: 0, letters }));
    let said = link.exchange("e", &[1], b"", Duration::ZERO).unwrap_err().to_string();
    assert!(said.starts_with("exchange did not end within 0ns"), "{said}");
}

#[test]
fn whoever_is_told_who_is_late_may_make_calls_and_panic() {
    let _watchdog = watchdog::Watchdog::start();
    let (link, mut far) = pair(false);
    let value = vec![7; VALUE_MAX];
    let mut said = None;
    let late = |_: Option<&Ranks>| {
        said = Some(link.collect("b", What::Barrier, None, Duration::ZERO).unwrap_err());
        panic!("the test's own");
    };
    let watched = || link.gather_watched("w", &value, Duration::from_millis(1), late);
    catch_unwind(AssertUnwindSafe(watched)).unwrap_err();
    assert!(matches!(said, Some(Error::NotMade { .. })), "{said:?}");
    assert!(locked(&link.shared.state).answers.is_empty());
    // Whoever sends next sends the rest of that frame before.
    barrier_is_made(&link, &mut far, &[b"host", &value]);
}

#[test]
fn part_of_a_question_ends_nothing() {
    let _watchdog = watchdog::Watchdog::start();
    let (link, mut far) = pair(false);
    let value = vec![b'q'; VALUE_MAX];
    // As long as no channel's name is: so that only part of it leaves.
    let open = link.open_call((String::from_utf8(value).unwrap(), 0));
    link.ask(&open, Instant::now());
    link.check().unwrap();
    let question = Up::Who { channel: open.call.0.clone(), number: 0 }.encode();
    assert_eq!(link.send(&Up::Bye, Instant::now()), Sent::Nothing);
    barrier_is_made(&link, &mut far, &[b"host", &question[4..]]);
}

#[test]
fn what_comes_of_calls_that_have_ended_is_not_kept() {
    let _watchdog = watchdog::Watchdog::start();
    let (mut link, mut far) = pair(false);
    link.patience = LONG;
    let at_once = Duration::ZERO;
    let (channel, number) = ("c".to_owned(), 0);
    let post = |number| {
        let letter = Letter { from: 1, to: Run::of(&[0]), value: b"late"[..].into() };
        Down::Post(Post { channel: "c".into(), number, letters: vec![letter] })
    };
    link.exchange(&channel, &[1], b"", at_once).unwrap_err();
    heard(&link, &mut far, &post(0));
    assert!(locked(&link.shared.state).letters.is_empty());
    // One that has not begun here has begun there.
    heard(&link, &mut far, &post(1));
    far.write_all(&Down::Taken.encode()).unwrap();
    let came = link.exchange(&channel, &[1], b"", LONG).unwrap();
    assert_eq!(&*came[&1], b"late");

    let gathered = Down::Gathered { channel: channel.clone(), number, values: Vec::new() };
    let missing = Down::Missing { channel: channel.clone(), number, ranks: vec![1] };
    let late = thread::scope(|scope| {
        let call = scope.spawn(|| link.collect(&channel, What::Barrier, None, at_once));
        let question = Up::Who { channel: channel.clone(), number }.encode();
        while frame(&mut far) != question[4..] {}
        far.write_all(&missing.encode()).unwrap();
        call.join().unwrap().unwrap_err().to_string()
    });
    assert!(late.ends_with("waiting for rank 1"), "{late}");
    heard(&link, &mut far, &gathered);
    heard(&link, &mut far, &missing);
    assert!(locked(&link.shared.state).answers.is_empty());
}
