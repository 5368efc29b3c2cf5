//! Messages of which the rest does not come.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use hg_na::{Completion, Context as _, GoneReason, Peer};
use hg_na_link::{
    Header, Kind, Record, exchange,
    frame::{CONTROL_MAX, LANES, MESSAGE_MAX},
};
use hg_na_memory::ForkGuard;
use hg_na_parts::regions::Regions;
use watchdog::in_time;

use crate::nowhere::{End, Name, Raw, named, open, round_at};

/// What [`open`] allows.
const MOST: usize = 1 << 20;

/// A frame of a peer's comes, with so many bytes of a message.
fn comes(end: &mut End, from: Peer, (kind, more): (Kind, bool), len: usize) {
    let regions = Regions::new(Arc::new(ForkGuard::new().unwrap())).unwrap();
    let header = Header { kind, more, tag: 1, taken: [0; LANES] };
    let link = end.links.find(from).unwrap();
    let came = exchange::take(link, &regions, &header, &vec![0; len]);
    end.came(from.index(), came);
}

fn in_part(end: &End) -> usize {
    end.links.iter().map(|link| link.way.lanes.held().1).sum()
}

/// So many peers, by handle.
fn peers(end: &mut End, name: &str, count: usize) -> BTreeMap<u32, (Peer, Raw)> {
    let mut all = BTreeMap::new();
    for _ in 0..count {
        let mut raw = Raw::connect(name);
        assert_eq!(raw.hear(end), Record::Welcome(Name));
        let new = end.connected().into_iter().find(|it| !all.contains_key(&it.index())).unwrap();
        all.insert(new.index(), (new, raw));
    }
    all
}

#[test]
fn of_messages_that_do_not_come_on_no_more_is_kept_than_may_be_held() {
    let name = named("parts");
    let mut end = open(&name, 1000);
    // Once more with others: who was sent away, or has gone, counts no more.
    for _ in 0..2 {
        let mut all = peers(&mut end, &name, 50);
        let good = *all.keys().nth(7).unwrap();
        for (peer, _) in all.values() {
            comes(&mut end, *peer, (Kind::Unexpected, true), MESSAGE_MAX - 1);
            comes(&mut end, *peer, (Kind::Expected, true), MESSAGE_MAX - 1);
            comes(&mut end, *peer, (Kind::Control, true), CONTROL_MAX - 1);
        }
        assert!(in_part(&end) > MOST + MOST / 4);
        let (mut now, mut gone) = (Instant::now(), Vec::new());
        for _ in 0..4 {
            // Whose message comes on stays, however much it takes.
            let (peer, _) = &all[&good];
            comes(&mut end, *peer, (Kind::Expected, false), 1);
            comes(&mut end, *peer, (Kind::Expected, true), MESSAGE_MAX - 1);
            now += Duration::from_secs(1);
            gone.extend(ended(round_at(&mut end, now)));
        }
        assert!(in_part(&end) <= MOST, "{} bytes are kept", in_part(&end));
        let of_one = 2 * MESSAGE_MAX + CONTROL_MAX - 3;
        assert_eq!(gone.len(), 50 - MOST / of_one, "no more than it takes");
        for (peer, reason) in gone {
            assert!(peer.index() != good, "its message came on");
            let is_said = matches!(&reason, GoneReason::Exhausted(why) if why.contains("memory"));
            assert!(is_said, "{reason}");
            let (_, mut raw) = all.remove(&peer.index()).unwrap();
            assert!(matches!(raw.heard(), Some(Record::Refuse(why)) if why.contains("memory")));
        }
        assert!(end.may_sleep() && end.next_deadline().is_none(), "there is room again");
        for (peer, _) in all.into_values() {
            end.forget(peer);
        }
        assert_eq!((end.links.len(), in_part(&end)), (0, 0));
        round_at(&mut end, now);
    }
}

#[test]
fn parts_that_the_next_frame_ends_send_nobody_away() {
    let name = named("whole");
    let mut end = open(&name, 1000);
    let all = peers(&mut end, &name, 50);
    let mut now = Instant::now();
    for _ in 0..10 {
        for more in [true, false] {
            for (peer, _) in all.values() {
                let len = if more { MESSAGE_MAX - 1 } else { 1 };
                comes(&mut end, *peer, (Kind::Unexpected, more), len);
                comes(&mut end, *peer, (Kind::Expected, more), len);
            }
            now += Duration::from_millis(500);
            round_at(&mut end, now);
        }
    }
    assert_eq!(end.connected().len(), 50);
}

fn ended(done: Vec<Completion>) -> impl Iterator<Item = (Peer, GoneReason)> {
    done.into_iter().filter_map(|it| match it {
        Completion::HungUp { peer, reason } => Some((peer, reason)),
        _ => None,
    })
}

#[test]
fn what_waits_for_admission_counts_with_messages_that_do_not_come_on() {
    let name = named("waits");
    let mut end = open(&name, 1000);
    let all = peers(&mut end, &name, 33);
    end.set_admission(false);
    let peers: Vec<Peer> = all.values().map(|(peer, _)| *peer).collect();
    let (asks, stand) = peers.split_first().unwrap();
    for peer in &stand[..MOST / (2 * MESSAGE_MAX)] {
        comes(&mut end, *peer, (Kind::Unexpected, true), MESSAGE_MAX - 1);
        comes(&mut end, *peer, (Kind::Expected, true), MESSAGE_MAX - 1);
    }
    assert!(end.next_deadline().is_none(), "just under it");
    let mut now = Instant::now();
    for _ in 0..50 {
        comes(&mut end, *asks, (Kind::Unexpected, false), MESSAGE_MAX);
    }
    for _ in 0..3 {
        now += Duration::from_secs(1);
        round_at(&mut end, now);
    }
    let kept = in_part(&end) as u64 + end.links.held();
    assert!(kept <= MOST as u64, "{kept} bytes are kept");
    assert!(end.connected().contains(asks), "it takes less than may be held");
}

#[test]
fn who_may_not_send_the_rest_of_a_message_is_not_sent_away() {
    let name = named("withheld");
    let mut end = open(&name, 1000);
    let all = peers(&mut end, &name, 72);
    end.set_admission(false);
    let peers: Vec<Peer> = all.values().map(|(peer, _)| *peer).collect();
    let ([waits, stands], others) = peers.split_first_chunk().unwrap();
    // Requests of five frames: the last of each waits for admission, and what is told of the others is not enough for the next one.
    let mut now = Instant::now();
    for peer in [*waits, *stands] {
        let blocks = |end: &mut End| end.links.find(peer).unwrap().way.lanes.are_kept_in_part();
        let mut frames = (0..5 * 64).map(|frame| frame % 5 < 4);
        while !blocks(&mut end) {
            let more = frames.next().expect("a window of requests");
            comes(&mut end, peer, (Kind::Unexpected, more), 100);
            round_at(&mut end, now);
        }
    }
    // This one might send the rest of another message.
    comes(&mut end, *stands, (Kind::Expected, true), 100);
    let mut gone = Vec::new();
    for _ in 0..4 {
        come_on(&mut end, others);
        now += Duration::from_secs(1);
        gone.extend(ended(round_at(&mut end, now)));
    }
    let [(peer, GoneReason::Exhausted(_))] = &gone[..] else { panic!("{gone:?}") };
    assert_eq!(peer, stands);
    // It goes on when it has credits.
    end.set_admission(true);
    let mut done = round_at(&mut end, now);
    comes(&mut end, *waits, (Kind::Unexpected, false), 1);
    done.extend(round_at(&mut end, now));
    let is_its =
        |it: &&Completion| matches!(it, Completion::Unexpected { from, .. } if from == waits);
    assert!(done.iter().filter(is_its).count() > 33);
}

/// Each of these ends a long message, and begins another one.
fn come_on(end: &mut End, all: &[Peer]) {
    for peer in all {
        comes(end, *peer, (Kind::Expected, false), 1);
        comes(end, *peer, (Kind::Expected, true), MESSAGE_MAX - 1);
    }
}

#[test]
fn who_ends_short_messages_is_not_sent_away() {
    let name = named("short");
    let mut end = open(&name, 1000);
    let all = peers(&mut end, &name, 70);
    let peers: Vec<Peer> = all.values().map(|(peer, _)| *peer).collect();
    let (short, others) = peers.split_first().unwrap();
    let mut now = Instant::now();
    for _ in 0..4 {
        come_on(&mut end, others);
        comes(&mut end, *short, (Kind::Expected, false), 1);
        comes(&mut end, *short, (Kind::Expected, true), 10);
        now += Duration::from_secs(1);
        round_at(&mut end, now);
    }
    assert!(in_part(&end) > MOST, "memory was not scarce");
    assert_eq!(end.connected().len(), peers.len());
}

#[test]
fn who_drains_ends_for_his_own_reason_however_much_he_leaves_in_part() {
    let name = named("drains");
    let mut end = open(&name, 1000);
    let mut all = peers(&mut end, &name, 33);
    let now = Instant::now();
    for (peer, _) in all.values() {
        comes(&mut end, *peer, (Kind::Unexpected, true), MESSAGE_MAX - 1);
        comes(&mut end, *peer, (Kind::Expected, true), MESSAGE_MAX - 1);
    }
    // It takes most.
    let (leaves, raw) = all.values_mut().next().unwrap();
    comes(&mut end, *leaves, (Kind::Control, true), CONTROL_MAX - 1);
    raw.say(&[Record::Goodbye(u64::MAX)]);
    let start = Instant::now();
    while end.links.get(*leaves).unwrap().gone().is_none() {
        in_time!(start, "its goodbye was not heard");
        round_at(&mut end, now);
    }
    let gone: BTreeMap<u32, GoneReason> = [now, now + Duration::from_secs(10)]
        .into_iter()
        .flat_map(|now| ended(round_at(&mut end, now)).map(|(peer, why)| (peer.index(), why)))
        .collect();
    assert!(gone.len() > 1, "memory was not scarce: {gone:?}");
    assert_eq!(gone[&leaves.index()], GoneReason::Closed);
}
