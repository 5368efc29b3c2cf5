//! Peers that are cut off without a FIN, and peers that are only busy.

use std::{
    io::Read as _,
    net::{TcpListener, TcpStream},
    time::{Duration, Instant},
};

use hg_na::{Error, GoneReason, Op, Peer, QUIET};
use socket2::SockRef;
use watchdog::{LIMIT, in_time};

use crate::{
    end::{End, LOOPBACK, Server, arrived, ended, gone},
    raw::{UNEXPECTED, cut_off, frame, greeted_by, read_greeting, welcome},
};

/// The least that can be configured.
const BOUND: (&str, &str) = ("silence-bound-ms", "3000");
const BOUND_TIME: Duration = Duration::from_secs(3);

/// A context that is connected to a raw socket with little space.
pub(crate) fn connected(settings: &[(&str, &str)]) -> (End, Peer, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    SockRef::from(&listener).set_recv_buffer_size(4096).unwrap();
    let at = listener.local_addr().unwrap();
    let mut end = End::open(LOOPBACK, settings);
    let peer = end.lookup(&format!("tcp://{at}"));
    end.send(1, peer, b"first");
    let raw = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        assert_eq!(read_greeting(&mut stream).0, 1);
        std::io::Write::write_all(&mut stream, &welcome()).unwrap();
        let mut frame = [0; 16 + 5];
        stream.read_exact(&mut frame).unwrap();
        assert_eq!(&frame[16..], b"first");
        stream
    });
    end.until(ended(1)).unwrap();
    (end, peer, raw.join().unwrap())
}

fn is_reported(mut end: End, peer: Peer) {
    end.post(2, Op::RecvExpected { from: peer, tag: 2 });
    let refused = end.until(ended(2)).unwrap_err();
    assert!(matches!(refused, Error::PeerGone(GoneReason::TimedOut)), "{refused}");
    assert_eq!(end.until(gone), (peer, GoneReason::TimedOut));
}

/// Sends until nothing more leaves: the other end has no space left.
fn fill(end: &mut End, peer: Peer) -> usize {
    let long = vec![7; 16 << 10];
    for _ in 0..200 {
        end.send(QUIET, peer, &long);
    }
    (0..200).for_each(|_| end.round());
    200 * (16 + long.len())
}

#[test]
fn an_idle_peer_that_is_cut_off_is_reported_within_the_bound() {
    let (end, peer, raw) = connected(&[BOUND]);
    cut_off(&raw);
    is_reported(end, peer);
}

#[test]
fn a_peer_that_is_cut_off_while_it_is_called_is_reported_within_the_bound() {
    let (mut end, peer, raw) = connected(&[BOUND]);
    cut_off(&raw);
    end.send(QUIET, peer, b"into the void");
    is_reported(end, peer);
}

#[test]
fn a_peer_that_was_full_when_it_was_cut_off_is_reported() {
    let (mut end, peer, raw) = connected(&[BOUND]);
    fill(&mut end, peer);
    cut_off(&raw);
    is_reported(end, peer);
}

#[test]
fn a_peer_that_is_busy_for_longer_than_the_bound_is_not_cut_off() {
    let (mut end, peer, mut raw) = connected(&[BOUND]);
    let sent = fill(&mut end, peer);
    let start = Instant::now();
    while start.elapsed() < BOUND_TIME * 2 {
        end.round();
        assert!(end.take(gone).is_none(), "it only did not read");
        // Nothing arrives: this is what passes the time.
        if end.context.may_sleep() {
            end.context.waiter().wait(Some(BOUND_TIME / 10)).unwrap();
        }
    }
    // It has lost nothing: there is as much as its credits allow, less what the first message has taken.
    let window = ((2 << 20) / (16 << 10) - 1) * (16 + (16 << 10));
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; window];
        raw.read_exact(&mut all).unwrap();
        raw
    });
    let watch = Instant::now();
    while !reader.is_finished() {
        in_time!(watch, "of {sent} bytes sent too few have come");
        end.round();
    }
    drop(reader.join().unwrap());
    assert_eq!(end.until(gone), (peer, GoneReason::Exited));
}

#[test]
fn more_peers_than_a_round_looks_at_are_cut_off_and_all_are_reported() {
    const PEERS: usize = 70;
    let mut end = End::open(LOOPBACK, &[BOUND]);
    let mut raws = Vec::new();
    for _ in 0..PEERS {
        let mut raw = greeted_by(&mut end);
        std::io::Write::write_all(&mut raw, &frame(UNEXPECTED, 0, b"hello")).unwrap();
        let (peer, _) = end.until(arrived);
        cut_off(&raw);
        end.send(QUIET, peer, b"lost");
        raws.push(raw);
    }
    for _ in 0..PEERS {
        assert_eq!(end.until(gone).1, GoneReason::TimedOut);
    }
}

#[test]
fn whoever_bears_silence_for_a_day_or_for_ever_is_connected_all_the_same() {
    for bound in ["100000000", "18446744073709551615"] {
        let settings = [("silence-bound-ms", bound)];
        let server = Server::start(LOOPBACK, &settings);
        let mut end = End::open(LOOPBACK, &settings);
        let peer = end.lookup(&server.address);
        assert_eq!(end.call(peer, 1, b"here").unwrap(), b"here", "{bound}");
    }
}
