//! Peers that come back, and peers that call each other at the same time.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{TcpListener, TcpStream},
};

use hg_na::{Error, GoneReason, Op, Peer, QUIET};
use watchdog::{LIMIT, in_time};

use crate::{
    child::Process,
    end::{End, LOOPBACK, address, arrived, ended, gone},
    raw::{connect, greeted_with, greeting, read_exact, read_greeting, welcome},
};

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const SUPERSEDED: u8 = 4;
/// A flag of a Hello.
const INSISTS: u8 = 1;
/// Bytes of a frame's header.
const HEADER: usize = 16;

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
    shown
        .trim_end_matches(')')
        .split(", ")
        .find(|part| part.ends_with("connections"))
        .unwrap()
        .to_owned()
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

/// No time passes for the one that lives: nothing that it hears of may stand for a deadline.
#[test]
fn one_that_dies_while_both_connect_to_each_other_is_gone_without_a_deadline() {
    for rounds in 0..12 {
        for (early, extra) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 2)] {
            let mut ends = [End::open(LOOPBACK, &[]), End::open(LOOPBACK, &[])];
            let texts = ends.each_ref().map(End::text);
            let peers = [ends[0].lookup(&texts[1]), ends[1].lookup(&texts[0])];
            let [mut one, mut other] = ends;
            one.send(QUIET, peers[0], b"0");
            let start = std::time::Instant::now();
            (0..early).for_each(|_| one.round_at(start));
            other.send(QUIET, peers[1], b"1");
            for _ in 0..rounds {
                other.round();
                one.round_at(start);
            }
            (0..extra).for_each(|_| other.round());
            drop(other);
            let is_it = |it: &_| gone(it).filter(|(peer, _)| *peer == peers[0]);
            while one.take(is_it).is_none() {
                one.round_at(start);
                in_time!(
                    start,
                    "{early} early, {rounds} rounds, {extra} of the other: {:?}",
                    one.context
                );
            }
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
fn who_is_opened_at_another_spelling_of_its_address_has_one_connection() {
    let mut ends = [End::open("tcp://[::ffff:127.0.0.1]", &[]), End::open(LOOPBACK, &[])];
    let texts = ends.each_ref().map(End::text);
    let start = std::time::Instant::now();
    for (from, to) in [(0, 1), (1, 0), (0, 1)] {
        let peer = ends[from].lookup(&texts[to]);
        ends[from].send(QUIET, peer, b"here");
        while ends[to].take(arrived).is_none() {
            ends.iter_mut().for_each(End::round);
            in_time!(start);
        }
    }
    assert_eq!(ends.each_ref().map(connections), ["1 connections"; 2]);
}

/// What a target makes of a Hello, who knows where another peer of the sender's listens.
type Claim = fn(&str, &[u8]) -> Vec<u8>;

/// Answers "superseded by" what `claim` makes of the Hello, then welcomes whoever insists: its Hello, and what it says.
fn impostor(claim: Claim, other: &str, listener: &TcpListener, said: usize) -> Vec<u8> {
    let accept = || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    };
    let mut first = accept();
    let (kind, hello) = read_greeting(&mut first);
    assert_eq!(kind, HELLO);
    first.write_all(&greeting(SUPERSEDED, &claim(other, &hello))).unwrap();
    let mut second = accept();
    let (kind, hello) = read_greeting(&mut second);
    assert!(kind == HELLO && hello[33] & INSISTS != 0, "{hello:?}");
    second.write_all(&welcome()).unwrap();
    read_exact(&mut second, said)
}

#[test]
fn a_target_that_claims_another_peer_s_connection_gets_nothing_sent_over_it() {
    const TEXT: &[u8] = b"for the target alone";
    // What it can say: nothing, what every Hello holds, the nonce of its own connection, and what the other one says to the same.
    let claims: [Claim; 4] = [
        |_, _| vec![0; 8],
        |_, hello| hello[..8].to_vec(),
        |_, hello| hello[16..24].to_vec(),
        |other, hello| {
            let mut relay = connect(other);
            relay.write_all(&greeting(HELLO, hello)).unwrap();
            let (kind, told) = read_greeting(&mut relay);
            assert_eq!(kind, SUPERSEDED);
            told
        },
    ];
    for claim in claims {
        let mut ends = [End::open(LOOPBACK, &[]), End::open(LOOPBACK, &[])];
        let text = ends[0].text();
        let peer = ends[1].lookup(&text);
        ends[1].send(QUIET, peer, b"here");
        let start = std::time::Instant::now();
        while ends[0].take(arrived).is_none() {
            ends.iter_mut().for_each(End::round);
            in_time!(start);
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = format!("tcp://{}", listener.local_addr().unwrap());
        let other = ends[1].text();
        let said = HEADER + TEXT.len();
        let target = std::thread::spawn(move || impostor(claim, &other, &listener, said));
        let to = ends[0].lookup(&at);
        ends[0].send(QUIET, to, TEXT);
        while !target.is_finished() {
            ends.iter_mut().for_each(End::round);
            assert_eq!(ends[1].take(arrived), None, "it was meant for another");
            in_time!(start);
        }
        assert!(target.join().unwrap().ends_with(TEXT));
    }
}

/// A Hello that claims all of it.
fn hello_of(incarnation: &[u8], nonce: &[u8], address: &str) -> Vec<u8> {
    greeting(HELLO, &[incarnation, nonce, &[0, 0], address.as_bytes()].concat())
}

/// What a context, which makes progress in this thread, says to a Hello.
fn answer_to(hello: &[u8], end: &mut End, mut raw: TcpStream) -> (u8, Vec<u8>, TcpStream) {
    raw.write_all(hello).unwrap();
    let reader = std::thread::spawn(move || {
        let (kind, body) = read_greeting(&mut raw);
        (kind, body, raw)
    });
    while !reader.is_finished() {
        end.round();
    }
    reader.join().unwrap()
}

/// The first looks the second up and sends: it arrives there, and a third, who claims to be the second, is told nothing.
fn sends_past(third: &TcpStream, from: &mut End, meant: &mut End) {
    const TEXT: &[u8] = b"for the right one alone";
    let to = from.lookup(&meant.text());
    from.send(QUIET, to, TEXT);
    third.set_nonblocking(true).unwrap();
    let start = std::time::Instant::now();
    while meant.take(|it| arrived(it).filter(|(_, bytes)| bytes == TEXT)).is_none() {
        from.round();
        meant.round();
        let told = (&*third).read(&mut [0]);
        assert!(matches!(&told, Err(error) if error.kind() == ErrorKind::WouldBlock), "{told:?}");
        in_time!(start);
    }
}

#[test]
fn who_asks_in_another_s_name_learns_nothing_that_makes_him_pass_for_the_one_he_asks() {
    let (mut end, mut meant) = (End::open(LOOPBACK, &[]), End::open(LOOPBACK, &[]));
    let (at, meant_at) = (end.text(), meant.text());
    // It comes before the one that it will pass for, and says nothing yet.
    let silent = connect(&at);
    let (kind, incarnation, _asking) =
        answer_to(&hello_of(&[1; 16], &[2; 16], ""), &mut end, connect(&at));
    assert_eq!(kind, WELCOME);
    let peer = meant.lookup(&at);
    meant.send(QUIET, peer, b"here");
    let start = std::time::Instant::now();
    while end.take(arrived).is_none() {
        meant.round();
        end.round();
        in_time!(start);
    }
    let asking = hello_of(&incarnation, &[3; 16], &at);
    let (kind, told, _asking) = answer_to(&asking, &mut meant, connect(&meant_at));
    assert_eq!(kind, SUPERSEDED);
    let mut nonce = [0; 16];
    nonce[..told.len()].copy_from_slice(&told);
    let greeting = hello_of(&[4; 16], &nonce, &meant_at);
    let (_, _, silent) = answer_to(&greeting, &mut end, silent);
    sends_past(&silent, &mut end, &mut meant);
}

#[test]
fn a_target_that_claims_to_be_another_in_its_welcome_does_not_pass_for_who_has_dialled_it() {
    let (mut end, mut meant) = (End::open(LOOPBACK, &[]), End::open(LOOPBACK, &[]));
    let at = end.text();
    let (kind, incarnation, _asking) =
        answer_to(&hello_of(&[1; 16], &[2; 16], ""), &mut end, connect(&at));
    assert_eq!(kind, WELCOME);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = meant.lookup(&format!("tcp://{}", listener.local_addr().unwrap()));
    meant.send(QUIET, target, b"here");
    let liar = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (_, hello) = read_greeting(&mut stream);
        stream.write_all(&greeting(WELCOME, &incarnation)).unwrap();
        read_exact(&mut stream, HEADER + b"here".len());
        (hello[16..32].to_vec(), stream)
    });
    while !liar.is_finished() {
        meant.round();
    }
    let (nonce, _stream) = liar.join().unwrap();
    let third = greeted_with(&mut end, &hello_of(&[4; 16], &nonce, &meant.text()));
    sends_past(&third, &mut end, &mut meant);
}

#[test]
fn who_claims_another_s_address_in_his_greeting_is_sent_nothing_that_is_for_it() {
    const TEXT: &[u8] = b"for the right one alone";
    let (mut end, mut meant) = (End::open(LOOPBACK, &[]), End::open(LOOPBACK, &[]));
    let text = meant.text();
    // With each of the flags that a Hello has.
    let claimants: Vec<_> = (0..4)
        .map(|flags| {
            let who = [&[10 + flags; 16][..], &[20 + flags; 16], &[0, flags], text.as_bytes()];
            greeted_with(&mut end, &greeting(HELLO, &who.concat()))
        })
        .collect();
    let to = end.lookup(&text);
    end.send(QUIET, to, TEXT);
    let start = std::time::Instant::now();
    while meant.take(arrived).is_none() {
        end.round();
        meant.round();
        in_time!(start);
    }
    for mut claimant in claimants {
        claimant.set_nonblocking(true).unwrap();
        let mut told = Vec::new();
        let open = claimant.read_to_end(&mut told).unwrap_err();
        assert_eq!(open.kind(), ErrorKind::WouldBlock, "it is a peer as any other");
        assert!(!told.windows(TEXT.len()).any(|it| it == TEXT), "{told:?}");
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
