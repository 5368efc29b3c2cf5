//! `sm+tcp://`: bulk and views by either way, over the sockets that routing is made for.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use hg_na::{
    Address, Completion, Context, Done, Error, Failure, Memory, Op, OpenOptions, Peer, Plugin,
    QUIET, Region, Returned, Rights, SharedBytes,
};
use hg_na_conformance::layer::{Layer, Layered, Layers};
use hg_na_route::Route;
use hg_na_sm::{SmPlugin, node_id, shared::alloc};
use hg_na_tcp::TcpPlugin;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use uuid::Uuid;
use watchdog::{LIMIT, in_time};

use crate::{
    Counting,
    busy::rest,
    end::{End, address, arrived, ended, get, greet, until},
    sleep_until, woken_by_both_ways,
};

const URL: &str = "sm+tcp://127.0.0.1";
const BYTES: &[u8; 10] = b"0123456789";

fn here() -> Route {
    Route::new(SmPlugin, TcpPlugin, node_id, &["uid", "tcp", "sm+tcp"])
}

fn elsewhere() -> Route {
    Route::new(SmPlugin, TcpPlugin, || Ok(Uuid::nil()), &["uid", "tcp", "sm+tcp"])
}

#[test]
fn one_sleeper_in_one_wait_set_is_woken_by_both_ways() {
    woken_by_both_ways(here, URL, "tcp");
}

#[test]
fn what_either_way_takes_out_of_the_common_set_is_found_by_the_other() {
    let mut target = End::open(&here(), URL, &[]);
    let (mut near, mut far) =
        (End::open(&here(), URL, &[]), End::open(&TcpPlugin, "tcp://127.0.0.1", &[]));
    let by_memory = near.lookup(&target);
    let part = target.context.address().part("tcp").unwrap();
    let by_network = far.context.lookup(&part).unwrap();
    greet(&mut near, &mut target, by_memory);
    greet(&mut far, &mut target, by_network);
    let waiter = target.context.waiter();
    for number in 0..300_u32 {
        let (from, peer) =
            if number % 2 == 0 { (&mut near, by_memory) } else { (&mut far, by_network) };
        rest(&mut target);
        from.send(QUIET, peer, &number.to_le_bytes());
        from.round();
        // In every third round it goes on as if it had never asked to sleep.
        if number % 3 > 0 {
            let start = Instant::now();
            waiter.wait(Some(LIMIT)).unwrap();
            in_time!(start, "slept through what arrived");
        }
        assert_eq!(until(&mut target, from, arrived).1, number.to_le_bytes());
    }
}

#[test]
fn a_thread_that_sleeps_for_each_message_of_the_network_leaves_the_local_plugin_asleep() {
    let counting = Counting::default();
    let local = Layered::new(SmPlugin, counting.clone());
    let route = Route::new(local, TcpPlugin, node_id, &["uid", "tcp", "sm+tcp"]);
    let mut target = End::open(&route, URL, &[]);
    let (mut near, mut far) =
        (End::open(&here(), URL, &[]), End::open(&TcpPlugin, "tcp://127.0.0.1", &[]));
    let by_memory = near.lookup(&target);
    let part = target.context.address().part("tcp").unwrap();
    let by_network = far.context.lookup(&part).unwrap();
    let back = greet(&mut near, &mut target, by_memory);
    greet(&mut far, &mut target, by_network);
    rest(&mut target);
    const MANY: u32 = 200;
    for asleep in 0..3_u32 {
        let before = counting.rounds.load(Ordering::Relaxed);
        for number in 0..MANY {
            far.send(QUIET, by_network, &number.to_le_bytes());
            far.round();
            sleep_until(&mut target, |target| {
                target.take(arrived).is_some_and(|(_, bytes)| bytes == number.to_le_bytes())
            });
            rest(&mut target);
        }
        let looks = counting.rounds.load(Ordering::Relaxed) - before;
        assert!(looks <= u64::from(MANY) / 4, "{looks} looks at a plugin that sleeps");
        // It wakes for what comes, in the middle of that, and for what is posted to it.
        if asleep == 1 {
            target.send(QUIET, back, b"from its sleep");
            assert_eq!(until(&mut near, &mut target, arrived).1, b"from its sleep");
            rest(&mut target);
        }
        near.send(QUIET, by_memory, b"wake up");
        near.round();
        sleep_until(&mut target, |target| target.take(arrived).is_some());
        rest(&mut target);
    }
}

#[test]
fn beside_a_busy_network_an_idle_local_plugin_is_put_to_sleep_and_heard_all_the_same() {
    let counting = Counting::default();
    let local = Layered::new(SmPlugin, counting.clone());
    let route = Route::new(local, TcpPlugin, node_id, &["uid", "tcp", "sm+tcp"]);
    let mut target = End::open(&route, URL, &[]);
    let mut near = End::open(&here(), URL, &[]);
    let mut far = End::open(&TcpPlugin, "tcp://127.0.0.1", &[]);
    let by_memory = near.lookup(&target);
    let part = target.context.address().part("tcp").unwrap();
    let by_network = far.context.lookup(&part).unwrap();
    let back = greet(&mut near, &mut target, by_memory);
    greet(&mut far, &mut target, by_network);
    let looks = || counting.rounds.load(Ordering::Relaxed);
    for turn in 0..4_u32 {
        let (start, mut before, mut alone) = (Instant::now(), looks(), 0_u32);
        while alone < 1000 {
            far.send(QUIET, by_network, &alone.to_le_bytes());
            assert_eq!(until(&mut target, &mut far, arrived).1, alone.to_le_bytes());
            alone = if looks() == before { alone + 1 } else { 0 };
            before = looks();
            in_time!(start, "the local plugin is looked at for ever");
        }
        if turn % 2 == 0 {
            near.send(QUIET, by_memory, b"good morning");
            assert_eq!(until(&mut target, &mut near, arrived).1, b"good morning");
        } else {
            target.send(QUIET, back, b"good night");
            assert_eq!(until(&mut near, &mut target, arrived).1, b"good night");
        }
        assert!(looks() > before);
    }
}

/// A network that asks the kernel before it sleeps, as those of na/frames do: what is the local plugin's is kept for that.
#[derive(Debug, Clone)]
struct Asking;

impl Layers for Asking {
    fn layer(&self, _: &Address) -> Box<dyn Layer> {
        Box::new(Self)
    }
}

impl Layer for Asking {
    fn may_sleep(&mut self, inner: &mut dyn Context) -> bool {
        inner.waiter().wait(Some(Duration::ZERO)).unwrap();
        inner.may_sleep()
    }
}

#[test]
fn whoever_may_sleep_on_the_descriptor_finds_it_readable_for_what_has_come_by_either_way() {
    let route =
        Route::new(SmPlugin, Layered::new(TcpPlugin, Asking), node_id, &["uid", "tcp", "sm+tcp"]);
    let mut target = End::open(&route, URL, &[]);
    let (mut near, mut far) =
        (End::open(&here(), URL, &[]), End::open(&TcpPlugin, "tcp://127.0.0.1", &[]));
    let by_memory = near.lookup(&target);
    let part = target.context.address().part("tcp").unwrap();
    let by_network = far.context.lookup(&part).unwrap();
    greet(&mut near, &mut target, by_memory);
    greet(&mut far, &mut target, by_network);
    let waiter = target.context.waiter();
    for extra in (0..3).cycle().take(30) {
        rest(&mut target);
        far.send(QUIET, by_network, b"wake up");
        far.round();
        waiter.wait(Some(LIMIT)).unwrap();
        assert_eq!(until(&mut target, &mut far, arrived).1, b"wake up");
        (0..extra).for_each(|_| target.round());
        near.send(QUIET, by_memory, b"by memory");
        near.round();
        if target.context.may_sleep() {
            let mut set = [PollFd::new(waiter.fd().unwrap(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut set, PollTimeout::ZERO).unwrap(), 1, "it sleeps over a message");
        }
        assert_eq!(until(&mut target, &mut near, arrived).1, b"by memory");
    }
}

/// A frozen region of [`BYTES`].
fn frozen(end: &End) -> Region {
    let mut buffer = alloc(BYTES.len()).unwrap();
    buffer.copy_from_slice(BYTES);
    let memory = Memory::from(buffer.freeze().unwrap());
    end.domain.register(memory, Rights::READ).unwrap()
}

/// Asks for a view.
fn view(
    from: &mut End,
    owner: &mut End,
    peer: Peer,
    region: &Region,
) -> Result<SharedBytes, Error> {
    let remote = region.descriptor().slice(0, BYTES.len() as u64).unwrap();
    from.context.post(55, Op::View { from: peer, remote }).map_err(|rejected| rejected.error)?;
    until(from, owner, |completion| match completion {
        Completion::Done(Done { token: 55, result, returned, .. }) => {
            Some(match (result, returned) {
                (Ok(()), Returned::View(bytes)) => Ok(bytes.clone()),
                (Err(failure), _) => {
                    let Failure { error, .. } = failure.as_ref();
                    Err(error.clone())
                }
                other => panic!("{other:?}"),
            })
        }
        _ => None,
    })
}

/// Gets and puts what one joint descriptor names.
fn moves_both_ways(origin: &mut End, owner: &mut End, peer: Peer) {
    let region = owner.domain.register(Memory::from(BYTES.to_vec()), Rights::all()).unwrap();
    assert_eq!(get(origin, owner, peer, &region.descriptor()), BYTES);
    let near = origin.domain.register(Memory::from(b"abc".to_vec()), Rights::READ).unwrap();
    let remote = region.descriptor().slice(4, 3).unwrap();
    origin.post(8, Op::Put { to: peer, local: near.slice(0, 3).unwrap(), remote });
    assert!(until(origin, owner, ended(8)).0);
    assert_eq!(region.unregister().unwrap().into_vec().unwrap(), b"0123abc789");
}

#[test]
fn one_region_is_reached_by_shared_memory_inside_the_node_and_by_sockets_outside() {
    let mut owner = End::open(&here(), URL, &[]);
    let seen = frozen(&owner);
    for (route, way) in [(here(), "sm"), (elsewhere(), "tcp")] {
        let mut origin = End::open(&route, URL, &[]);
        let peer = origin.lookup(&owner);
        let back = greet(&mut origin, &mut owner, peer);
        assert_eq!((origin.context.way(peer), owner.context.way(back)), (way, way));
        moves_both_ways(&mut origin, &mut owner, peer);
        moves_both_ways(&mut owner, &mut origin, back);
        assert_eq!(get(&mut origin, &mut owner, peer, &seen.descriptor()), BYTES);
        let viewed = view(&mut origin, &mut owner, peer, &seen);
        assert_eq!(origin.context.views(peer), way == "sm");
        match (viewed, way) {
            (Ok(bytes), "sm") => assert_eq!(bytes.as_slice().unwrap(), BYTES),
            (Err(Error::Unsupported(_)), "tcp") => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_peer_without_room_for_another_by_shared_memory_is_reached_by_sockets_with_all_that_bulk_needs()
{
    let mut owner = End::open(&here(), URL, &[("sm.max-peers", "1")]);
    let mut first = End::open(&here(), URL, &[]);
    let peer = first.lookup(&owner);
    greet(&mut first, &mut owner, peer);
    assert_eq!(first.context.way(peer), "sm");
    let mut second = End::open(&here(), URL, &[]);
    let peer = second.lookup(&owner);
    let back = greet(&mut second, &mut owner, peer);
    assert_eq!((second.context.way(peer), owner.context.way(back)), ("tcp", "tcp"));
    moves_both_ways(&mut second, &mut owner, peer);
    let seen = frozen(&owner);
    assert!(!second.context.views(peer));
    assert!(matches!(view(&mut second, &mut owner, peer, &seen), Err(Error::Unsupported(_))));
    let peer = first.lookup(&owner);
    assert_eq!(first.context.way(peer), "sm", "the way does not change while the peer lives");
    moves_both_ways(&mut first, &mut owner, peer);
}

#[test]
fn engines_of_sockets_alone_are_reached_and_reach_by_their_part() {
    let mut routing = End::open(&here(), URL, &[]);
    let mut plain = End::open(&TcpPlugin, "tcp://127.0.0.1", &[]);
    let part = routing.context.address().part("tcp").unwrap();
    let peer = plain.context.lookup(&part).unwrap();
    let back = greet(&mut plain, &mut routing, peer);
    let own = plain.domain.register(Memory::from(BYTES.to_vec()), Rights::all()).unwrap();
    assert_eq!(get(&mut routing, &mut plain, back, &own.descriptor()), BYTES);
    let peer = routing.context.lookup(plain.context.address()).unwrap();
    assert_eq!(routing.context.way(peer), "tcp");
    greet(&mut routing, &mut plain, peer);
}

#[test]
fn settings_of_the_sockets_pass_through_and_a_key_is_theirs_alone() {
    let open = |name: &str, value: &str| {
        let options = OpenOptions::listening().with(name, value);
        here().open(&address("tcp://127.0.0.1"), &options)
    };
    for (name, value) in
        [("silence-bound-ms", "5000"), ("tcp.silence-bound-ms", "5000"), ("tcp.max-peers", "7")]
    {
        open(name, value).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    for name in ["key", "tcp.key", "key-file", "silence-bound-ms", "sm.key-file"] {
        let refused = open(name, "nonsense").unwrap_err();
        match name {
            "sm.key-file" => assert!(matches!(refused, Error::UnknownSetting { .. }), "{refused}"),
            _ => assert!(matches!(refused, Error::BadSetting { .. }), "{name}: {refused}"),
        }
        assert!(!refused.to_string().contains("allow-uid") || name.starts_with("sm"), "{refused}");
    }
}
