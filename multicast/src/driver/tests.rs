//! Strangers, and members that say what is not theirs to say.

mod alone;
mod meeting;

use std::{
    fs::File,
    pin::pin,
    sync::{Arc, Mutex, mpsc::channel},
    task::{Context, Waker},
};

use hg::CallError;
use watchdog::Watchdog;

use crate::{
    Destination, Error, Group, GroupId, Multicast, Object, Options,
    machine::{Header, INLINE_MAX, Message},
    schedule::{Choice, Kind},
    wire::{Meeting, Place, Source, Unknown, meet, tell, watch},
};

const URLS: [&str; 2] = ["sm://", "tcp://127.0.0.1"];

fn plain(url: &str) -> hg::Builder {
    let builder = hg::builder();
    if url.starts_with("tcp") { builder.setting("routing", "off") } else { builder }
}

/// Three processes.
fn three(url: &str) -> Vec<Multicast> {
    (0..3).map(|_| Multicast::open(plain(url), url).unwrap()).collect()
}

/// A group of those that has joined; `incoming` is asked with who asks.
fn join(
    all: &[Multicast],
    incoming: impl Fn(u32) -> Result<Destination, String> + Clone + Send + 'static,
) -> (GroupId, Vec<Group>) {
    join_with(all, &Options { schedule: Choice::Chain, ..Options::default() }, incoming)
}

fn join_with(
    all: &[Multicast],
    options: &Options,
    incoming: impl Fn(u32) -> Result<Destination, String> + Clone + Send + 'static,
) -> (GroupId, Vec<Group>) {
    let members: Vec<_> = all.iter().map(|it| it.address().clone()).collect();
    let id = GroupId::random().unwrap();
    let join = |(own, it): (u32, &Multicast)| {
        let incoming = incoming.clone();
        it.group(id, &members, own, options.clone(), move |_| incoming(own)).unwrap()
    };
    let groups: Vec<_> = (0..).zip(all).map(join).collect();
    groups[0].joined().wait().unwrap();
    (id, groups)
}

/// A group of three that has joined.
fn joined(url: &str) -> (GroupId, Vec<Group>) {
    join(&three(url), |_| Ok(Destination::Allocate))
}

/// A member says something that its machine would not.
fn say(groups: &[Group], id: GroupId, (from, to): (u32, usize), message: Message<Source>) {
    let engine = &groups[from as usize].process.engine;
    let peer = engine.lookup(&groups[to].members()[to]).unwrap();
    engine.notify(tell, &peer, (id, from, message)).wait().unwrap();
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
        Message::Nearly { object: 0, block: 0 },
        Message::Took { object: 0, block: 0 },
        Message::Unreachable { member: 1, why: "a lie".to_owned() },
        Message::Call,
        Message::Ask,
        Message::Answer,
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

/// While the first member of the chain is asked where the object goes, it takes blocks of it that are not.
#[test]
fn who_takes_a_block_that_cannot_be_ends_its_group_by_name_and_no_process() {
    let _watchdog = Watchdog::start();
    // Five blocks of 64 KiB.
    let (size, cannot_be) = (300_000, [(0, 5), (0, 1 << 48), (0, u64::MAX), (u64::MAX, 0)]);
    let runs = URLS.iter().flat_map(|url| cannot_be.map(|it| (*url, it)));
    for ((url, (object, block)), on_disk) in runs.flat_map(|it| [(it, false), (it, true)]) {
        let all = three(url);
        let (asked, is_asked) = channel();
        let is_held = Arc::new(Mutex::new(()));
        let held = is_held.lock().unwrap();
        let wait = Arc::clone(&is_held);
        let (id, groups) = join(&all, move |own| {
            if own == 1 {
                asked.send(()).unwrap();
                drop(wait.lock().unwrap());
            }
            Ok(Destination::Allocate)
        });
        let zeros = || Box::new(File::open("/dev/zero").unwrap());
        let sent: Object = if on_disk {
            Object::Blocks { from: zeros(), size }
        } else {
            vec![0; usize::try_from(size).unwrap()].into()
        };
        let sending = groups[0].send(sent, b"").unwrap();
        is_asked.recv().unwrap();
        say(&groups, id, (1, 0), Message::Took { object, block });
        let failure = sending.wait().unwrap_err();
        let what = format!("{url} {object} {block} {on_disk}: {failure}");
        assert!(failure.member == 1 && failure.why.contains("was not offered"), "{what}");
        assert!(groups[0].progress().bytes <= size, "{what}: its bytes do not count");
        drop(held);
        for group in &groups {
            assert_eq!(group.receive().wait().unwrap_err(), failure, "{what}");
        }
        goes_on(join(&all, |_| Ok(Destination::Allocate)).1);
    }
}

#[test]
fn a_block_in_an_offer_that_is_not_small_ends_the_group_by_name_unread() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let (id, groups) = joined(url);
        let large = vec![0; usize::try_from(INLINE_MAX).unwrap() + 1];
        let source = Source { place: Place::Inline(large), checksum: None };
        // It would wait for an object that does not begin.
        let message = Message::Offer { object: 7, block: 0, header: None, source };
        say(&groups, id, (1, 0), message);
        for group in &groups {
            let failure = group.receive().wait().unwrap_err();
            assert!(failure.member == 1 && failure.why.contains("small one"), "{url}: {failure}");
        }
    }
}

#[test]
fn nobody_goes_on_as_another_group_that_there_is() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let all = three(url);
        let (other, good) = join(&all, |_| Ok(Destination::Allocate));
        let (id, mut groups) = join(&all, |_| Ok(Destination::Allocate));
        // The last two have spoken with each other.
        let sending = groups[0].send(vec![1; 300_000], b"").unwrap();
        for group in &groups[1..] {
            drop(group.receive().wait().unwrap());
        }
        sending.wait().unwrap();
        let message = Message::Reform { id: other.0, members: vec![1, 2] };
        say(&groups, id, (1, 2), message);
        let last = groups.pop().unwrap();
        assert_eq!(last.receive().wait().unwrap_err().member, 0);
        let reformed = last.reform().wait();
        assert!(matches!(reformed, Err(Error::SameId)), "{url}: {reformed:?}");
        goes_on(good);
    }
}

#[test]
fn who_has_gone_on_without_the_dead_still_lives_for_those_who_have_not() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let all = three(url);
        let (id, groups) = join(&all, |_| Ok(Destination::Allocate));
        all[0].close();
        groups[1].receive().wait().unwrap_err();
        let [_, first, second] = groups.try_into().unwrap();
        let engine = all[2].engine();
        let peer = engine.lookup(all[1].address()).unwrap();
        let group = first.reform().wait().unwrap();
        let asked = engine.call_owned(watch, &peer, (id, 2));
        let barrier = engine.call(watch, &peer, (GroupId::random().unwrap(), 0));
        assert!(matches!(barrier.wait(), Err(CallError::Handler(Unknown))));
        let mut asked = pin!(asked);
        let answer = asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(answer.is_pending(), "{url}: {answer:?}");
        let again = second.reform().wait().unwrap();
        let closing = [group, again].map(Group::close);
        closing.into_iter().for_each(|it| it.wait().unwrap());
    }
}

#[test]
fn a_group_that_the_other_one_has_not_begun_keeps_no_other_group_from_joining() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let [root, other] = [0, 1].map(|_| Multicast::open(plain(url), url).unwrap());
        let members = [root.address().clone(), other.address().clone()];
        let [never, id] = [0, 1].map(|_| GroupId::random().unwrap());
        let allocate = |_: crate::Incoming<'_>| Ok(Destination::Allocate);
        let open = |it: &Multicast, id, own| {
            it.group(id, &members, own, Options::default(), allocate).unwrap()
        };
        let group = open(&root, id, 0);
        // What the root says of it comes to one that does not know it yet.
        let peer = root.engine().lookup(other.address()).unwrap();
        while root.engine().call(watch, &peer, (never, 0)).wait().is_ok() {}
        let _waits = open(&other, never, 1);
        let _joins = open(&other, id, 1);
        group.joined().wait().unwrap();
    }
}

#[test]
fn receivers_that_close_without_having_received_let_the_root_close() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let options = Options { untaken_bytes_max: 1, ..Options::default() };
        let (_, groups) = join_with(&three(url), &options, |_| Ok(Destination::Allocate));
        let sent: Vec<_> = (0..3).map(|_| groups[0].send(vec![5; 300_000], b"").unwrap()).collect();
        let closing: Vec<_> = groups.into_iter().map(Group::close).collect();
        closing.into_iter().for_each(|it| it.wait().unwrap());
        sent.into_iter().for_each(|it| it.wait().unwrap());
    }
}

#[test]
fn what_users_receive_makes_room_for_as_much_as_it_has_taken() {
    let _watchdog = Watchdog::start();
    for url in URLS {
        let options = Options { untaken_bytes_max: 5000, ..Options::default() };
        let all = three(url);
        let engines: Vec<_> = all.iter().map(|it| it.engine().clone()).collect();
        let (_, groups) = join_with(&all, &options, move |own| {
            let memory = memory_of(&engines[own as usize], 3000);
            Ok(if own == 1 { Destination::Registered(memory) } else { Destination::Allocate })
        });
        for number in 0..30 {
            let sending = groups[0].send(vec![5; 3000 * (number % 2)], &[7; 2000]).unwrap();
            for group in &groups[1..] {
                assert_eq!(group.receive().wait().unwrap().unwrap().number, number as u64);
            }
            sending.wait().unwrap();
        }
        let closing: Vec<_> = groups.into_iter().map(Group::close).collect();
        closing.into_iter().for_each(|it| it.wait().unwrap());
    }
}

fn memory_of(engine: &hg::Engine, size: usize) -> Arc<hg::bulk::Bulk> {
    Arc::new(engine.expose(vec![0; size], hg::bulk::Rights::READ).unwrap())
}

#[test]
fn a_receiver_that_is_polled_again_and_again_keeps_one_waker() {
    let _watchdog = Watchdog::start();
    let (_, groups) = joined("sm://");
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..1000 {
        assert!(pin!(groups[1].receive()).poll(&mut context).is_pending());
    }
    assert_eq!(groups[1].shared.lock().wakers.len(), 1);
    goes_on(groups);
}
