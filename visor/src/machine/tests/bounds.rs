//! What nobody may hold up for ever, or fill for others: silence, ids that are not there, ends that are not acknowledged.

use std::time::{Duration, Instant};

use hg_na::{GoneReason, Identity};

use super::{
    application, connected, context, data, hung_up, identity, kind, next, open, switch, with_node,
};
use crate::{
    machine::{
        Effect, PartyKey, Switch,
        strangers::{RESERVE, SPARE},
    },
    wire::{FRAME_MAX, Header, Hello, Kind, YOURS, reason},
};

const LONG: Duration = Duration::from_secs(300);

fn close(switch: &mut Switch, from: PartyKey, id: u32) {
    switch.handle(from, Header::new(Kind::Close, id, 0).frame(&[]));
}

/// Looks again and again, for so long.
fn pass(switch: &mut Switch, now: &mut Instant, time: Duration) {
    let end = *now + time;
    while *now < end {
        *now += Duration::from_millis(500);
        switch.handle_timeout(*now);
        switch.make_room();
    }
}

/// Whom it sends away now.
fn sent_away(switch: &mut Switch) -> Vec<PartyKey> {
    let effects = std::iter::from_fn(|| switch.next_effect());
    effects
        .filter_map(|effect| match effect {
            Effect::HangUp(key, _) => Some(key),
            _ => None,
        })
        .collect()
}

#[test]
fn whoever_names_a_connection_that_there_is_not_is_ended_and_reaches_nobody() {
    let frames: [fn(u32) -> hg_na::Message; 3] = [
        |id| data(id, 5),
        |id| Header::new(Kind::Window, id, 1 << 16).frame(&[]),
        |id| Header::new(Kind::Close, id, 0).frame(&[]),
    ];
    for frame in frames {
        for id in [1, 77, 77 | YOURS] {
            let switch = &mut switch();
            let ((a, _), (b, b_id)) = connected(switch);
            // The one id is the other's, of a connection that there is.
            for id in [id, b_id] {
                let c = application(switch, &format!("c/{}", id & 1));
                switch.handle(c, frame(id));
                assert!(hung_up(switch, c), "{id}");
                assert!(kind(switch, c).is_none());
            }
            assert!(kind(switch, a).is_none() && kind(switch, b).is_none());
            assert_eq!(switch.connections.len(), 1);
        }
    }
    let (mut switch, _, (node, id), _) = with_node(FRAME_MAX, true, FRAME_MAX);
    switch.handle(node, data(id ^ 8, 5));
    assert!(hung_up(&mut switch, node), "nor may a daemon");
}

#[test]
fn whoever_has_closed_may_send_nothing_more_and_whoever_was_closed_may_until_it_has_answered() {
    let switch = &mut switch();
    let ((a, a_id), (b, b_id)) = connected(switch);
    close(switch, a, a_id);
    assert_eq!(kind(switch, b), Some(Kind::Close));
    switch.handle(b, data(b_id, 5));
    assert!(!hung_up(switch, b), "it may not have heard of it");
    switch.handle(a, data(a_id, 5));
    assert!(hung_up(switch, a));
}

#[test]
fn while_there_are_places_nobody_is_sent_away_however_long_he_takes_to_say_who_he_is() {
    let switch = &mut switch();
    switch.limits = [1000, 4];
    let crowd: Vec<_> = (0..1000).map(|_| switch.arrived(identity(7), super::QUOTA)).collect();
    pass(switch, &mut Instant::now(), LONG);
    assert!(sent_away(switch).is_empty());
    assert_eq!(switch.next_deadline(), None, "nothing is to be looked at");
    for (number, key) in crowd.into_iter().enumerate() {
        switch.handle(key, Hello { listens: true, name: &format!("a{number}/0") }.frame());
        assert_eq!(kind(switch, key), Some(Kind::Welcome));
    }
}

#[test]
fn where_places_run_short_the_oldest_strangers_make_room_and_nobody_who_waits_for_an_answer() {
    let switch = &mut switch();
    switch.limits = [2, 4];
    let drains = switch.arrived(identity(7), super::QUOTA);
    switch.handle(drains, Header::new(Kind::Drain, 0, 600_000).frame(&[]));
    let asks = switch.arrived(identity(7), super::QUOTA);
    switch.handle(asks, Header::new(Kind::Status, 0, 0).frame(&[]));
    let places = usize::try_from(2 + SPARE - RESERVE).unwrap();
    let arrive = |switch: &mut Switch| switch.arrived(identity(7), super::QUOTA);
    let crowd: Vec<_> = (2..places).map(|_| arrive(switch)).collect();
    switch.node_arrived(0);
    switch.make_room();
    assert!(sent_away(switch).is_empty(), "there are places, and daemons have none of them");
    let late: Vec<_> = (0..7).map(|_| arrive(switch)).collect();
    switch.make_room();
    assert_eq!(sent_away(switch), crowd[..7]);
    switch.make_room();
    assert!(sent_away(switch).is_empty(), "no more than have to");
    assert_eq!(switch.next_ready(), Some(asks));
    assert_eq!(kind(switch, asks), Some(Kind::Report));
    arrive(switch);
    switch.make_room();
    assert_eq!(sent_away(switch), [asks], "it has its answer");
    assert!(late.iter().chain([&drains]).all(|key| switch.parties.contains_key(key)));
}

#[test]
fn a_drain_waits_for_an_application_that_answers_no_end_and_a_deadline_ends_that() {
    for takes in [true, false] {
        let switch = &mut switch();
        let ((a, a_id), (b, b_id)) = connected(switch);
        close(switch, a, a_id);
        if takes {
            assert_eq!(kind(switch, b), Some(Kind::Close));
        } else {
            let outgoing = switch.pop(b).unwrap();
            switch.put_back(b, outgoing);
        }
        let asks = switch.arrived(identity(7), super::QUOTA);
        switch.handle(asks, Header::new(Kind::Drain, 0, 600_000).frame(&[]));
        assert_eq!(switch.next_effect(), Some(Effect::EndWithin(600_000)));
        pass(switch, &mut Instant::now(), LONG);
        assert!(sent_away(switch).is_empty(), "it may be busy");
        assert!(!switch.is_drained());
        if takes {
            close(switch, b, b_id);
            assert_eq!(kind(switch, a), Some(Kind::Close));
            assert!(switch.is_drained());
        }
        switch.end();
        let (told, _) = next(switch, asks).unwrap();
        assert_eq!((told.kind, told.word), (Kind::Report, u64::from(!takes)));
    }
}

#[test]
fn applications_are_as_many_as_may_be_and_whoever_asks_is_answered_all_the_same() {
    let switch = &mut switch();
    switch.limits = [2, 4];
    let a = application(switch, "a/0");
    let _b = application(switch, "b/0");
    let third = switch.arrived(identity(7), super::QUOTA);
    switch.handle(third, Hello { listens: true, name: "c/0" }.frame());
    let (told, text) = next(switch, third).unwrap();
    assert_eq!(told.kind, Kind::Refused);
    assert!(String::from_utf8(text).unwrap().contains("2 applications"));
    let asks = switch.arrived(identity(7), super::QUOTA);
    switch.handle(asks, Header::new(Kind::Status, 0, 0).frame(&[]));
    assert_eq!(kind(switch, asks), Some(Kind::Report));
    switch.gone(a, &GoneReason::Exited);
    switch.handle(third, Hello { listens: true, name: "c/0" }.frame());
    assert_eq!(kind(switch, third), Some(Kind::Welcome));
}

#[test]
fn an_application_that_answers_no_end_fills_its_own_quota_and_nothing_between_daemons() {
    let (mut switch, (a, _), (node, _), _) = with_node(FRAME_MAX, true, FRAME_MAX);
    let switch = &mut switch;
    for id in 2..=4 {
        open(switch, a, id, "visor://nobody/0@tcp://there:1");
        let asked = next(switch, node).unwrap().0;
        close(switch, node, asked.id ^ YOURS);
        assert!(kind(switch, node).is_none(), "what was sent before has to leave first");
        assert_eq!(kind(switch, a), Some(Kind::Close));
        assert_eq!(
            next(switch, node).map(|(it, _)| (it.kind, it.id)),
            Some((Kind::Close, asked.id))
        );
    }
    assert_eq!(switch.parties[&node].chosen, [0, 1]);
    assert_eq!(switch.parties[&a].chosen, [4, 0]);
    open(switch, a, 5, "visor://nobody/0@tcp://there:1");
    assert!(hung_up(switch, a), "more than its quota");
}

/// Opens a connection to an application of this node; whether it is there, or why its process may have no more.
fn opens(switch: &mut Switch, from: PartyKey, id: u32, name: &str) -> bool {
    open(switch, from, id, &format!("visor://{name}/0@tcp://here:1"));
    let (told, body) = next(switch, from).unwrap();
    if told.kind == Kind::Opened {
        return true;
    }
    let why = reason(told.word, &body).to_string();
    assert!(told.kind == Kind::Close && why.contains("as many connections"), "{told:?}: {why}");
    close(switch, from, id);
    false
}

#[test]
fn contexts_of_a_process_have_one_quota_and_another_process_has_its_own() {
    let switch = &mut switch();
    let process = |pid| Identity::process(pid, 7);
    let [t, u] = ["t/0", "u/0"].map(|name| application(switch, name));
    let [a, b] = ["a/0", "b/0"].map(|name| context(switch, process(5), name));
    assert!((1..=3).all(|id| opens(switch, a, id, "t")) && opens(switch, b, 1, "u"));
    assert!(!opens(switch, b, 2, "u") && !opens(switch, a, 4, "u"), "four are as many as may be");
    let other = context(switch, process(6), "other/0");
    assert!(opens(switch, other, 1, "u"), "it is another process");
    let other = context(switch, Identity::process(5, 8), "another/0");
    assert!(opens(switch, other, 1, "u"), "so is one of another user");
    // What it closes is free once both ends have said so; what a context had that goes is free at once.
    while next(switch, t).is_some() {}
    close(switch, a, 1);
    assert!(!opens(switch, b, 2, "u"));
    let (told, _) = next(switch, t).unwrap();
    close(switch, t, told.id ^ YOURS);
    assert_eq!(kind(switch, a), Some(Kind::Close));
    assert!(opens(switch, b, 2, "u") && !opens(switch, b, 3, "u"));
    switch.gone(a, &GoneReason::Exited);
    while next(switch, t).is_some() {}
    assert!(opens(switch, b, 3, "t") && opens(switch, b, 4, "t"));
    assert!([a, b, t, u].into_iter().all(|it| !hung_up(switch, it)));
}

#[test]
fn contexts_of_a_process_accept_as_many_connections_as_one_may() {
    let switch = &mut switch();
    for name in ["a/0", "b/0"] {
        context(switch, Identity::process(5, 7), name);
    }
    let openers = ["c/0", "d/0"].map(|name| application(switch, name));
    assert!((1..=3).all(|id| opens(switch, openers[0], id, "a")));
    assert!(opens(switch, openers[1], 1, "b"));
    assert!(!opens(switch, openers[1], 2, "b") && !opens(switch, openers[0], 4, "a"));
}
