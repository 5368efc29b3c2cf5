//! Strangers, and members that say what is not theirs to say.

use hg::CallError;
use watchdog::Watchdog;

use crate::{
    Destination, Group, GroupId, Multicast, Options,
    machine::{Header, Message},
    schedule::{Choice, Kind},
    wire::{Meeting, Place, Source, Unknown, meet, tell, watch},
};

const URLS: [&str; 2] = ["sm://", "tcp://127.0.0.1"];

fn open(url: &str) -> Multicast {
    Multicast::open(hg::builder().setting("routing", "off"), url).unwrap()
}

fn plain(url: &str) -> hg::Builder {
    let builder = hg::builder();
    if url.starts_with("tcp") { builder.setting("routing", "off") } else { builder }
}

/// A group of three that has joined.
fn joined(url: &str) -> (GroupId, Vec<Group>) {
    let all: Vec<_> = if url.starts_with("tcp") {
        (0..3).map(|_| open(url)).collect()
    } else {
        (0..3).map(|_| Multicast::open(hg::builder(), url).unwrap()).collect()
    };
    let members: Vec<_> = all.iter().map(|it| it.address().clone()).collect();
    let id = GroupId::random().unwrap();
    let options = Options { schedule: Choice::Chain, ..Options::default() };
    let join = |(own, it): (u32, &Multicast)| {
        it.group(id, &members, own, options.clone(), |_| Ok(Destination::Allocate)).unwrap()
    };
    let groups: Vec<_> = (0..).zip(&all).map(join).collect();
    groups[0].joined().wait().unwrap();
    (id, groups)
}

/// Everything that could end the group, or feed it.
fn bad_messages() -> Vec<Message<Source>> {
    let header = Header {
        size: 3,
        block_size: 3,
        kind: Kind::Direct,
        among: None,
        metadata: b"bad".to_vec(),
    };
    let source = Source { place: Place::Inline(b"bad".to_vec()), checksum: None };
    vec![
        Message::Join { digest: 0, whole: 0 },
        Message::Failed { member: 1, why: "a lie".to_owned() },
        Message::Offer { object: 0, block: 0, header: Some(header), source },
        Message::Closed { count: 0 },
        Message::Took { object: 0, block: 0 },
        Message::Whole { count: 9 },
        Message::Bye,
        Message::Begin { next: 0 },
        Message::Reform { id: [1, 2], members: vec![0, 1, 2] },
    ]
}

/// The group is as good as before.
fn goes_on(groups: Vec<Group>) {
    let sending = groups[0].send(vec![5; 300_000], b"good").unwrap();
    for group in &groups[1..] {
        let received = group.receive().wait().unwrap().unwrap();
        assert_eq!((received.number, received.metadata.as_slice()), (0, b"good".as_slice()));
        assert_eq!(received.data.into_vec().unwrap(), Some(vec![5; 300_000]));
    }
    sending.wait().unwrap();
    let closing: Vec<_> = groups.into_iter().map(Group::close).collect();
    closing.into_iter().for_each(|it| it.wait().unwrap());
}

fn tell_all(url: &str, groups: &[Group], id: GroupId, from: impl Fn(usize) -> u32) {
    let stranger = plain(url).open(url).unwrap();
    for (place, group) in groups.iter().enumerate() {
        let peer = stranger.lookup(&group.members()[place]).unwrap();
        for message in bad_messages() {
            stranger.notify(tell, &peer, (id, from(place), message)).wait().unwrap();
        }
        // One that is answered comes after those.
        let watched = stranger.call(watch, &peer, (GroupId::random().unwrap(), 0)).wait();
        assert!(matches!(watched, Err(CallError::Handler(Unknown))), "{watched:?}");
    }
}

#[test]
fn who_does_not_know_the_id_cannot_join_end_or_feed_a_group() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let (_, groups) = joined(url);
        tell_all(url, &groups, GroupId::random().unwrap(), |_| 0);
        goes_on(groups);
    }
}

#[test]
fn nobody_speaks_for_a_member_whether_it_has_spoken_or_not() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        // All receivers have spoken with the root; the first of them has not heard of the last one, nor the last of the first.
        for others in [[1, 0, 0], [2, 2, 1]] {
            let (id, groups) = joined(url);
            tell_all(url, &groups, id, |place| others[place]);
            goes_on(groups);
        }
    }
}

#[test]
fn nobody_is_met_in_the_name_of_a_member() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let (id, groups) = joined(url);
        let stranger = plain(url).open(url).unwrap();
        let peer = stranger.lookup(&groups[1].members()[1]).unwrap();
        for meeting in [
            Meeting::Meet { from: 2, challenge: 7 },
            Meeting::Prove { challenge: 7, nonce: 8 },
            Meeting::Proof { nonce: 8 },
            Meeting::Meet { from: 1, challenge: 7 },
            Meeting::Meet { from: 77, challenge: 7 },
        ] {
            stranger.notify(meet, &peer, (id, meeting)).wait().unwrap();
        }
        tell_all(url, &groups, id, |_| 2);
        goes_on(groups);
    }
}

#[test]
fn what_no_member_can_be_is_dropped() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let (id, groups) = joined(url);
        tell_all(url, &groups, id, |_| 77);
        let own = |place| u32::try_from(place).unwrap();
        tell_all(url, &groups, id, own);
        goes_on(groups);
    }
}

/// Each of them has watched the root, which answers at its end only.
#[test]
fn whoever_has_watched_and_ended_keeps_no_place_among_the_requests_in_service() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let root = Multicast::open(plain(url).in_service_max(8), url).unwrap();
        for _ in 0..64 {
            let other = Multicast::open(plain(url), url).unwrap();
            let members = [&root, &other].map(|it| it.address().clone());
            let id = GroupId::random().unwrap();
            let join = |it: &Multicast, own| {
                let options = Options::default();
                it.group(id, &members, own, options, |_| Ok(Destination::Allocate)).unwrap()
            };
            let groups = [join(&root, 0), join(&other, 1)];
            let closing = groups.map(Group::close);
            closing.into_iter().for_each(|it| it.wait().unwrap());
            other.close();
        }
    }
}
