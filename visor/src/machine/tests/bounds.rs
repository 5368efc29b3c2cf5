//! What nobody may hold up for ever, or fill for others: silence, ids that are not there, ends that are not acknowledged.

use std::time::{Duration, Instant};

use hg_na::GoneReason;

use super::{application, connected, data, hung_up, identity, kind, next, open, switch, with_node};
use crate::{
    machine::{Effect, PartyKey, Switch},
    wire::{FRAME_MAX, Header, Hello, Kind, YOURS},
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
fn whoever_does_not_say_who_it_is_is_sent_away_in_time() {
    let switch = &mut switch();
    let silent = switch.arrived(identity(7), super::QUOTA);
    let refused = switch.arrived(identity(7), super::QUOTA);
    let a = application(switch, "a/0");
    switch.handle(refused, Hello { listens: true, name: "a/0" }.frame());
    assert_eq!(kind(switch, refused), Some(Kind::Refused));
    while switch.next_ready().is_some() {}
    let mut now = Instant::now();
    pass(switch, &mut now, Duration::from_secs(10));
    assert!(sent_away(switch).is_empty(), "it has some time");
    assert!(switch.next_deadline().is_some_and(|at| at <= now + LONG), "it is looked at again");
    pass(switch, &mut now, LONG);
    assert_eq!(sent_away(switch), [silent, refused]);
    assert!(switch.parties.contains_key(&a) && switch.parties.len() == 1);
    assert_eq!(switch.next_deadline(), None);
}

#[test]
fn whoever_waits_for_a_drain_to_end_waits_as_long_as_he_said() {
    let switch = &mut switch();
    let _pair = connected(switch);
    let asks = switch.arrived(identity(7), super::QUOTA);
    switch.handle(asks, Header::new(Kind::Drain, 0, 600_000).frame(&[]));
    pass(switch, &mut Instant::now(), LONG);
    assert!(sent_away(switch).is_empty());
    switch.end();
    assert_eq!(kind(switch, asks), Some(Kind::Report));
}

#[test]
fn of_a_crowd_that_says_nothing_the_oldest_make_room() {
    let switch = &mut switch();
    let crowd: Vec<_> = (0..1000).map(|_| switch.arrived(identity(7), super::QUOTA)).collect();
    let mut now = Instant::now();
    switch.handle_timeout(now);
    assert!(sent_away(switch).is_empty(), "they have just come");
    pass(switch, &mut now, Duration::from_secs(5));
    let away = sent_away(switch);
    assert!(away.len() > 700 && away == crowd[..away.len()], "{}", away.len());
    let late = crowd[999];
    switch.handle(late, Hello { listens: true, name: "late/0" }.frame());
    assert_eq!(kind(switch, late), Some(Kind::Welcome));
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
fn an_application_that_does_not_answer_an_end_holds_up_no_drain() {
    for takes in [true, false] {
        let switch = &mut switch();
        let ((a, a_id), (b, _)) = connected(switch);
        let c = application(switch, "c/0");
        open(switch, c, 1, "visor://a/0@tcp://here:1");
        assert_eq!((kind(switch, a), kind(switch, c)), (Some(Kind::Incoming), Some(Kind::Opened)));
        close(switch, a, a_id);
        if takes {
            assert_eq!(kind(switch, b), Some(Kind::Close));
        } else {
            let outgoing = switch.pop(b).unwrap();
            switch.put_back(b, outgoing);
        }
        let mut now = Instant::now();
        pass(switch, &mut now, LONG);
        assert!(sent_away(switch).is_empty(), "it may be busy");
        let asks = switch.arrived(identity(7), super::QUOTA);
        switch.handle(asks, Header::new(Kind::Drain, 0, 0).frame(&[]));
        assert_eq!(kind(switch, asks), Some(Kind::Report));
        switch.gone(asks, &GoneReason::Closed);
        pass(switch, &mut now, Duration::from_secs(30));
        assert!(sent_away(switch).is_empty(), "it has some time");
        assert!(switch.next_deadline().is_some(), "it is looked at again");
        pass(switch, &mut now, LONG);
        assert_eq!(sent_away(switch), [b]);
        assert_eq!(kind(switch, a), Some(Kind::Close), "its peer is answered");
        assert!(!switch.is_drained(), "what is live is waited for");
        switch.gone(c, &GoneReason::Exited);
        assert_eq!(kind(switch, a), Some(Kind::Close));
        close(switch, a, 1 | YOURS);
        assert!(switch.is_drained());
    }
}

#[test]
fn another_node_s_application_that_does_not_answer_holds_up_no_drain_and_its_daemon_stays() {
    let (mut switch, (a, id), (node, _), _) = with_node(FRAME_MAX, true, FRAME_MAX);
    let switch = &mut switch;
    close(switch, a, id);
    while next(switch, node).is_some() {}
    let asks = switch.arrived(identity(7), super::QUOTA);
    switch.handle(asks, Header::new(Kind::Drain, 0, 0).frame(&[]));
    while next(switch, asks).is_some() {}
    assert!(!switch.is_drained());
    pass(switch, &mut Instant::now(), LONG);
    assert!(switch.is_drained() && switch.parties.contains_key(&node));
    assert!(!sent_away(switch).contains(&node));
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
