//! Daemons that are called, and connections that wait until they may be.

use std::time::Instant;

use hg_na::{ADDRESS_MAX, GoneReason};

use super::{application, identity, kind, next, open, owning, switch};
use crate::{
    address::NAME_MAX,
    machine::{Effect, IDLE, Network, PartyKey, Switch},
    wire::{FRAME_MAX, Header, Hello, Kind, YOURS, reason},
};

/// Whom it calls, by their addresses.
fn calls(switch: &mut Switch) -> Vec<(PartyKey, String)> {
    let dialled = |effect| match effect {
        Effect::Dial(key, address) => (key, address.to_string()),
        other => panic!("{other:?}"),
    };
    std::iter::from_fn(|| switch.next_effect()).map(dialled).collect()
}

#[test]
fn of_several_networks_the_first_that_both_nodes_are_in_is_used_and_each_own_address_is_here() {
    let switch = &mut owning(&["tcp://here:1", "verbs://here"]);
    switch.networks[1].frame_max = 20_000;
    let a = application(switch, "a/0");
    // What it opens, whom its daemon calls, and how long frames are there.
    for (id, (nodes, called, len)) in (1..).zip([
        ("verbs://x~tcp://x", "tcp://x", FRAME_MAX),
        ("ofi+tcp://y~verbs://y", "verbs://y", 20_000),
        ("ofi+tcp://z~ofi+shm://z", "ofi+tcp://z", FRAME_MAX),
    ]) {
        open(switch, a, id, &format!("visor://b/0@{nodes}"));
        let all = calls(switch);
        let [(node, address)] = &all[..] else { panic!("{all:?}") };
        assert_eq!((address.as_str(), kind(switch, *node)), (called, Some(Kind::Hello)));
        let (asked, _) = next(switch, *node).unwrap();
        assert_eq!((asked.kind, asked.word), (Kind::Open, len as u64));
    }
    let b = application(switch, "b/0");
    for (id, nodes) in
        (1..).zip(["verbs://here", "ofi+tcp://x~verbs://here", "tcp://here:1~verbs://here"])
    {
        open(switch, b, id, &format!("visor://a/0@{nodes}"));
        assert_eq!((kind(switch, a), calls(switch)), (Some(Kind::Incoming), Vec::new()));
        assert_eq!(kind(switch, b), Some(Kind::Opened));
    }
}

#[test]
fn a_daemon_that_has_come_is_told_how_long_frames_are_in_its_network() {
    let switch = &mut owning(&["tcp://here:1", "verbs://here"]);
    switch.networks[1].frame_max = 20_000;
    let a = application(switch, "a/0");
    for (network, len) in [(0, FRAME_MAX), (1, 20_000)] {
        let node = switch.node_arrived(network);
        switch.handle(node, Hello { listens: false, name: "" }.frame());
        switch.handle(node, Header::new(Kind::Open, 1, FRAME_MAX as u64).frame(b"a/0"));
        let told = [a, node].map(|to| next(switch, to).map(|(it, _)| (it.kind, it.word)));
        let len = len as u64;
        assert_eq!(told, [Some((Kind::Incoming, len)), Some((Kind::Opened, len))]);
    }
}

#[test]
fn a_daemon_that_was_called_and_opens_back_is_told_how_long_frames_are_in_its_network() {
    let switch = &mut owning(&["tcp://here:1", "verbs://here"]);
    switch.networks[1].frame_max = 20_000;
    let a = application(switch, "a/0");
    open(switch, a, 1, "visor://b/0@verbs://x");
    let (node, _) = calls(switch)[0];
    assert_eq!([kind(switch, node), kind(switch, node)], [Some(Kind::Hello), Some(Kind::Open)]);
    switch.handle(node, Header::new(Kind::Open, 1, FRAME_MAX as u64).frame(b"a/0"));
    let told = [a, node].map(|to| next(switch, to).map(|(it, _)| (it.kind, it.word)));
    assert_eq!(told, [Some((Kind::Incoming, 20_000)), Some((Kind::Opened, 20_000))]);
}

#[test]
fn a_node_with_an_equal_address_in_a_network_apart_is_another_one() {
    let switch = &mut owning(&["verbs://here", "tcp://192.168.0.1:1"]);
    let a = application(switch, "a/0");
    open(switch, a, 1, "visor://a/0@verbs://there~tcp://192.168.0.1:1");
    let all = calls(switch);
    assert_eq!(all.iter().map(|(_, address)| &**address).collect::<Vec<_>>(), ["verbs://there"]);
}

#[test]
fn a_daemon_whose_applications_could_not_be_told_their_addresses_is_not_opened() {
    let made = |address: &str| {
        let network = Network { address: address.parse().unwrap(), frame_max: FRAME_MAX };
        Switch::new(vec![network], None)
    };
    let [name, prefix] = ["n".repeat(NAME_MAX), "tcp://".to_owned()];
    let rest = ADDRESS_MAX - format!("visor://{name}/255@{prefix}").len();
    let longest = format!("{prefix}{}", "x".repeat(rest));
    let switch = &mut made(&longest).unwrap();
    assert_eq!(application(switch, &format!("{name}/255")), 1, "it is welcome");
    for (wrong, why) in [(format!("{longest}x"), "too long"), ("tcp://a~b".to_owned(), "'~'")] {
        let refused = made(&wrong).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn an_application_has_so_many_daemons_called_that_do_not_answer_and_the_next_wait_their_turn() {
    let switch = &mut switch();
    switch.unanswered_max = 2;
    let (a, b) = (application(switch, "a/0"), application(switch, "b/0"));
    for id in 1..=4 {
        open(switch, a, id, &there(id));
    }
    let called = calls(switch);
    assert_eq!(called.len(), 2, "the others wait: {called:?}");
    switch.handle(a, Header::new(Kind::Close, 3, 0).frame(&[]));
    assert_eq!(next(switch, a).map(|(it, _)| (it.kind, it.id)), Some((Kind::Close, 3 | YOURS)));
    // Another application calls whomever it likes, also one for whom the first waits.
    open(switch, b, 1, &there(4));
    open(switch, b, 2, &there(1));
    let other = calls(switch);
    assert_eq!((other.len(), &*other[0].1), (1, "tcp://there:4"));
    // One answers: further connections there wait for nothing, and the next one has its turn.
    let (node, hello) = (called[0].0, kind(switch, called[0].0));
    assert_eq!(hello, Some(Kind::Hello));
    let (asked, _) = next(switch, node).unwrap();
    assert_eq!(asked.kind, Kind::Open);
    assert_eq!(kind(switch, node), Some(Kind::Open), "the other application's");
    let word = asked.word;
    switch.handle(node, Header::new(Kind::Opened, asked.id ^ YOURS, word).frame(&[]));
    assert_eq!(kind(switch, a), Some(Kind::Opened));
    assert_eq!(calls(switch), [], "whom it waits for was called already");
    assert_eq!(
        (kind(switch, other[0].0), kind(switch, other[0].0)),
        (Some(Kind::Hello), Some(Kind::Open))
    );
    assert_eq!(kind(switch, other[0].0), Some(Kind::Open), "it was asked for both");
    open(switch, a, 5, &there(1));
    assert_eq!(kind(switch, node), Some(Kind::Open), "it has answered");
    // One is not there.
    switch.handle(a, Header::new(Kind::Close, 5, 0).frame(&[]));
    switch.gone(called[1].0, &GoneReason::TimedOut);
    assert_eq!(kind(switch, a), Some(Kind::Close));
    switch.gone(a, &GoneReason::Exited);
}

#[test]
fn a_daemon_that_has_not_answered_is_left_once_nobody_wants_it_any_more() {
    let switch = &mut switch();
    let a = application(switch, "a/0");
    open(switch, a, 1, "visor://x/0@tcp://there:1");
    let node = calls(switch)[0].0;
    let now = Instant::now();
    switch.handle_timeout(now);
    switch.handle_timeout(now + 2 * IDLE);
    assert_eq!(switch.next_effect(), None, "it is waited for");
    switch.gone(a, &GoneReason::Exited);
    assert_eq!(switch.next_effect(), Some(Effect::Leave(node)), "no time has to pass");
    assert!(switch.parties.is_empty() && switch.connections.is_empty());
}

#[test]
fn a_call_of_an_application_that_has_died_goes_on_for_another_one_that_wants_it() {
    let (mut switch, a, called) = with_calls(1..=2);
    let switch = &mut switch;
    let b = application(switch, "b/0");
    open(switch, b, 1, &there(2));
    switch.gone(a, &GoneReason::Exited);
    assert_eq!(left_and_called(switch), (vec![called[0].0], vec![]));
    switch.gone(b, &GoneReason::Exited);
    assert_eq!(left_and_called(switch), (vec![called[1].0], vec![]));
}

#[test]
fn what_waits_is_looked_through_only_when_something_may_have_its_turn() {
    let (mut switch, a, _) = with_calls(1..=2);
    let switch = &mut switch;
    open(switch, a, 3, &there(3));
    assert!(switch.callers.is_empty(), "both calls are wanted");
    open(switch, a, 4, &there(1));
    close(switch, a, 4);
    assert!(switch.callers.is_empty(), "they still are");
    close(switch, a, 1);
    assert!(!switch.callers.is_empty());
    assert_eq!(left_and_called(switch).1, ["tcp://there:3"]);
}

#[test]
fn what_is_to_be_opened_at_another_spelling_of_an_address_is_opened_where_that_is_known() {
    let switch = &mut switch();
    let (a, b) = (application(switch, "a/0"), application(switch, "b/0"));
    open(switch, a, 1, "visor://x/0@tcp://there:1/0");
    let known = calls(switch)[0].0;
    while next(switch, known).is_some() {}
    for id in 1..=3 {
        open(switch, b, id, "visor://y/0@tcp://there:1");
    }
    switch.handle(b, Header::new(Kind::Close, 2, 0).frame(&[]));
    let other = calls(switch)[0].0;
    switch.is_known(other, known);
    assert!(!switch.parties.contains_key(&other) && switch.nodes.len() == 1);
    assert_eq!(next(switch, b).map(|(it, _)| (it.kind, it.id)), Some((Kind::Close, 2 | YOURS)));
    for id in [1, 3] {
        let (asked, name) = next(switch, known).unwrap();
        assert_eq!((asked.kind, &*name), (Kind::Open, &b"y/0"[..]));
        let opened = Header::new(Kind::Opened, asked.id ^ YOURS, asked.word);
        switch.handle(known, opened.frame(&[]));
        assert_eq!(
            next(switch, b).map(|(it, _)| (it.kind, it.id)),
            Some((Kind::Opened, id | YOURS))
        );
    }
    switch.gone(known, &GoneReason::Exited);
    let ended = std::iter::from_fn(|| kind(switch, b)).filter(|it| *it == Kind::Close).count();
    assert_eq!(ended, 2);
    [a, b].into_iter().for_each(|it| switch.gone(it, &GoneReason::Exited));
    assert!(switch.parties.is_empty() && switch.connections.is_empty() && switch.bytes() == 0);
}

/// A switch that calls two daemons for an application at a time, and an application that has these opened.
fn with_calls(ids: std::ops::RangeInclusive<u32>) -> (Switch, PartyKey, Vec<(PartyKey, String)>) {
    let mut switch = switch();
    switch.unanswered_max = 2;
    let a = application(&mut switch, "a/0");
    ids.for_each(|id| open(&mut switch, a, id, &there(id)));
    let called = calls(&mut switch);
    assert_eq!(called.len(), 2, "the others wait: {called:?}");
    (switch, a, called)
}

fn there(number: u32) -> String {
    format!("visor://x/0@tcp://there:{number}")
}

fn close(switch: &mut Switch, from: PartyKey, id: u32) {
    switch.handle(from, Header::new(Kind::Close, id, 0).frame(&[]));
}

/// A daemon that was called takes the first connection that it is asked for.
fn answers(switch: &mut Switch, node: PartyKey) {
    assert_eq!(kind(switch, node), Some(Kind::Hello));
    let (asked, _) = next(switch, node).unwrap();
    assert_eq!(asked.kind, Kind::Open);
    switch.handle(node, Header::new(Kind::Opened, asked.id ^ YOURS, asked.word).frame(&[]));
}

/// What is to be done: whom it leaves, and whom it calls.
fn left_and_called(switch: &mut Switch) -> (Vec<PartyKey>, Vec<String>) {
    let (mut left, mut called) = (Vec::new(), Vec::new());
    while let Some(effect) = switch.next_effect() {
        match effect {
            Effect::Leave(key) => left.push(key),
            Effect::Dial(_, address) => called.push(address.to_string()),
            other => panic!("{other:?}"),
        }
    }
    left.sort_unstable();
    (left, called)
}

#[test]
fn calls_that_an_application_wants_no_more_make_room_for_its_next_one() {
    let (mut switch, a, called) = with_calls(1..=2);
    let switch = &mut switch;
    [1, 2].into_iter().for_each(|id| close(switch, a, id));
    open(switch, a, 3, &there(3));
    let both = called.iter().map(|it| it.0).collect();
    assert_eq!(left_and_called(switch), (both, vec!["tcp://there:3".to_owned()]));
    for id in [1, 2] {
        let (told, _) = next(switch, a).unwrap();
        assert_eq!((told.kind, told.id), (Kind::Close, id | YOURS));
    }
    open(switch, a, 4, &there(4));
    open(switch, a, 5, &there(5));
    assert_eq!(left_and_called(switch), (vec![], vec!["tcp://there:4".to_owned()]));
    close(switch, a, 4);
    let (left, called) = left_and_called(switch);
    assert_eq!((left.len(), called), (1, vec!["tcp://there:5".to_owned()]), "what waited");
}

#[test]
fn a_call_that_is_wanted_no_more_makes_room_at_once_after_another_one_was_answered() {
    let (mut switch, a, called) = with_calls(1..=4);
    let switch = &mut switch;
    answers(switch, called[0].0);
    close(switch, a, 2);
    let both = [3, 4].map(|number| format!("tcp://there:{number}")).to_vec();
    assert_eq!(left_and_called(switch), (vec![called[1].0], both));
}

#[test]
fn calls_that_only_others_want_are_counted_for_those_alone() {
    let (mut switch, a, _) = with_calls(1..=3);
    let switch = &mut switch;
    let b = application(switch, "b/0");
    [1, 2].into_iter().for_each(|id| open(switch, b, id, &there(id)));
    open(switch, a, 4, &there(1));
    close(switch, a, 1);
    assert_eq!(left_and_called(switch), (vec![], vec![]), "it wants another connection there");
    close(switch, a, 4);
    assert_eq!(left_and_called(switch), (vec![], vec!["tcp://there:3".to_owned()]));
    open(switch, b, 3, &there(5));
    assert_eq!(left_and_called(switch), (vec![], vec![]), "they are counted for the other one");
}

#[test]
fn what_waits_behind_calls_in_vain_is_opened_once_its_daemon_has_answered_somebody_else() {
    let (mut switch, a, _) = with_calls(1..=4);
    let switch = &mut switch;
    let b = application(switch, "b/0");
    open(switch, b, 1, &there(4));
    let node = calls(switch)[0].0;
    answers(switch, node);
    assert_eq!(calls(switch), [], "the third one waits");
    assert_eq!(kind(switch, node), Some(Kind::Open), "it has answered");
    close(switch, a, 4);
    assert_eq!(kind(switch, node), Some(Kind::Close));
}

#[test]
fn a_daemon_that_is_drained_refuses_what_waits_and_calls_nobody_any_more() {
    let (mut switch, a, called) = with_calls(1..=3);
    let switch = &mut switch;
    let asks = switch.arrived(identity(7), super::QUOTA);
    switch.handle(asks, Header::new(Kind::Drain, 0, 0).frame(&[]));
    let (told, body) = next(switch, a).expect("it is told");
    assert_eq!((told.kind, told.id), (Kind::Close, 3 | YOURS));
    assert!(reason(told.word, &body).to_string().contains("being drained"));
    answers(switch, called[0].0);
    assert_eq!(kind(switch, a), Some(Kind::Opened), "it was called before");
    switch.gone(called[1].0, &GoneReason::TimedOut);
    assert_eq!(calls(switch), []);
}
