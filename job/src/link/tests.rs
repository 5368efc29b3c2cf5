//! A rank's connection to a hub that is a test's own: one that does not read, or answers late.

use std::{os::unix::net::UnixStream, thread};

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

/// A frame of the rank's, at most its beginning.
fn frame(far: &mut UnixStream) -> Vec<u8> {
    let mut length = [0; 4];
    far.read_exact(&mut length).unwrap();
    let mut body = vec![0; (u32::from_le_bytes(length) as usize).min(1024)];
    far.read_exact(&mut body).unwrap();
    body
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
        let _hello_and_call = [frame(&mut far), frame(&mut far)];
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
fn what_comes_of_calls_that_have_ended_is_not_kept() {
    let _watchdog = watchdog::Watchdog::start();
    let (link, mut far) = pair(false);
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
