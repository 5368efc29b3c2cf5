//! What is told of a peer that dies or closes while admission is closed to it, and what admission is closed to.

use std::io::Write as _;

use hg_na::{Completion, Error, GoneReason, Message, Op, Peer, QUIET};
use watchdog::in_time;

use crate::{
    child::{Process, REQUESTS},
    end::{End, LOOPBACK, arrived, control, ended, gone, hung_up},
    raw::{UNEXPECTED, connect, frame, greeted_by, hello, read_greeting},
};

/// To whom admission is closed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum To {
    All,
    Peer,
    Both,
}

fn set_admission(end: &mut End, to: To, peer: Peer, open: bool) {
    if to != To::Peer {
        end.context.set_admission(open);
    }
    if to != To::All {
        end.context.set_admission_of(peer, open);
    }
}

/// A client process has sent requests that are withheld, and was killed; a receive was posted to it.
fn killed_client(to: To) -> (End, Peer) {
    let mut end = End::open(LOOPBACK, &[]);
    let mut client = Process::client(&end.text());
    let (peer, _) = end.until(arrived);
    set_admission(&mut end, to, peer, false);
    end.post(1, Op::RecvExpected { from: peer, tag: 1 });
    end.post(QUIET, Op::SendControl { to: peer, message: Message::copied(b"go") });
    end.round();
    client.await_word();
    client.kill();
    (end, peer)
}

#[test]
fn a_killed_client_is_told_at_once_and_its_withheld_requests_when_admission_opens() {
    for to in [To::All, To::Peer, To::Both] {
        let (mut end, peer) = killed_client(to);
        assert_eq!(end.until(hung_up), (peer, GoneReason::Exited), "{to:?}");
        // Before that: what it had sent and does not wait for admission, and the ends of operations.
        assert_eq!(end.take(control), Some((peer, b"the last".to_vec())), "{to:?}");
        let failed = end.take(ended(1)).unwrap();
        assert!(matches!(failed, Err(Error::PeerGone(GoneReason::Exited))), "{to:?}: {failed:?}");
        assert_eq!(end.take(arrived), None, "{to:?}: admission is closed");
        for op in [
            Op::SendUnexpected { to: peer, message: Message::copied(b"too late") },
            Op::RecvExpected { from: peer, tag: 2 },
        ] {
            let refused = end.context.post(2, op).unwrap_err().error;
            assert!(matches!(refused, Error::PeerGone(_) | Error::UnknownPeer), "{refused}");
        }
        // What is withheld keeps nobody awake.
        (0..3).for_each(|_| end.round());
        assert!(end.context.may_sleep() && end.take(gone).is_none(), "{to:?}");
        if to == To::Both {
            end.context.set_admission(true);
            (0..3).for_each(|_| end.round());
            assert!(end.context.may_sleep() && end.seen.is_empty(), "it waits for both");
            end.context.set_admission_of(peer, true);
        } else {
            set_admission(&mut end, to, peer, true);
        }
        assert!(!end.context.may_sleep(), "{to:?}: there is something to hand out");
        assert_eq!(end.until(gone), (peer, GoneReason::Exited), "{to:?}");
        for number in 0..REQUESTS {
            assert_eq!(end.take(arrived), Some((peer, number.to_le_bytes().to_vec())), "{to:?}");
        }
        assert!(end.seen.is_empty(), "{to:?}: {:?}", end.seen);
    }
}

#[test]
fn a_peer_that_is_forgotten_after_it_has_hung_up_is_gone_for_the_reason_that_was_told() {
    let (mut end, peer) = killed_client(To::Peer);
    assert_eq!(end.until(hung_up), (peer, GoneReason::Exited));
    end.seen.clear();
    end.context.forget(peer);
    end.context.set_admission_of(peer, true);
    end.context.forget(peer);
    assert_eq!(end.until(gone), (peer, GoneReason::Exited));
    (0..3).for_each(|_| end.round());
    assert!(end.seen.is_empty(), "{:?}", end.seen);
}

#[test]
fn hang_up_and_last_word_come_in_one_round_where_nothing_is_withheld() {
    let mut end = End::open(LOOPBACK, &[]);
    let mut client = Process::client(&end.text());
    let (peer, _) = end.until(arrived);
    end.context.set_admission_of(peer, false);
    end.context.set_admission(false);
    client.kill();
    assert_eq!(end.until(hung_up), (peer, GoneReason::Exited));
    assert_eq!(end.take(gone), Some((peer, GoneReason::Exited)));
}

/// Makes progress on all until `end` was told something.
fn both_until<T>(
    end: &mut End,
    others: &mut [&mut End],
    mut pick: impl FnMut(&Completion) -> Option<T>,
) -> T {
    let start = std::time::Instant::now();
    loop {
        end.round();
        others.iter_mut().for_each(|other| other.round());
        if let Some(found) = end.take(&mut pick) {
            return found;
        }
        in_time!(start, "it never came; instead: {:?}", end.seen);
    }
}

#[test]
fn admission_closed_to_one_peer_stops_its_requests_and_nothing_else() {
    let [mut end, mut stopped, mut free] = [0; 3].map(|_| End::open(LOOPBACK, &[]));
    let at = end.text();
    let (from_stopped, from_free) = (stopped.lookup(&at), free.lookup(&at));
    stopped.send(QUIET, from_stopped, b"hello");
    let (peer, _) = both_until(&mut end, &mut [&mut stopped], arrived);
    end.context.set_admission_of(peer, false);
    // It runs out of credits.
    let (mut posted, mut full) = (0_u64, 0);
    while full < 100 {
        let message = Message::copied(&posted.to_le_bytes());
        match stopped.context.post(QUIET, Op::SendUnexpected { to: from_stopped, message }) {
            Ok(_) => (posted, full) = (posted + 1, 0),
            Err(rejected) => {
                assert!(matches!(rejected.error, Error::Again), "{}", rejected.error);
                full += 1;
                stopped.round();
                end.round();
            }
        }
        assert!(posted < 10_000, "it never runs out of credits");
    }
    // Its answers and control messages flow, and the requests of others.
    end.post(1, Op::RecvExpected { from: peer, tag: 7 });
    let message = Message::copied(b"answer");
    stopped.post(QUIET, Op::SendExpected { to: from_stopped, tag: 7, message });
    assert_eq!(both_until(&mut end, &mut [&mut stopped], ended(1)).unwrap(), b"answer");
    let message = Message::copied(b"control");
    stopped.post(QUIET, Op::SendControl { to: from_stopped, message });
    both_until(&mut end, &mut [&mut stopped], control);
    free.send(QUIET, from_free, b"free");
    let (other, bytes) = both_until(&mut end, &mut [&mut free], arrived);
    assert!(other != peer && bytes == b"free");
    assert!(end.seen.is_empty(), "{:?}", end.seen);
    // It sleeps meanwhile, and opening ends that.
    let start = std::time::Instant::now();
    while !end.context.may_sleep() {
        end.round();
        in_time!(start, "what is withheld keeps it awake");
    }
    end.context.set_admission_of(peer, true);
    end.context.waiter().wait(None).unwrap();
    for number in 0..posted {
        let came = both_until(&mut end, &mut [&mut stopped], arrived);
        assert_eq!(came, (peer, number.to_le_bytes().to_vec()), "whole and in order");
    }
}

#[test]
fn who_has_hung_up_counts_as_a_peer_as_long_as_its_requests_are_withheld() {
    let mut end = End::open(LOOPBACK, &[("max-peers", "1")]);
    end.context.set_admission(false);
    for _ in 0..3 {
        let mut raw = greeted_by(&mut end);
        raw.write_all(&frame(UNEXPECTED, 0, b"withheld")).unwrap();
        drop(raw);
        end.until(hung_up);
        // Another one would cost as much again.
        let mut refused = connect(&end.text());
        refused.write_all(&hello(0)).unwrap();
        let reader = std::thread::spawn(move || read_greeting(&mut refused).0);
        while !reader.is_finished() {
            end.round();
        }
        assert_eq!(reader.join().unwrap(), 3, "refused");
        end.context.set_admission(true);
        end.until(gone);
        end.context.set_admission(false);
        assert!(end.take(arrived).is_some() && end.seen.is_empty());
    }
}
