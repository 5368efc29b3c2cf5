//! Two ports of one engine, joined by a cable: peers are spread over them, and what the cards say of a cable that is cut is heard.
//!
//! Nobody else may use the cards meanwhile: run by itself.

use std::{
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use hg_na::{
    Address, Completion, Context, Domain, Memory, Message, Op, OpenOptions, Peer, Plugin as _,
    Rights,
};
use hg_na_verbs::VerbsPlugin;
use watchdog::in_time;

use super::DEVICES;

pub(super) type End = (Arc<dyn Domain>, Box<dyn Context>);

const LEN: u64 = 100_000;

fn open(silence_ms: &str) -> End {
    let options = OpenOptions::listening()
        .with("device", &std::env::var(DEVICES).unwrap())
        .with("silence-bound-ms", silence_ms);
    let url = Address::new("verbs://").unwrap();
    let domain = VerbsPlugin::default().open(&url, &options).unwrap();
    let context = domain.context(0).unwrap();
    (domain, context)
}

/// Progresses both until something holds of what the first one was told, and the second one.
fn until(near: &mut End, far: &mut End, holds: impl Fn(&[Completion], &[Completion]) -> bool) {
    let (start, mut seen) = (Instant::now(), [Vec::new(), Vec::new()]);
    while !holds(&seen[0], &seen[1]) {
        in_time!(start, "{seen:?}");
        near.1.progress(Instant::now(), &mut seen[0]).unwrap();
        far.1.progress(Instant::now(), &mut seen[1]).unwrap();
    }
}

fn connect(near: &mut End, far: &mut End) -> Peer {
    let peer = near.1.lookup(far.1.address()).unwrap();
    exchange(near, far, peer);
    peer
}

/// A message there, and bytes from there.
fn exchange(near: &mut End, far: &mut End, peer: Peer) {
    let message = Message::copied(b"hello");
    near.1.post(1, Op::SendUnexpected { to: peer, message }).unwrap();
    let came = |it: &Completion| matches!(it, Completion::Unexpected { .. });
    until(near, far, |_, far| far.iter().any(came));
    let there = far.0.register(Memory::from(vec![7; 100_000]), Rights::all()).unwrap();
    let here = near.0.register(Memory::from(vec![0; 100_000]), Rights::empty()).unwrap();
    let remote = there.descriptor().slice(0, LEN).unwrap();
    near.1.post(2, Op::Get { from: peer, local: here.slice(0, LEN).unwrap(), remote }).unwrap();
    let is_over = |it: &Completion| matches!(it, Completion::Done(done) if done.token == 2 && done.result.is_ok());
    until(near, far, |near, _| near.iter().any(is_over));
}

fn set_cable(state: &str) {
    let set = Command::new("ip").args(["link", "set", "eth1", state]).status().unwrap();
    assert!(set.success());
}

/// Queue pairs of a card that are connected.
fn queue_pairs(device: &str) -> usize {
    let shown = Command::new("rdma").args(["resource", "show", "qp", "link", device]).output();
    let shown = String::from_utf8(shown.unwrap().stdout).unwrap();
    shown.lines().filter(|line| line.contains("type RC") && line.contains("state RTS")).count()
}

#[test]
fn peers_are_spread_over_two_ports_and_end_when_both_stay_down() {
    let devices = std::env::var(DEVICES).unwrap();
    let devices: Vec<&str> = devices.split(',').collect();
    let mut own = open("3000");
    let mut others: Vec<End> = (0..4).map(|_| open("30000")).collect();
    let peers: Vec<Peer> = others.iter_mut().map(|other| connect(&mut own, other)).collect();
    for device in &devices {
        assert_eq!(queue_pairs(device), 4, "two peers, and both ends of each");
    }
    // For a moment, in which nobody posts anything, and the queues go idle.
    set_cable("down");
    let moment = Instant::now();
    until(&mut own, &mut others[0], |_, _| moment.elapsed() > Duration::from_secs(1));
    set_cable("up");
    let moment = Instant::now();
    until(&mut own, &mut others[0], |_, _| moment.elapsed() > Duration::from_secs(1));
    assert_eq!(own.1.next_deadline(), None, "all that was silent is asked for");
    for (peer, other) in peers.iter().zip(&mut others) {
        exchange(&mut own, other, *peer);
    }
    for peer in &peers {
        own.1.post(9, Op::RecvExpected { from: *peer, tag: 1 }).unwrap();
    }
    set_cable("down");
    until(&mut own, &mut others[0], |near, _| {
        let is_gone = |peer: &&Peer| {
            near.iter().any(|it| matches!(it, Completion::Gone { peer: gone, .. } if gone == *peer))
        };
        peers.iter().filter(is_gone).count() == peers.len()
    });
    set_cable("up");
    let moment = Instant::now();
    until(&mut own, &mut others[0], |_, _| moment.elapsed() > Duration::from_secs(1));
    let mut anew: Vec<End> = (0..2).map(|_| open("30000")).collect();
    anew.iter_mut().for_each(|other| {
        connect(&mut own, other);
    });
}
