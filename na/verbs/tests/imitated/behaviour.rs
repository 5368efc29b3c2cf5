//! What the suite cannot see: what is asked of the card, what is left on it, and what strangers may do.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hg_na::{
    Address, Completion, Context, Error, GoneReason, Memory, Message, Op, OpenOptions, Peer,
    Plugin as _, Rights,
};
use hg_na_verbs::VerbsPlugin;
use watchdog::in_time;

use crate::imitation::{LIBRARY, break_pair, counts, keep_size, left, moved};

/// The card of these tests, which use it one after the other: [`alone`].
const CARD: usize = 1;
const URL: &str = "verbs://imitated1";

fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(settings: &[(&str, &str)]) -> (std::sync::Arc<dyn hg_na::Domain>, Box<dyn Context>) {
    let options = settings
        .iter()
        .fold(OpenOptions::listening(), |options, (name, value)| options.with(name, value));
    let domain = VerbsPlugin::over(&LIBRARY).open(&Address::new(URL).unwrap(), &options).unwrap();
    let context = domain.context(0).unwrap();
    (domain, context)
}

fn step(context: &mut dyn Context, done: &mut Vec<Completion>) {
    context.progress(Instant::now(), done).unwrap();
}

fn send(context: &mut dyn Context, to: Peer, len: usize) {
    let message = Message::copied(&vec![7; len]);
    context.post(0, Op::SendUnexpected { to, message }).unwrap();
}

fn arrived(done: &[Completion]) -> usize {
    done.iter().filter(|it| matches!(it, Completion::Unexpected { .. })).count()
}

/// `from` sends one message to `to`, which gets it.
fn connect(from: &mut dyn Context, to: &mut dyn Context) -> Peer {
    let peer = from.lookup(to.address()).unwrap();
    send(from, peer, 8);
    let (start, mut heard) = (Instant::now(), Vec::new());
    while arrived(&heard) == 0 {
        in_time!(start);
        step(from, &mut Vec::new());
        step(to, &mut heard);
    }
    peer
}

/// Posts, and completions of them, for 1,000 messages that are too long to be inline.
fn posts_and_completions(every: &str) -> (u64, u64) {
    let settings = [("signal-every", every)];
    let ((_one, mut one), (_other, mut other)) = (open(&settings), open(&settings));
    let peer = connect(&mut *one, &mut *other);
    let (posts, completions) = counts(CARD);
    let (start, mut heard) = (Instant::now(), Vec::new());
    for _ in 0..1_000 {
        send(&mut *one, peer, 1_000);
        step(&mut *one, &mut Vec::new());
        step(&mut *other, &mut heard);
    }
    while arrived(&heard) < 1_000 {
        in_time!(start);
        step(&mut *one, &mut Vec::new());
        step(&mut *other, &mut heard);
    }
    let now = counts(CARD);
    (now.0 - posts, now.1 - completions)
}

#[test]
fn one_post_in_so_many_asks_for_its_completion() {
    let _alone = alone();
    let (posts, completions) = posts_and_completions("1");
    assert!(posts >= 1_000 && posts == completions, "{completions} of {posts}");
    let (posts, completions) = posts_and_completions("32");
    // Both sides have posted, and each may have begun a row.
    assert!(completions <= posts / 32 + 2, "{completions} of {posts}");
}

/// Steps both until nothing more moves at this time.
fn settle(contexts: [&mut dyn Context; 2], now: Instant) {
    let (start, mut quiet, [one, other]) = (Instant::now(), 0, contexts);
    while quiet < 10 {
        in_time!(start);
        let moved = [&mut *one, &mut *other].map(|it| it.progress(now, &mut Vec::new()).unwrap());
        quiet = if moved.contains(&true) { 0 } else { quiet + 1 };
    }
}

/// A message, which arrives at this time; who has sent it is about to sleep.
fn call(from: &mut dyn Context, peer: Peer, to: &mut dyn Context, now: Instant) {
    send(from, peer, 1_000);
    let (start, mut heard) = (Instant::now(), Vec::new());
    while arrived(&heard) == 0 {
        in_time!(start);
        from.may_sleep();
        from.progress(now, &mut Vec::new()).unwrap();
        to.progress(now, &mut heard).unwrap();
    }
}

#[test]
fn a_queue_that_goes_idle_flushes_itself_once_and_sleeps_between_are_no_idle_periods() {
    const ROUNDS: u64 = 1_000;
    let _alone = alone();
    let ((_one, mut one), (_other, mut other)) = (open(&[]), open(&[]));
    let there = connect(&mut *one, &mut *other);
    let back = connect(&mut *other, &mut *one);
    let mut now = Instant::now() + Duration::from_secs(3600);
    settle([&mut *one, &mut *other], now);
    let (posts, completions) = counts(CARD);
    // As two do that call one another, and sleep between: nothing here takes time.
    for _ in 0..ROUNDS {
        call(&mut *one, there, &mut *other, now);
        call(&mut *other, back, &mut *one, now);
        now += Duration::from_millis(5);
    }
    let busy = counts(CARD);
    let (posts, completions) = (busy.0 - posts, busy.1 - completions);
    assert!(posts >= 2 * ROUNDS && completions <= posts / 32 + 2, "{completions} of {posts}");
    // Nothing is posted any more: both have something silent, ask for its completion, and then for nothing.
    for _ in 0..20 {
        let due = [&one, &other].iter().filter_map(|it| it.next_deadline()).min();
        now = due.unwrap_or(now + Duration::from_millis(100)).max(now);
        settle([&mut *one, &mut *other], now);
    }
    let idle = counts(CARD);
    assert_eq!((idle.0 - busy.0, idle.1 - busy.1), (2, 2), "posts and completions of two queues");
    assert_eq!([&one, &other].map(|it| it.next_deadline()), [None, None], "nobody wakes for it");
}

#[test]
fn completions_of_many_peers_that_nobody_takes_find_room() {
    const PEERS: usize = 45;
    let _alone = alone();
    let (_domain, mut own) = open(&[("signal-every", "1")]);
    let mut others: Vec<_> = (0..PEERS).map(|_| open(&[])).collect();
    let peers: Vec<Peer> = others.iter_mut().map(|it| connect(&mut *own, &mut *it.1)).collect();
    for to in &peers {
        for _ in 0..64 {
            send(&mut *own, *to, 1_000);
            let message = Message::copied(&[7; 1_000]);
            own.post(0, Op::SendExpected { to: *to, tag: 1, message }).unwrap();
        }
    }
    let (start, mut done, mut heard) = (Instant::now(), Vec::new(), 0);
    while heard < PEERS * 64 {
        in_time!(start);
        step(&mut *own, &mut done);
        assert!(!done.iter().any(|it| matches!(it, Completion::Gone { .. })), "it has overflown");
        for (_, other) in &mut others {
            let mut told = Vec::new();
            step(&mut **other, &mut told);
            heard += arrived(&told);
        }
    }
}

#[test]
fn a_card_whose_queue_cannot_grow_refuses_nobody() {
    let _alone = alone();
    let (_domain, mut own) = open(&[("queue-pairs", "own")]);
    keep_size(true);
    let mut others: Vec<_> = (0..45).map(|_| open(&[])).collect();
    let peers: Vec<Peer> = others.iter_mut().map(|it| connect(&mut *own, &mut *it.1)).collect();
    keep_size(false);
    let (start, mut heard) = (Instant::now(), 0);
    peers.iter().for_each(|to| send(&mut *own, *to, 8));
    while heard < peers.len() {
        in_time!(start);
        step(&mut *own, &mut Vec::new());
        for (_, other) in &mut others {
            let mut told = Vec::new();
            step(&mut **other, &mut told);
            heard += arrived(&told);
        }
    }
}

#[test]
fn a_peer_for_whose_completions_there_is_no_room_is_refused() {
    // 1,024 for what arrives, and 120 for each queue pair.
    const ROOM: usize = (8_192 - 1_024) / 120;
    let _alone = alone();
    let ((_domain, mut own), (_far, mut other)) = (open(&[("queue-pairs", "own")]), open(&[]));
    let mut others: Vec<_> = (0..ROOM).map(|_| open(&[])).collect();
    let last = others.last_mut().map(|it| connect(&mut *own, &mut *it.1)).unwrap();
    for (_, other) in others.iter_mut().take(ROOM - 1) {
        connect(&mut *own, &mut **other);
    }
    let refused = own.lookup(other.address()).unwrap();
    send(&mut *own, refused, 8);
    let (start, mut done) = (Instant::now(), Vec::new());
    while !done.iter().any(|it| matches!(it, Completion::Gone { peer, .. } if *peer == refused)) {
        in_time!(start, "{done:?}");
        step(&mut *own, &mut done);
        step(&mut *other, &mut Vec::new());
    }
    assert_eq!(done.iter().filter(|it| matches!(it, Completion::Gone { .. })).count(), 1);
    send(&mut *own, last, 8);
    let (mut heard, last) = (Vec::new(), others.last_mut().unwrap());
    while arrived(&heard) == 0 {
        in_time!(start);
        step(&mut *own, &mut Vec::new());
        step(&mut *last.1, &mut heard);
    }
}

/// Bytes that the card has written and read for a get and a put of 100 bytes.
fn moved_by_card(settings: &[(&str, &str)]) -> (u64, u64) {
    let ((domain, mut one), (other_domain, mut other)) = (open(settings), open(settings));
    let peer = connect(&mut *one, &mut *other);
    let far = other_domain.register(Memory::from(vec![1; 100]), Rights::all()).unwrap();
    let near = domain.register(Memory::from(vec![0; 100]), Rights::empty()).unwrap();
    let (slice, before) = (|| near.slice(0, 100).unwrap(), moved(CARD));
    let remote = || far.descriptor().slice(0, 100).unwrap();
    one.post(1, Op::Get { from: peer, local: slice(), remote: remote() }).unwrap();
    one.post(2, Op::Put { to: peer, local: slice(), remote: remote() }).unwrap();
    let (start, mut done) = (Instant::now(), Vec::new());
    let is_over = |it: &Completion| matches!(it, Completion::Done(done) if done.token > 0 && done.result.is_ok());
    while done.iter().filter(|it| is_over(it)).count() < 2 {
        in_time!(start, "{done:?}");
        step(&mut *one, &mut done);
        step(&mut *other, &mut Vec::new());
    }
    let now = moved(CARD);
    (now.0 - before.0, now.1 - before.1)
}

#[test]
fn settings_pin_how_bytes_are_moved() {
    let _alone = alone();
    assert_eq!(moved_by_card(&[]), (0, 0), "short ones are sent");
    assert_eq!(moved_by_card(&[("rma-from", "1")]), (100, 100), "a write for the get, and a read");
    assert_eq!(moved_by_card(&[("rma-from", "1"), ("rma", "off")]), (0, 0));
    for (flags, moved) in [
        ("RC", (0, 0)),
        ("RC|SEND", (0, 0)),
        ("RC|WRITE", (100, 0)),
        ("RC|READ", (0, 100)),
        ("RC|WRITE|READ", (100, 100)),
    ] {
        assert_eq!(moved_by_card(&[("operations", flags)]), moved, "{flags}");
    }
    assert_eq!(moved_by_card(&[("operations", "RC|SEND|WRITE"), ("rma-from", "1")]), (100, 0));
}

#[test]
fn nothing_is_left_of_contexts_that_have_closed() {
    let _alone = alone();
    let ((domain, mut one), (other_domain, mut other)) = (open(&[]), open(&[]));
    let peer = connect(&mut *one, &mut *other);
    let far = other_domain.register(Memory::from(vec![1; 1 << 20]), Rights::all()).unwrap();
    let near = domain.register(Memory::from(vec![0; 1 << 20]), Rights::empty()).unwrap();
    let get = || {
        let remote = far.descriptor().slice(0, 1 << 20).unwrap();
        Op::Get { from: peer, local: near.slice(0, 1 << 20).unwrap(), remote }
    };
    one.post(1, get()).unwrap();
    let (start, mut done) = (Instant::now(), Vec::new());
    while !done.iter().any(|it| matches!(it, Completion::Done(done) if done.token == 1)) {
        in_time!(start);
        step(&mut *one, &mut done);
        step(&mut *other, &mut Vec::new());
    }
    drop(done);
    // Another one is under way: its memory is lent.
    one.post(2, get()).unwrap();
    step(&mut *one, &mut Vec::new());
    drop((one, other));
    drop((near, far, domain, other_domain));
    assert_eq!(left(CARD), (0, 0));
}

#[test]
fn a_queue_pair_in_error_ends_its_peer_and_no_other() {
    let _alone = alone();
    let ((_a, mut own), (_b, mut first), (_c, mut second)) = (open(&[]), open(&[]), open(&[]));
    let lost = connect(&mut *own, &mut *first);
    let kept = connect(&mut *own, &mut *second);
    assert!(break_pair(CARD));
    own.post(5, Op::RecvExpected { from: lost, tag: 1 }).unwrap();
    // Either is refused, or ends.
    let _ = own.post(6, Op::SendUnexpected { to: lost, message: Message::copied(b"late") });
    let (start, mut done, mut heard) = (Instant::now(), Vec::new(), Vec::new());
    let is_gone = |it: &Completion| matches!(it, Completion::Gone { peer, .. } if *peer == lost);
    while !done.iter().any(is_gone) {
        in_time!(start);
        step(&mut *own, &mut done);
        step(&mut *first, &mut Vec::new());
    }
    let failed = done.iter().find_map(|it| match it {
        Completion::Done(done) if done.token == 5 => done.result.as_ref().err(),
        _ => None,
    });
    let reason = failed.map(|failure| &failure.error);
    let is_named = matches!(reason, Some(Error::PeerGone(GoneReason::Unreachable(_))));
    assert!(is_named, "{reason:?}");
    send(&mut *own, kept, 3_000);
    while arrived(&heard) == 0 {
        in_time!(start);
        step(&mut *own, &mut Vec::new());
        step(&mut *second, &mut heard);
    }
}

/// What a context answers to somebody who says this; all of it, until it hangs up.
fn said_to(bytes: &[u8]) -> Vec<u8> {
    let (_domain, mut context) = open(&[]);
    let place = context.address().as_str().split_once('@').unwrap().1.to_owned();
    let place: SocketAddr = place.parse().unwrap();
    let mut stranger = TcpStream::connect(place).unwrap();
    stranger.write_all(bytes).unwrap();
    stranger.set_nonblocking(true).unwrap();
    let (start, mut answer) = (Instant::now(), Vec::new());
    loop {
        in_time!(start, "it is not hung up on");
        step(&mut *context, &mut Vec::new());
        let mut some = [0; 1024];
        match stranger.read(&mut some) {
            Ok(0) => break,
            Ok(len) => answer.extend(&some[..len]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    assert_eq!(context.connected(), []);
    answer
}

#[test]
fn strangers_who_greet_wrongly_are_hung_up_on_and_cost_no_queue_pair() {
    let _alone = alone();
    said_to(b"GET / HTTP/1.0\r\n\r\n");
    said_to(&[0xFF; 64]);
    // A greeting as it should be, but of another address than it comes from: 10.1.2.3.
    let mut hello = vec![41, 0, 0, 0, 1];
    hello.extend(b"hg-vrb\x00\x03");
    hello.extend([9, 0, 0, 0, 5, 0, 0, 0]);
    hello.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 1, 2, 3]);
    hello.extend([0, 0, 5, 16]);
    hello.extend([7, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 1]);
    hello[0] = u8::try_from(hello.len() - 4).unwrap();
    let answer = String::from_utf8_lossy(&said_to(&hello)).into_owned();
    assert!(answer.contains("another address than its lifeline's"), "{answer}");
    assert_eq!(left(CARD), (0, 0));
}
