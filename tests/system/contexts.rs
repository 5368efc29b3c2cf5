//! Engines of several contexts behind one address, over each transport: threads have connections of their own, targets die.

use std::{collections::HashSet, thread};

use hg::{CallError, Engine, Peer, bulk::Rights};

use crate::{
    common::{Child, Watchdog},
    roles::{add, relay, serve_all, served_by},
    transports::{open_over, urls},
};

const CONTEXTS: usize = 4;

fn open(url: &str) -> Engine {
    let engine = open_over(hg::builder().contexts(CONTEXTS).listen(true), url).unwrap();
    serve_all(&engine);
    engine
}

fn target(url: &str) -> (Child, String) {
    Child::target(&format!("contexts={CONTEXTS} url={url}"))
}

/// What as many threads as there are contexts have come to.
fn in_threads<T: Send>(work: impl Fn() -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..CONTEXTS).map(|_| scope.spawn(&work)).collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

fn contexts(engine: &Engine) -> impl Iterator<Item = Engine> {
    (0..CONTEXTS).map_while(|index| engine.context(index))
}

/// Which context of the target serves each of this engine's.
fn servers(engine: &Engine, peer: &Peer) -> Vec<String> {
    contexts(engine).map(|it| it.call(served_by, peer, ()).wait().unwrap()).collect()
}

#[test]
fn threads_share_a_peer_and_reach_all_contexts_of_another_process() {
    let _watchdog = Watchdog::start();
    for url in urls() {
        let (_target, address) = target(url);
        assert!(address.ends_with("*4"), "{address}");
        let engine = open(url);
        let peer = engine.lookup(&address).unwrap();
        assert_eq!(engine.lookup(&address).unwrap(), peer);
        let reached = servers(&engine, &peer);
        assert_eq!(reached.iter().collect::<HashSet<_>>().len(), CONTEXTS, "{reached:?}");
        for (index, expected) in reached.iter().enumerate() {
            let chosen = engine.address_at(&address, index).unwrap();
            assert_eq!(chosen.as_str(), expected);
            let chosen = engine.lookup(chosen).unwrap();
            assert!(servers(&engine, &chosen).iter().all(|it| it == expected));
        }
        // Over whatever it travels, the address of all contexts is one that the other side looks up and calls.
        let back = engine.address().to_string();
        assert!(back.ends_with("*4"), "{back}");
        in_threads(|| {
            for number in 0..100 {
                assert_eq!(engine.call(add, &peer, (number, 1)).wait().unwrap(), number + 1);
            }
            let relayed = engine.call(relay, &peer, (back.clone(), 20, 22)).wait().unwrap();
            assert_eq!(relayed, 42);
        });
    }
}

#[test]
fn memory_is_moved_by_threads_that_share_a_peer() {
    let _watchdog = Watchdog::start();
    for url in urls() {
        let (owner, user) = (open(url), open(url));
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(300_000).collect();
        let memory = owner.expose(bytes.clone(), Rights::READ | Rights::WRITE).unwrap();
        let descriptor = memory.bound_descriptor();
        assert_eq!(descriptor.owner(), Some(owner.address()));
        let peer = user.owner_of(&descriptor).unwrap();
        assert_eq!(user.lookup(owner.address()).unwrap(), peer);
        in_threads(|| {
            assert_eq!(user.fetch(&peer, &descriptor).wait().unwrap(), bytes);
            let local = user.expose(vec![0; bytes.len()], Rights::READ).unwrap();
            user.pull(&peer, &descriptor, &local).wait().unwrap();
            user.push(&peer, &local, &descriptor).wait().unwrap();
            assert_eq!(user.view(&peer, &descriptor).wait().unwrap().to_vec().unwrap(), bytes);
        });
        assert_eq!((user.transfers_under_way(), user.calls_under_way()), (0, 0));
    }
}

#[test]
fn a_killed_target_is_gone_for_each_thread_and_its_successor_is_another_peer() {
    let _watchdog = Watchdog::start();
    let named = format!("sm://contexts-{}", std::process::id());
    for url in urls().map(str::to_owned).chain([named]) {
        let engine = open(if url.starts_with("sm://") { "sm://" } else { &url });
        let (mut first, address) = target(&url);
        let old = engine.lookup(&address).unwrap();
        servers(&engine, &old);
        first.kill();
        in_threads(|| {
            let gone = engine.call(add, &old, (1, 2)).wait().unwrap_err();
            assert!(matches!(gone, CallError::PeerGone { .. }), "{gone}");
        });
        let (_second, address) = target(&url);
        // Not every context need have heard of the end of the first one; each hears of it by a call, and once.
        let mut gone = 0;
        let new = loop {
            let new = engine.lookup(&address).unwrap();
            let calls = contexts(&engine).map(|it| it.call(add, &new, (1, 2)).wait());
            match calls.collect::<Result<Vec<_>, _>>() {
                Ok(_) => break new,
                Err(error) => assert!(matches!(error, CallError::PeerGone { .. }), "{error}"),
            }
            gone += 1;
            assert!(gone <= CONTEXTS, "{gone} contexts have heard of one end");
        };
        assert_ne!(new, old);
        in_threads(|| {
            assert_eq!(engine.call(add, &new, (1, 2)).wait().unwrap(), 3);
            assert!(
                engine.call(add, &old, (1, 2)).wait().is_err(),
                "an old peer is never good again"
            );
        });
        engine.forget(new);
    }
}

#[test]
fn whoever_reaches_one_transport_of_an_address_takes_that_part_of_it() {
    let _watchdog = Watchdog::start();
    for url in urls() {
        let (_target, address) = target(url);
        let engine = hg::builder().contexts(2).setting("routing", "off").open("sm://").unwrap();
        let Ok(peer) = engine.lookup(&address) else {
            assert!(!address.contains("sm://"), "{address}");
            continue;
        };
        let reached: HashSet<_> = servers(&engine, &peer).into_iter().collect();
        assert_eq!(reached.len(), 2, "{address}");
    }
    let engine = open("sm://");
    for wrong in ["sm://a/0*0", "tcp://127.0.0.1:1*999", "uid://a#sm://a/0#tcp://127.0.0.1:1*x"] {
        assert!(engine.lookup(wrong).is_err(), "{wrong}");
    }
    let why = engine.lookup("sm://a/0*999").unwrap_err().to_string();
    assert!(why.contains("how many contexts there are, 1 to 256"), "{why}");
}
