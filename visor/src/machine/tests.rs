//! Single decisions of the switch; what random events come to is `simulation`'s.

mod bounds;
mod opening;
mod shares;
mod simulation;

use std::time::{Duration, Instant};

use hg_na::{GoneReason, Identity, Message};

use super::{Effect, IDLE, Network, PartyKey, Quota, Switch, idle::CALLED_MAX};
use crate::wire::{
    FRAME_MAX, FRAME_MIN, HEADER_LEN, Header, Hello, Kind, RETURN_MIN, WINDOW, YOURS, cost,
    decode_identity, reason,
};

const QUOTA: Quota = Quota { weight: 1, connections: 4 };
const BODY_MAX: usize = FRAME_MAX - HEADER_LEN;

fn switch() -> Switch {
    owning(&["tcp://here:1"])
}

fn owning(addresses: &[&str]) -> Switch {
    let network =
        |address: &&str| Network { address: address.parse().unwrap(), frame_max: FRAME_MAX };
    Switch::new(addresses.iter().map(network).collect(), Some(7)).unwrap()
}

/// Of a process that the kernel does not name, which is by itself.
fn identity(uid: u32) -> Identity {
    Identity::process(0, uid)
}

/// The next frame for a party.
fn next(switch: &mut Switch, to: PartyKey) -> Option<(Header, Vec<u8>)> {
    let outgoing = switch.pop(to)?;
    let (header, body) = Header::decode(outgoing.frame.as_slice()).unwrap();
    let body = body.to_vec();
    switch.left(outgoing.follows);
    Some((header, body))
}

fn kind(switch: &mut Switch, to: PartyKey) -> Option<Kind> {
    next(switch, to).map(|(header, _)| header.kind)
}

fn application(switch: &mut Switch, name: &str) -> PartyKey {
    context(switch, identity(7), name)
}

/// A context of this process.
fn context(switch: &mut Switch, of: Identity, name: &str) -> PartyKey {
    let key = switch.arrived(of, QUOTA);
    switch.handle(key, Hello { listens: true, name }.frame());
    assert_eq!(kind(switch, key), Some(Kind::Welcome));
    key
}

fn open(switch: &mut Switch, from: PartyKey, id: u32, target: &str) {
    switch.handle(from, Header::new(Kind::Open, id, 0).frame(target.as_bytes()));
}

/// Two applications and a connection: what each calls it in its frames.
fn connected(switch: &mut Switch) -> ((PartyKey, u32), (PartyKey, u32)) {
    let (a, b) = (application(switch, "a/0"), application(switch, "b/0"));
    open(switch, a, 1, "visor://b/0@tcp://here:1");
    let (incoming, body) = next(switch, b).unwrap();
    assert_eq!(incoming.kind, Kind::Incoming);
    assert_eq!(decode_identity(&body), Some(identity(7)));
    let (opened, body) = next(switch, a).unwrap();
    assert_eq!((opened.kind, opened.id), (Kind::Opened, 1 | YOURS));
    assert_eq!(decode_identity(&body), Some(identity(7)));
    ((a, 1), (b, incoming.id | YOURS))
}

fn data(id: u32, len: usize) -> Message {
    Header::new(Kind::Data, id, 0).frame(&vec![0; len])
}

fn hung_up(switch: &mut Switch, party: PartyKey) -> bool {
    let effects = std::iter::from_fn(|| switch.next_effect());
    effects.into_iter().any(|effect| matches!(effect, Effect::HangUp(it, _) if it == party))
}

#[test]
fn data_and_windows_pass_both_ways_and_a_close_is_answered() {
    let switch = &mut switch();
    let ((a, a_id), (b, b_id)) = connected(switch);
    for (from, id, to, to_id) in [(a, a_id, b, b_id), (b, b_id, a, a_id)] {
        for _ in 0..usize::try_from(RETURN_MIN).unwrap().div_ceil(FRAME_MAX) {
            switch.handle(from, data(id, BODY_MAX));
            let (header, body) = next(switch, to).unwrap();
            assert_eq!((header.kind, header.id, body.len()), (Kind::Data, to_id ^ YOURS, BODY_MAX));
        }
        switch.handle(to, Header::new(Kind::Window, to_id, u64::from(RETURN_MIN)).frame(&[]));
        assert_eq!(kind(switch, from), Some(Kind::Window));
    }
    switch.handle(a, data(a_id, 1));
    switch.handle(a, Header::new(Kind::Close, a_id, 0).frame(&[]));
    assert!(kind(switch, a).is_none(), "the other end does not know yet");
    assert_eq!(kind(switch, b), Some(Kind::Data), "what was sent comes before the end");
    let (close, body) = next(switch, b).unwrap();
    assert_eq!((close.kind, reason(close.word, &body)), (Kind::Close, GoneReason::Closed));
    assert!(kind(switch, a).is_none(), "the other end has not answered");
    switch.handle(b, Header::new(Kind::Close, b_id, 0).frame(&[]));
    assert_eq!(kind(switch, a), Some(Kind::Close));
    assert!(switch.connections.is_empty() && switch.bytes() == 0);
    assert!(switch.next_effect().is_none());
}

#[test]
fn whoever_breaks_the_rules_is_ended_and_its_peer_is_told() {
    let wrongs: [fn(u32) -> Vec<Message>; 13] = [
        |id| {
            (0..=usize::try_from(WINDOW).unwrap() / FRAME_MAX).map(|_| data(id, BODY_MAX)).collect()
        },
        |id| vec![Header::new(Kind::Window, id, 1 << 16).frame(&[])],
        |id| vec![data(id, 9), Header::new(Kind::Window, id, u64::MAX).frame(&[])],
        |id| vec![Header::new(Kind::Window, id, 0).frame(&[0; 9])],
        |_| vec![Message::copied(b"short")],
        |_| vec![Message::copied(&[77; 16])],
        |_| vec![Header::new(Kind::Open, 1, 0).frame(b"visor://b/0@tcp://here:1")],
        |_| vec![Header::new(Kind::Open, 2 | YOURS, 0).frame(b"visor://b/0@tcp://here:1")],
        |_| vec![Header::new(Kind::Open, 2, 0).frame(b"sm://b")],
        |_| vec![Header::new(Kind::Open, 2, 0).frame(&[0xFF])],
        |_| vec![Hello { listens: true, name: "c/0" }.frame()],
        |_| {
            (2..7)
                .map(|id| Header::new(Kind::Open, id, 0).frame(b"visor://x/0@tcp://here:1"))
                .collect()
        },
        |id| vec![Header::new(Kind::Welcome, id, 0).frame(&[])],
    ];
    for (at, wrong) in wrongs.iter().enumerate() {
        let switch = &mut switch();
        let ((a, id), (b, _)) = connected(switch);
        for frame in wrong(id) {
            switch.handle(a, frame);
        }
        assert!(hung_up(switch, a), "wrong {at}");
        let last = std::iter::from_fn(|| next(switch, b)).last();
        let (close, body) = last.unwrap();
        let why = reason(close.word, &body);
        assert!(matches!(why, GoneReason::Misbehaved(_)), "wrong {at}: {why}");
        switch.handle(b, Header::new(Kind::Close, close.id ^ YOURS, 0).frame(&[]));
        assert!(switch.connections.is_empty() && !switch.names.contains_key("a/0"), "wrong {at}");
        assert!(!hung_up(switch, b));
    }
}

#[test]
fn openers_are_told_why_there_is_no_connection() {
    let switch = &mut switch();
    let a = application(switch, "a/0");
    let deaf = switch.arrived(identity(7), QUOTA);
    switch.handle(deaf, Hello { listens: false, name: "deaf/0" }.frame());
    let refused = |switch: &mut Switch, target: &str| {
        open(switch, a, 5, target);
        let (close, body) = next(switch, a).unwrap();
        assert_eq!((close.kind, close.id), (Kind::Close, 5 | YOURS));
        switch.handle(a, Header::new(Kind::Close, 5, 0).frame(&[]));
        reason(close.word, &body).to_string()
    };
    assert!(refused(switch, "visor://b/0@tcp://here:1").contains("nobody has this name"));
    assert!(refused(switch, "visor://deaf/0@tcp://here:1").contains("does not listen"));
    let full = application(switch, "full/0");
    for id in 1..5 {
        open(switch, a, id, "visor://full/0@tcp://here:1");
    }
    let other = application(switch, "other/0");
    open(switch, other, 1, "visor://full/0@tcp://here:1");
    let (close, body) = next(switch, other).unwrap();
    assert!(reason(close.word, &body).to_string().contains("as many connections"));
    assert!(!hung_up(switch, full) && !hung_up(switch, other));
}

#[test]
fn an_id_that_is_used_again_at_once_is_of_the_new_connection_alone() {
    let switch = &mut switch();
    let ((a, a_id), (b, b_id)) = connected(switch);
    let close = |id| Header::new(Kind::Close, id, 0).frame(&[]);
    // To `a` the first is over, to `b` not yet.
    switch.handle(b, close(b_id));
    assert_eq!(kind(switch, a), Some(Kind::Close));
    switch.handle(a, close(a_id));
    open(switch, a, a_id, "visor://b/0@tcp://here:1");
    while next(switch, b).is_some() {}
    assert_eq!((kind(switch, a), switch.connections.len()), (Some(Kind::Opened), 1));
    switch.gone(a, &GoneReason::Exited);
    assert_eq!(kind(switch, b), Some(Kind::Close));
}

#[test]
fn a_name_is_one_application_s_until_it_has_gone() {
    let switch = &mut switch();
    let first = application(switch, "a/0");
    let second = switch.arrived(identity(7), QUOTA);
    switch.handle(second, Hello { listens: true, name: "a/0" }.frame());
    assert_eq!(kind(switch, second), Some(Kind::Refused));
    switch.gone(first, &GoneReason::Exited);
    switch.handle(second, Hello { listens: true, name: "a/0" }.frame());
    assert_eq!(kind(switch, second), Some(Kind::Welcome));
}

#[test]
fn whoever_is_gone_is_to_be_sent_nothing() {
    let switch = &mut switch();
    let alone = switch.arrived(identity(7), QUOTA);
    switch.handle(alone, Hello { listens: true, name: "alone/0" }.frame());
    assert!(switch.is_ready(), "it is to be welcomed");
    switch.gone(alone, &GoneReason::Exited);
    assert!(!switch.is_ready());
    // Two that end at once: the first one's end is to be told to the second.
    let ((a, _), (b, _)) = connected(switch);
    while switch.next_ready().is_some() {}
    switch.gone(a, &GoneReason::Exited);
    assert!(switch.is_ready());
    switch.gone(b, &GoneReason::Exited);
    assert!(!switch.is_ready() && switch.connections.is_empty());
}

#[test]
fn only_root_and_its_owner_drain_it_and_then_it_takes_nothing_new_and_ends() {
    let switch = &mut switch();
    let ((a, id), (b, b_id)) = connected(switch);
    let ask = |switch: &mut Switch, uid, kind| {
        let key = switch.arrived(identity(uid), QUOTA);
        switch.handle(key, Header::new(kind, 0, 0).frame(&[]));
        let (report, text) = next(switch, key).unwrap();
        assert_eq!(report.kind, Kind::Report);
        switch.gone(key, &GoneReason::Closed);
        String::from_utf8(text).unwrap()
    };
    assert!(ask(switch, 8, Kind::Drain).contains("only root") && !switch.is_draining);
    assert!(ask(switch, 7, Kind::Status).contains("\"connections\":1"));
    assert!(ask(switch, 7, Kind::Drain).contains("1 connections are left"));
    assert!(!switch.is_drained());
    open(switch, a, 2, "visor://b/0@tcp://here:1");
    assert_eq!(kind(switch, a), Some(Kind::Close));
    switch.handle(a, Header::new(Kind::Close, 2, 0).frame(&[]));
    let late = switch.arrived(identity(7), QUOTA);
    switch.handle(late, Hello { listens: true, name: "late/0" }.frame());
    assert_eq!(kind(switch, late), Some(Kind::Refused));
    switch.handle(a, data(id, 10));
    assert_eq!(kind(switch, b), Some(Kind::Data), "what is there goes on");
    switch.handle(a, Header::new(Kind::Close, id, 0).frame(&[]));
    assert!(!switch.is_drained());
    assert_eq!(kind(switch, b), Some(Kind::Close));
    switch.handle(b, Header::new(Kind::Close, b_id, 0).frame(&[]));
    assert_eq!(kind(switch, a), Some(Kind::Close));
    assert!(switch.is_drained());
}

#[test]
fn a_stranger_who_asks_and_takes_no_answer_is_sent_away() {
    for kind in [Kind::Status, Kind::Drain] {
        let switch = &mut switch();
        let key = switch.arrived(identity(7), QUOTA);
        for _ in 0..2 {
            switch.handle(key, Header::new(kind, 0, 0).frame(&[]));
        }
        assert!(hung_up(switch, key) && switch.bytes() == 0);
    }
}

#[test]
fn at_its_deadline_both_ends_are_told_and_so_is_whoever_wanted_it() {
    let switch = &mut switch();
    let ((a, a_id), (b, b_id)) = connected(switch);
    let asks = switch.arrived(identity(7), QUOTA);
    switch.handle(asks, Header::new(Kind::Drain, 0, 250).frame(&[]));
    assert_eq!(switch.next_effect(), Some(Effect::EndWithin(250)));
    assert!(kind(switch, asks).is_none(), "it is told at the end");
    switch.handle(a, data(a_id, 9));
    switch.end();
    assert_eq!(kind(switch, b), Some(Kind::Data), "what was sent before comes before");
    for (party, id) in [(a, a_id), (b, b_id)] {
        let (close, body) = next(switch, party).unwrap();
        assert_eq!((close.kind, close.id), (Kind::Close, id ^ YOURS));
        assert!(reason(close.word, &body).to_string().contains("drained"));
    }
    let (report, body) = next(switch, asks).unwrap();
    let text = String::from_utf8(body).unwrap();
    assert_eq!(
        (report.kind, report.word, &*text),
        (Kind::Report, 1, "ended: 1 connections were left")
    );
    switch.end();
    assert!([a, b, asks].into_iter().all(|it| kind(switch, it).is_none()), "each is told once");
}

/// A daemon whose network takes frames of this length, its application, and a connection from or to another daemon: what each calls it.
fn with_node(
    frame_max: usize,
    opens: bool,
    word: usize,
) -> (Switch, (PartyKey, u32), (PartyKey, u32), Header) {
    let mut switch = switch();
    switch.networks[0].frame_max = frame_max;
    let a = application(&mut switch, "a/0");
    if opens {
        open(&mut switch, a, 1, "visor://b/0@tcp://there:1");
        let Some(Effect::Dial(node, _)) = switch.next_effect() else { panic!("it calls") };
        assert_eq!(kind(&mut switch, node), Some(Kind::Hello));
        let (asked, _) = next(&mut switch, node).unwrap();
        assert_eq!((asked.kind, asked.word), (Kind::Open, frame_max as u64));
        switch.handle(node, Header::new(Kind::Opened, asked.id ^ YOURS, word as u64).frame(&[]));
        let told = next(&mut switch, a).map_or(asked, |(told, _)| told);
        return (switch, (a, 1), (node, asked.id ^ YOURS), told);
    }
    let node = switch.node_arrived(0);
    switch.handle(node, Hello { listens: false, name: "" }.frame());
    switch.handle(node, Header::new(Kind::Open, 1, word as u64).frame(b"a/0"));
    let (told, _) = next(&mut switch, a).unwrap_or((Header::new(Kind::Hello, 0, 0), Vec::new()));
    (switch, (a, told.id ^ YOURS), (node, 1), told)
}

#[test]
fn frames_are_as_long_as_both_networks_take_and_longer_ones_end_their_sender() {
    let (short, middle) = (FRAME_MIN, 20_000);
    for opens in [true, false] {
        for (own, theirs) in [(FRAME_MAX, short), (middle, short), (short, middle)] {
            // Whoever is opened to chooses, and no more than was offered.
            let agreed = own.min(theirs);
            let word = if opens { agreed } else { theirs };
            let (mut switch, app, node, told) = with_node(own, opens, word);
            assert_eq!(told.word, agreed as u64, "{opens}, {own} and {theirs}");
            for (from, to) in [(app, node.0), (node, app.0)] {
                while next(&mut switch, to).is_some() {}
                switch.handle(from.0, data(from.1, agreed - HEADER_LEN));
                assert_eq!(kind(&mut switch, to), Some(Kind::Data));
            }
            for liar in [app, node] {
                let (mut switch, ..) = with_node(own, opens, word);
                switch.handle(liar.0, data(liar.1, agreed - HEADER_LEN + 1));
                assert!(hung_up(&mut switch, liar.0), "{opens}, {own} and {theirs}");
            }
        }
        for word in [0, FRAME_MIN - 1, FRAME_MAX + 1] {
            let (mut switch, _, node, _) = with_node(middle, opens, word);
            assert!(hung_up(&mut switch, node.0), "a length of {word}");
        }
    }
    let (mut switch, _, node, _) = with_node(middle, true, middle + 1);
    assert!(hung_up(&mut switch, node.0), "more than was offered");
}

#[test]
fn frames_without_bytes_count_what_they_cost_and_what_waits_is_a_window_at_most() {
    let switch = &mut switch();
    let ((a, a_id), (b, _)) = connected(switch);
    let mut sent = 0;
    while !hung_up(switch, a) {
        let bytes = switch.bytes();
        assert!(bytes <= u64::from(WINDOW), "{bytes} bytes of {sent} frames wait");
        switch.handle(a, data(a_id, 0));
        sent += 1;
    }
    assert_eq!(sent - 1, WINDOW / cost(HEADER_LEN));
    assert_eq!(kind(switch, b), Some(Kind::Data));
}

#[test]
fn whoever_does_not_hear_that_it_may_send_may_not() {
    let switch = &mut switch();
    let ((a, a_id), (b, b_id)) = connected(switch);
    let mut owed = 0;
    for sent in 0.. {
        assert!(sent < 10_000, "what it is told piles up");
        switch.handle(a, data(a_id, BODY_MAX));
        if hung_up(switch, a) {
            break;
        }
        while kind(switch, b) == Some(Kind::Data) {
            owed += cost(FRAME_MAX);
        }
        if owed >= RETURN_MIN {
            switch.handle(b, Header::new(Kind::Window, b_id, u64::from(owed)).frame(&[]));
            owed = 0;
        }
    }
    assert!(!hung_up(switch, b));
}

#[test]
fn all_who_drain_it_are_told_at_the_end() {
    let switch = &mut switch();
    let ((_, _), (b, _)) = connected(switch);
    let asks = [250, 99].map(|within| {
        let key = switch.arrived(identity(7), QUOTA);
        switch.handle(key, Header::new(Kind::Drain, 0, within).frame(&[]));
        assert_eq!(switch.next_effect(), Some(Effect::EndWithin(within)));
        key
    });
    switch.end();
    for key in asks {
        let (report, text) = next(switch, key).expect("each is told");
        assert_eq!((report.kind, report.word), (Kind::Report, 1));
        assert_eq!(text, b"ended: 1 connections were left");
    }
    assert_eq!(kind(switch, b), Some(Kind::Close));
}

#[test]
fn whoever_drains_it_again_before_it_is_told_is_sent_away() {
    let switch = &mut switch();
    let _pair = connected(switch);
    let key = switch.arrived(identity(7), QUOTA);
    for _ in 0..2 {
        switch.handle(key, Header::new(Kind::Drain, 0, 250).frame(&[]));
    }
    assert!(hung_up(switch, key));
    switch.end();
}

#[test]
fn a_way_to_another_daemon_ends_once_it_has_carried_nothing_for_long() {
    let (mut switch, (a, id), (node, node_id), _) = with_node(FRAME_MAX, true, FRAME_MAX);
    let mut now = Instant::now();
    let wait = |switch: &mut Switch, now: &mut Instant, time: Duration| {
        *now += time;
        switch.handle_timeout(*now);
        switch.next_effect()
    };
    assert_eq!(wait(&mut switch, &mut now, 9 * IDLE), None, "it carries a connection");
    switch.handle(a, Header::new(Kind::Close, id, 0).frame(&[]));
    while next(&mut switch, node).is_some() {}
    assert_eq!(wait(&mut switch, &mut now, 9 * IDLE), None, "the other daemon has not answered");
    switch.handle(node, Header::new(Kind::Close, node_id, 0).frame(&[]));
    assert_eq!(wait(&mut switch, &mut now, IDLE / 2), None);
    assert_eq!(wait(&mut switch, &mut now, IDLE / 2), None);
    open(&mut switch, a, 2, "visor://b/0@tcp://there:1");
    assert_eq!(switch.nodes.values().next(), Some(&node), "it is used again");
    assert_eq!(wait(&mut switch, &mut now, IDLE), None);
    switch.gone(a, &GoneReason::Exited);
    while let Some((header, _)) = next(&mut switch, node) {
        if header.kind == Kind::Close {
            switch.handle(node, Header::new(Kind::Close, header.id ^ YOURS, 0).frame(&[]));
        }
    }
    assert_eq!(wait(&mut switch, &mut now, IDLE / 2), None);
    assert!(switch.next_deadline().is_some_and(|at| at <= now + IDLE));
    let left = wait(&mut switch, &mut now, IDLE + IDLE / 2);
    assert_eq!(left, Some(Effect::Leave(node)));
    assert!(switch.parties.is_empty() && switch.nodes.is_empty());
    assert_eq!(switch.next_deadline(), None);
}

#[test]
fn a_way_by_which_another_daemon_has_come_is_its_own_to_end() {
    let switch = &mut switch();
    let node = switch.node_arrived(0);
    switch.handle(node, Hello { listens: false, name: "" }.frame());
    let now = Instant::now();
    switch.handle_timeout(now);
    switch.handle_timeout(now + 2 * IDLE);
    assert_eq!(switch.next_effect(), None);
}

#[test]
fn ways_that_carry_nothing_make_room_for_another_one() {
    let switch = &mut switch();
    let a = application(switch, "a/0");
    let mut calls = |number: usize| {
        open(switch, a, 1, &format!("visor://b/0@tcp://there:{number}"));
        let effects: Vec<_> = std::iter::from_fn(|| switch.next_effect()).collect();
        let Some(Effect::Dial(node, _)) = effects.last() else { panic!("it calls: {effects:?}") };
        assert_eq!(kind(switch, *node), Some(Kind::Hello));
        let (asked, _) = next(switch, *node).unwrap();
        switch.handle(*node, Header::new(Kind::Close, asked.id ^ YOURS, 4).frame(b"nobody"));
        assert_eq!(kind(switch, a), Some(Kind::Close));
        switch.handle(a, Header::new(Kind::Close, 1, 0).frame(&[]));
        assert_eq!(kind(switch, *node), Some(Kind::Close));
        (effects.len(), *node)
    };
    let (_, first) = calls(1);
    assert!((2..=CALLED_MAX).all(|number| calls(number).0 == 1));
    assert_eq!(calls(CALLED_MAX + 1).0, 2);
    assert!(!switch.parties.contains_key(&first) && switch.nodes.len() == CALLED_MAX);
}
