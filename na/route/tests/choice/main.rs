//! Which way is chosen, what happens when the local one is closed, and what it costs.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod busy;
#[path = "../common/mod.rs"]
mod common;
mod end;
mod flushes;
mod hang_ups;
mod sockets;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use common::Net;
use end::{End, address, arrived, ended, get, gone, greet, until};
use hg_na::{
    Address, Completion, Context, Domain, Error, GoneReason, Memory, Message, Op, OpenOptions,
    Plugin, QUIET, Region, Rights,
};
use hg_na_conformance::{
    Mem,
    layer::{Layer, Layered, Layers},
};
use hg_na_route::Route;
use hg_na_sm::{SmPlugin, node_id};
use uuid::Uuid;
use watchdog::{LIMIT, in_time};

fn route() -> Route {
    Route::new(SmPlugin, Net, node_id, &["uid", "net", "sm+net"])
}

/// A target whose one local place is taken.
fn full_target() -> (End, End) {
    let mut target = End::open(&route(), "net://", &[("sm.max-peers", "1")]);
    let mut first = End::open(&route(), "net://", &[]);
    let peer = first.lookup(&target);
    let back = greet(&mut first, &mut target, peer);
    assert_eq!((first.context.way(peer), target.context.way(back)), ("sm", "sm"));
    (target, first)
}

#[test]
fn an_equal_node_is_reached_locally_and_any_other_by_the_network() {
    let mut here = End::open(&route(), "net://", &[]);
    let mut near = End::open(&route(), "net://", &[]);
    let elsewhere = Route::new(SmPlugin, Net, || Ok(Uuid::nil()), &["uid", "net"]);
    let mut far = End::open(&elsewhere, "net://", &[]);
    for (target, way) in [(&mut near, "sm"), (&mut far, "net")] {
        let peer = here.lookup(target);
        let back = greet(&mut here, target, peer);
        assert_eq!((here.context.way(peer), target.context.way(back)), (way, way));
    }
}

#[test]
fn a_node_of_the_same_id_at_another_machine_s_address_is_reached_by_the_network() {
    let mut here = End::open(&route(), "net://", &[]);
    let near = End::open(&route(), "net://", &[]);
    let text = near.context.address().to_string();
    let (local, _) = text.rsplit_once('#').unwrap();
    // The first is for documentation: no machine has it.
    for (network, way) in [("192.0.2.7:1", "net"), ("127.0.0.1:1", "sm")] {
        let looked_up = address(&format!("{local}#net://{network}"));
        let peer = here.context.lookup(&looked_up).unwrap();
        assert_eq!(here.context.way(peer), way, "{network}");
        here.context.forget(peer);
    }
}

#[test]
fn a_part_of_an_address_is_reached_that_way_and_no_other() {
    let mut here = End::open(&route(), "net://", &[]);
    let mut near = End::open(&route(), "net://", &[]);
    for way in ["net", "sm"] {
        let part = near.context.address().part(way).unwrap();
        let peer = here.context.lookup(&part).unwrap();
        greet(&mut here, &mut near, peer);
        assert_eq!(here.context.way(peer), way);
    }
    let nobody = here.context.lookup(&address("sm://nobody-is-called-that")).unwrap();
    here.send(2, nobody, b"knock");
    let (peer, reason) = until(&mut here, &mut near, gone);
    assert_eq!(peer, nobody);
    assert!(matches!(reason, GoneReason::Unreachable(_)), "{reason:?}");
}

#[test]
fn engines_without_routing_reach_and_are_reached_by_their_part() {
    let mut routing = End::open(&route(), "net://", &[]);
    let memory = || Memory::from(b"0123456789".to_vec());
    let region = routing.domain.register(memory(), Rights::all()).unwrap();
    for (plugin, url) in [(&SmPlugin as &dyn Plugin, "sm://"), (&Net, "net://")] {
        let mut plain = End::open(plugin, url, &[]);
        let scheme = plain.context.address().scheme().to_owned();
        let part = routing.context.address().part(&scheme).unwrap();
        let peer = plain.context.lookup(&part).unwrap();
        let back = greet(&mut plain, &mut routing, peer);
        assert_eq!(routing.context.way(back), scheme);
        // Its descriptor holds a part for them, theirs is taken as it is.
        let descriptor = region.descriptor().part_for(&scheme).unwrap();
        let own = plain.domain.register(memory(), Rights::all()).unwrap();
        assert_eq!(get(&mut plain, &mut routing, peer, &descriptor), b"0123456789");
        assert_eq!(get(&mut routing, &mut plain, back, &own.descriptor()), b"0123456789");
    }
}

#[test]
fn what_was_posted_to_a_peer_that_refuses_locally_goes_by_the_network_once_and_in_order() {
    let (mut target, mut first) = full_target();
    let mut second = End::open(&route(), "net://", &[]);
    let peer = second.lookup(&target);
    assert_eq!(second.context.way(peer), "sm", "it is tried first");
    let long = vec![7; 5000];
    for number in 0..20_u8 {
        // Quiet and loud ones, short, long, and in memory of the transport's.
        let token = 100 + u64::from(number);
        let mut message = match number % 4 {
            0 => Message::copied(&[number]),
            1 => Message::from([&[number], &long[..]].concat()),
            _ => second.context.message(peer, 300).unwrap(),
        };
        message.as_mut_slice()[0] = number;
        let quiet = if number % 2 == 0 { QUIET } else { 0 };
        second.post(token | quiet, Op::SendUnexpected { to: peer, message });
    }
    second.post(500, Op::RecvExpected { from: peer, tag: 9 });
    let mut origin = None;
    for number in 0..20_u8 {
        let (from, bytes) = until(&mut target, &mut second, arrived);
        assert_eq!(bytes[0], number);
        assert_eq!(*origin.get_or_insert(from), from);
    }
    let answer = Op::SendExpected {
        to: origin.unwrap(),
        tag: 9,
        message: Message::copied(b"answered by the network"),
    };
    target.post(2, answer);
    let (ok, bytes) = until(&mut second, &mut target, ended(500));
    assert!(ok && bytes.unwrap() == b"answered by the network");
    for number in (1..20).step_by(2) {
        assert!(until(&mut second, &mut target, ended(100 + number)).0);
    }
    assert_eq!((second.context.way(peer), target.context.way(origin.unwrap())), ("net", "net"));
    assert_eq!(second.lookup(&target), peer, "the way does not change while the peer lives");
    for _ in 0..2000 {
        second.round();
        target.round();
        first.round();
    }
    let rest: Vec<_> = second.seen.iter().chain(&target.seen).filter(|it| !is_done(it)).collect();
    assert!(rest.is_empty(), "nothing came twice: {rest:?}");
}

fn is_done(completion: &Completion) -> bool {
    matches!(completion, Completion::Done(_))
}

#[test]
fn an_address_with_another_s_local_part_does_not_redirect_that_one_s_own() {
    let (mut target, _first) = full_target();
    let mut other = End::open(&route(), "net://", &[]);
    let text = |end: &End| end.context.address().to_string();
    let (target_text, other_text) = (text(&target), text(&other));
    let (local, _) = target_text.rsplit_once('#').unwrap();
    let (_, network) = other_text.rsplit_once('#').unwrap();
    let mixed = address(&format!("{local}#{network}"));
    // While the mixed one is tried, and once it has moved.
    for has_moved in [false, true] {
        let mut second = End::open(&route(), "net://", &[]);
        let wrong = second.context.lookup(&mixed).unwrap();
        if has_moved {
            second.send(QUIET, wrong, b"greeting");
            let start = Instant::now();
            while other.take(arrived).is_none() {
                [&mut second, &mut target, &mut other].into_iter().for_each(End::round);
                in_time!(start);
            }
        }
        let right = second.lookup(&target);
        assert_ne!(right, wrong);
        greet(&mut second, &mut target, right);
    }
}

#[test]
fn transfers_posted_before_the_move_are_made_by_the_network() {
    let (mut target, _first) = full_target();
    let mut second = End::open(&route(), "net://", &[]);
    let peer = second.lookup(&target);
    let region: Region =
        target.domain.register(Memory::from(b"0123456789".to_vec()), Rights::all()).unwrap();
    assert_eq!(get(&mut second, &mut target, peer, &region.descriptor()), b"0123456789");
    assert_eq!(second.context.way(peer), "net");
    let put = second.domain.register(Memory::from(b"abc".to_vec()), Rights::READ).unwrap();
    let remote = region.descriptor().slice(4, 3).unwrap();
    second.post(8, Op::Put { to: peer, local: put.slice(0, 3).unwrap(), remote });
    assert!(matches!(put.unregister(), Err(Error::RegionBusy)), "it is in use");
    assert!(until(&mut second, &mut target, ended(8)).0);
    assert_eq!(region.unregister().unwrap().into_vec().unwrap(), b"0123abc789");
}

#[test]
fn the_answer_to_a_receive_cancelled_before_the_move_is_dropped_after_it() {
    let (mut target, _first) = full_target();
    let mut second = End::open(&route(), "net://", &[]);
    let peer = second.lookup(&target);
    let id = second.post(10, Op::RecvExpected { from: peer, tag: 5 });
    second.send(11, peer, b"request");
    second.context.cancel(id);
    assert!(!until(&mut second, &mut target, ended(10)).0);
    let (from, _) = until(&mut target, &mut second, arrived);
    for tag in [5, 6] {
        let message = Message::copied(&[5]);
        target.post(tag, Op::SendExpected { to: from, tag, message });
    }
    second.post(12, Op::RecvExpected { from: peer, tag: 6 });
    assert!(until(&mut second, &mut target, ended(12)).0);
    // Had the first answer been kept, this receive would get it.
    let id = second.post(13, Op::RecvExpected { from: peer, tag: 5 });
    for _ in 0..2000 {
        second.round();
        target.round();
    }
    assert!(second.take(ended(13)).is_none());
    second.context.cancel(id);
    assert!(!until(&mut second, &mut target, ended(13)).0);
}

#[test]
fn operations_can_be_cancelled_by_their_first_name_after_the_move() {
    let (mut target, _first) = full_target();
    let mut second = End::open(&route(), "net://", &[]);
    let peer = second.lookup(&target);
    let id = second.post(10, Op::RecvExpected { from: peer, tag: 5 });
    greet(&mut second, &mut target, peer);
    assert_eq!(second.context.way(peer), "net");
    second.context.cancel(id);
    assert!(!until(&mut second, &mut target, ended(10)).0);
}

#[test]
fn a_new_incarnation_chooses_anew() {
    let url = format!("net://anew-{}:7", std::process::id());
    let mut origin = End::open(&route(), "net://", &[]);
    // Nobody's local name: another user's, say.
    let mut target = End::open(&route(), &url, &[("sm.max-peers", "1")]);
    let at = target.context.address().clone();
    let mut other = End::open(&SmPlugin, "sm://", &[]);
    let part = other.context.lookup(&at.part("sm").unwrap()).unwrap();
    greet(&mut other, &mut target, part);
    let first = origin.context.lookup(&at).unwrap();
    greet(&mut origin, &mut target, first);
    assert_eq!(origin.context.way(first), "net");
    drop(target);
    assert_eq!(until(&mut origin, &mut other, gone), (first, GoneReason::Closed));
    let refused = origin.context.post(1, Op::RecvExpected { from: first, tag: 1 });
    assert!(matches!(refused.unwrap_err().error, Error::UnknownPeer | Error::PeerGone(_)));
    let mut target = End::open(&route(), &url, &[]);
    assert_eq!(*target.context.address(), at, "a fixed port has one address");
    let second = origin.context.lookup(&at).unwrap();
    assert_ne!(second, first);
    greet(&mut origin, &mut target, second);
    assert_eq!(origin.context.way(second), "sm");
}

#[test]
fn a_peer_known_by_both_ways_of_lookup_ends_by_both_names() {
    let (mut target, _first) = full_target();
    let mut second = End::open(&route(), "net://", &[]);
    let part = second.context.lookup(&target.context.address().part("net").unwrap()).unwrap();
    greet(&mut second, &mut target, part);
    let moved = second.lookup(&target);
    greet(&mut second, &mut target, moved);
    assert_ne!(part, moved);
    drop(target);
    let mut idle = End::open(&route(), "net://", &[]);
    let mut ends = [until(&mut second, &mut idle, gone).0, until(&mut second, &mut idle, gone).0];
    ends.sort();
    let mut both = [part, moved];
    both.sort();
    assert_eq!(ends, both);
}

#[test]
fn settings_reach_whoever_takes_them() {
    let open = |name: &str, value: &str| {
        let options = OpenOptions::listening().with(name, value);
        route().open(&address("net://"), &options).map(|domain| domain.context(0).unwrap())
    };
    for (name, value) in
        [("max-peers", "3"), ("sm.max-peers", "3"), ("net.max-peers", "3"), ("routing", "on")]
    {
        open(name, value).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let bad =
        ["max-peers", "sm.max-peers", "net.max-peers", "tcp.max-peers", "sm.colour", "routing"];
    for name in bad {
        let refused = open(name, "colourful");
        let is_refused =
            matches!(refused, Err(Error::BadSetting { .. } | Error::UnknownSetting { .. }));
        assert!(is_refused, "{name}: {refused:?}");
    }
    assert_eq!(open("routing", "off").unwrap().address().scheme(), "net");
    let both = OpenOptions::listening().with("routing", "off");
    let refused = route().open(&address("sm+net://"), &both);
    assert!(matches!(refused, Err(Error::BadSetting { .. })), "{refused:?}");
}

#[test]
fn what_is_said_of_a_setting_is_about_whoever_knows_it_and_names_it_as_it_was_given() {
    let said = |name: &str, value: &str| {
        let options = OpenOptions::listening().with(name, value);
        route().open(&address("net://"), &options).unwrap_err().to_string()
    };
    assert_eq!(said("cma", "odd"), "setting `cma`: it takes `auto` or `off`");
    assert_eq!(said("sm.cma", "odd"), "setting `sm.cma`: it takes `auto` or `off`");
    assert_eq!(said("max-peers", "odd"), "setting `max-peers`: it takes a positive number");
    let unknown = said("colour", "red");
    assert!(unknown.contains("sm knows only allow-uid, "), "{unknown}");
    assert!(said("net.colour", "red").starts_with("setting `net.colour`: "));
    let nobody = "setting `tcp.cma`: nothing here is called tcp; there are sm.NAME, net.NAME";
    assert_eq!(said("tcp.cma", "off"), nobody);
}

#[test]
fn where_there_is_no_node_the_network_is_taken_alone_unless_both_were_asked_for() {
    let nowhere = || Err(Error::Unsupported("nodes"));
    let route = Route::new(SmPlugin, Net, nowhere, &["uid", "net", "sm+net"]);
    assert_eq!(End::open(&route, "net://", &[]).context.address().scheme(), "net");
    assert!(route.open(&address("sm+net://"), &OpenOptions::listening()).is_err());
    assert!(route.open(&address("uid://x"), &OpenOptions::listening()).is_err());
}

/// A network whose memory cannot be registered, and which counts how often it is looked at.
#[derive(Debug, Clone, Default)]
struct Counting {
    rounds: Arc<AtomicU64>,
    refuses: bool,
}

impl Layers for Counting {
    fn layer(&self, _: &Address) -> Box<dyn Layer> {
        Box::new(self.clone())
    }

    fn register(&self, to: &dyn Domain, memory: Memory, rights: Rights) -> Result<Region, Error> {
        if self.refuses {
            return Err(Error::Unsupported("memory"));
        }
        to.register(memory, rights)
    }
}

impl Layer for Counting {
    fn progress(
        &mut self,
        inner: &mut dyn Context,
        now: Instant,
        done: &mut Vec<Completion>,
    ) -> Result<bool, Error> {
        self.rounds.fetch_add(1, Ordering::Relaxed);
        inner.progress(now, done)
    }
}

#[test]
fn a_region_of_one_side_only_does_not_remain() {
    let counting = Counting { refuses: true, ..Counting::default() };
    let route = Route::new(SmPlugin, Layered::new(Net, counting), node_id, &["uid", "net"]);
    let end = End::open(&route, "net://", &[]);
    let bytes: Arc<[u8]> = Arc::from([1, 2, 3].as_slice());
    let refused = end.domain.register(Memory::from(Arc::clone(&bytes)), Rights::READ);
    assert!(matches!(refused, Err(Error::Unsupported("memory"))), "{refused:?}");
    assert_eq!(Arc::strong_count(&bytes), 1, "neither plugin holds it");
}

#[test]
fn the_tail_of_a_vector_is_registered_without_its_head() {
    let mut owner = End::open(&route(), "net://", &[]);
    let mut reader = End::open(&route(), "net://", &[]);
    let peer = reader.lookup(&owner);
    let tail = Memory::tail(b"a head, the others".to_vec(), 8);
    let region: Region = owner.domain.register(tail, Rights::READ).unwrap();
    assert_eq!(get(&mut reader, &mut owner, peer, &region.descriptor()), b"the others");
    assert_eq!(region.unregister().unwrap().len(), 10);
}

#[test]
fn memory_of_every_kind_comes_back_as_it_went_in() {
    let end = End::open(&route(), "net://", &[]);
    let back = |memory: Memory| end.domain.register(memory, Rights::READ).unwrap().unregister();
    assert_eq!(back(Memory::from(vec![1, 2])).unwrap().into_vec().unwrap(), [1, 2]);
    let pieces = vec![vec![1], vec![2, 3]];
    assert_eq!(back(Memory::from(pieces.clone())).unwrap().into_vecs().unwrap(), pieces);
    let bytes: Arc<[u8]> = Arc::from([9].as_slice());
    let shared = back(Memory::from(Arc::clone(&bytes))).unwrap().into_shared().unwrap();
    assert!(Arc::ptr_eq(&bytes, &shared));
    let (Some(local), Some(network)) = (
        end.domain
            .register(Memory::from(vec![1]), Rights::READ)
            .unwrap()
            .descriptor()
            .part_for("sm"),
        end.domain
            .register(Memory::from(vec![1]), Rights::READ)
            .unwrap()
            .descriptor()
            .part_for("net"),
    ) else {
        panic!("a descriptor has a part for each");
    };
    assert_ne!(local.opaque(), network.opaque());
}

#[test]
fn an_idle_network_is_not_looked_at_and_a_message_of_its_is_found_all_the_same() {
    let counting = Counting::default();
    let layered = Layered::new(Net, counting.clone());
    let watched = Route::new(SmPlugin, layered, node_id, &["uid", "net"]);
    let mut target = End::open(&watched, "net://", &[]);
    let mut near = End::open(&route(), "net://", &[]);
    let mut far = End::open(&Net, "net://", &[]);
    let peer = near.lookup(&target);
    greet(&mut near, &mut target, peer);
    let part = far.context.lookup(&target.context.address().part("net").unwrap()).unwrap();
    greet(&mut far, &mut target, part);
    // It is busy for a moment, then it agrees to sleep.
    let start = Instant::now();
    let mut before = u64::MAX;
    while counting.rounds.load(Ordering::Relaxed) != before {
        in_time!(start, "it never comes to rest");
        before = counting.rounds.load(Ordering::Relaxed);
        for _ in 0..1000 {
            target.round();
        }
    }
    for number in 0..20_000_u32 {
        near.send(QUIET, peer, &number.to_le_bytes());
        let (_, bytes) = until(&mut target, &mut near, arrived);
        assert_eq!(bytes, number.to_le_bytes());
    }
    let rounds = counting.rounds.load(Ordering::Relaxed) - before;
    assert_eq!(rounds, 0, "the network was looked at while only the other was used");
    far.send(QUIET, part, b"found by a thread that never sleeps");
    assert_eq!(until(&mut target, &mut far, arrived).1, b"found by a thread that never sleeps");
}

#[test]
fn one_sleeper_is_woken_by_both_ways() {
    woken_by_both_ways(route, "net://", "net");
}

/// Of a target that sleeps whenever it may, and two threads that call it so, each by its own way.
fn woken_by_both_ways(route: fn() -> Route, url: &'static str, network: &'static str) {
    let mut target = End::open(&route(), url, &[]);
    let at = target.context.address().clone();
    const EACH: u32 = 500;
    let callers: Vec<_> = ["sm", network]
        .map(|way| {
            let part = at.part(way).unwrap();
            std::thread::spawn(move || {
                let mut caller = End::open(&route(), url, &[]);
                let peer = caller.context.lookup(&part).unwrap();
                for number in 0..EACH {
                    let tag = u64::from(number);
                    caller.post(tag, Op::RecvExpected { from: peer, tag });
                    caller.send(QUIET, peer, &tag.to_le_bytes());
                    sleep_until(&mut caller, |caller| caller.take(ended(tag)).is_some());
                }
            })
        })
        .into();
    for _ in 0..2 * EACH {
        let mut request = None;
        sleep_until(&mut target, |target| {
            request = target.take(arrived);
            request.is_some()
        });
        let (to, bytes) = request.unwrap();
        let tag = u64::from_le_bytes(bytes.try_into().unwrap());
        target.post(QUIET, Op::SendExpected { to, tag, message: Message::copied(b"answer") });
    }
    while !callers.iter().all(std::thread::JoinHandle::is_finished) {
        target.round();
    }
    callers.into_iter().for_each(|caller| caller.join().unwrap());
}

/// Makes progress and sleeps whenever it may.
fn sleep_until(end: &mut End, mut holds: impl FnMut(&mut End) -> bool) {
    let start = Instant::now();
    let waiter = end.context.waiter();
    loop {
        end.round();
        if holds(end) {
            return;
        }
        in_time!(start, "slept through what arrived");
        if end.context.may_sleep() {
            waiter.wait(Some(LIMIT)).unwrap();
        }
    }
}

#[test]
fn a_network_that_cannot_sleep_is_polled_and_says_so() {
    let route = Route::new(SmPlugin, Mem::default(), node_id, &["uid", "mem"]);
    let mut end = End::open(&route, "mem://", &[]);
    assert_eq!(end.domain.caps().sleep, hg_na::Sleep::Poll);
    end.round();
    assert!(!end.context.may_sleep() && end.context.waiter().fd().is_none());
}
