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
            let ended = round_at(&mut end, now).into_iter().filter_map(|it| match it {
                Completion::Gone { peer, reason } => Some((peer, reason)),
                _ => None,
            });
            gone.extend(ended);
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
