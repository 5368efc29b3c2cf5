//! Peers that come back, and peers that call each other at the same time.

use std::io::{ErrorKind, Read as _};

use hg_na::{Error, GoneReason, Op, Peer, QUIET};
use watchdog::in_time;

use crate::{
    child::Process,
    end::{End, LOOPBACK, address, arrived, ended, gone},
    raw::connect,
};

#[test]
fn a_server_that_was_killed_is_reported_and_found_again_when_it_is_back() {
    let mut process = Process::start("tcp://127.0.0.1", None);
    let at = process.address.clone();
    let mut end = End::open(LOOPBACK, &[]);
    let mut before = None;
    for round in 0..3 {
        let peer = end.lookup(&at);
        assert_ne!(before, Some(peer), "an incarnation is a peer");
        assert_eq!(end.call(peer, round, b"here").unwrap(), b"here");
        end.post(100, Op::RecvExpected { from: peer, tag: 100 });
        process.kill();
        let failed = end.until(ended(100)).unwrap_err();
        assert!(matches!(failed, Error::PeerGone(GoneReason::Exited)), "{failed}");
        assert_eq!(end.until(gone), (peer, GoneReason::Exited));
        // While nobody is there, that is said; an attempt does not stand in the way of the next.
        let nobody = end.lookup(&at);
        end.send(101, nobody, b"knock");
        assert!(matches!(end.until(gone), (peer, GoneReason::Unreachable(_)) if peer == nobody));
        before = Some(peer);
        process = Process::start(&at, None);
    }
}

fn connections(end: &End) -> String {
    let shown = format!("{:?}", end.context);
    shown.split(", ").find(|part| part.ends_with("connections")).unwrap().to_owned()
}

/// Both look each other up and send; `early` steps of the first come before the other's first.
fn meet(early: usize) -> [(End, Peer); 2] {
    let mut ends = [End::open(LOOPBACK, &[]), End::open(LOOPBACK, &[])];
    let texts = ends.each_ref().map(End::text);
    let peers = [ends[0].lookup(&texts[1]), ends[1].lookup(&texts[0])];
    let [one, other] = &mut ends;
    one.send(QUIET, peers[0], b"0");
    (0..early).for_each(|_| one.round());
    other.send(QUIET, peers[1], b"1");
    let start = std::time::Instant::now();
    let mut heard = [false; 2];
    while heard != [true; 2] {
        for (end, heard) in ends.iter_mut().zip(&mut heard) {
            end.round();
            *heard |= end.take(arrived).is_some();
        }
        in_time!(start, "they do not come together after {early} steps");
    }
    ends.into_iter().zip(peers).collect::<Vec<_>>().try_into().ok().unwrap()
}

#[test]
fn two_that_connect_to_each_other_at_once_end_up_with_one_connection() {
    for early in 0..12 {
        let mut both = meet(early);
        for number in 0..50_u64 {
            for (end, peer) in &mut both {
                end.send(QUIET, *peer, &number.to_le_bytes());
            }
            let mut heard = [None, None];
            while heard != [Some(number); 2] {
                for ((end, _), heard) in both.iter_mut().zip(&mut heard) {
                    end.round();
                    if let Some((_, bytes)) = end.take(arrived) {
                        assert!(heard.is_none(), "in order, and once");
                        *heard = Some(u64::from_le_bytes(bytes.try_into().unwrap()));
                    }
                }
            }
        }
        for (end, _) in &both {
            assert_eq!(connections(end), "1 connections", "after {early} steps");
            assert!(!end.seen.iter().any(|it| gone(it).is_some()));
        }
    }
}

#[test]
fn looking_the_other_up_by_a_name_uses_the_connection_that_is_there() {
    let mut ends = [End::open(LOOPBACK, &[]), End::open(LOOPBACK, &[])];
    let by_name = ends.each_ref().map(|end| end.text().replace("127.0.0.1", "localhost"));
    let by_number = ends[1].text();
    let peer = ends[0].lookup(&by_number);
    ends[0].send(QUIET, peer, b"0");
    let back = ends[1].lookup(&by_name[0]);
    ends[1].send(QUIET, back, b"1");
    let start = std::time::Instant::now();
    let mut heard = [false; 2];
    while heard != [true; 2] {
        for (end, heard) in ends.iter_mut().zip(&mut heard) {
            end.round();
            *heard |= end.take(arrived).is_some();
        }
        in_time!(start);
    }
}

#[test]
fn forgetting_and_looking_up_again_makes_a_new_peer() {
    let mut both = meet(0);
    let at = both[1].0.text();
    let [(one, peer), (other, _)] = &mut both;
    one.context.forget(*peer);
    assert_eq!(one.until(gone), (*peer, GoneReason::Forgotten));
    let again = one.context.lookup(&address(&at)).unwrap();
    assert_ne!(again, *peer);
    one.send(QUIET, again, b"once more");
    let start = std::time::Instant::now();
    while other.take(arrived).is_none() {
        one.round();
        other.round();
        in_time!(start);
    }
}

/// Its domain is still there: an application may keep what it has closed.
#[test]
fn nobody_waits_for_a_context_that_was_closed() {
    let process = std::process::id();
    let url = format!("tcp://127.{}.{}.9:29418", 128 | (process >> 8) & 127, process & 255);
    let End { domain, context, .. } = End::open(&url, &[]);
    let mut unaccepted = connect(&url);
    let second = domain.context(1).unwrap();
    drop(context);
    connect(&url); // For the other one.
    drop(second);
    let told = unaccepted.read(&mut [0]);
    assert!(matches!(&told, Err(error) if error.kind() == ErrorKind::ConnectionReset), "{told:?}");
    let mut end = End::open(LOOPBACK, &[]);
    let peer = end.lookup(&url);
    end.send(100, peer, b"knock");
    assert!(matches!(end.until(gone), (_, GoneReason::Unreachable(_))));
    let again = domain.context(0).unwrap();
    assert_eq!(again.address().to_string(), url);
    connect(&url);
}
