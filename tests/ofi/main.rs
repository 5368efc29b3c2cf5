//! Calls and bulk data over libfabric, through the facade, between processes: `ofi+tcp://` and `ofi+shm://`, and
//! `ofi+tcp://` that is reached by shared memory inside the node.

#![cfg(all(feature = "ofi", feature = "sm-routing"))]
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod target;

use hg::Error;
use target::{MIB, Target, add, assert_answers, assert_moves, assert_succeeded, builder, pattern};
use watchdog::Watchdog;

/// URL, its setting `routing`, and the way that calls take.
const WAYS: [(&str, &str, &str); 3] = [
    ("ofi+tcp://127.0.0.1", "off", "ofi+tcp"),
    ("ofi+shm://", "", "ofi+shm"),
    ("ofi+tcp://127.0.0.1", "", "sm"),
];

#[test]
fn calls_and_arguments_of_64_mib_come_back() {
    let _watchdog = Watchdog::start();
    let large = pattern(64 * MIB);
    for (url, routing, way) in WAYS {
        let target = Target::start(url, routing);
        let engine = builder(routing).open(url).unwrap();
        let peer = engine.lookup(&target.address).unwrap();
        // The tests of shared memory move more.
        let large = if way == "sm" { &large[..1] } else { &large };
        assert_answers(&engine, &peer, large, url);
        assert_eq!(engine.way_of(&peer), way);
    }
}

#[test]
fn bulk_data_moves_both_ways_and_stale_descriptors_move_nothing() {
    let _watchdog = Watchdog::start();
    for (url, routing, _) in WAYS {
        let target = Target::start(url, routing);
        let engine = builder(routing).listen(true).open(url).unwrap();
        let peer = engine.lookup(&target.address).unwrap();
        assert_moves(&engine, &peer, &[1, 4097, 3 * MIB + 5], url);
    }
}

#[test]
fn a_killed_target_is_reported_and_its_successor_is_a_new_peer() {
    let _watchdog = Watchdog::start();
    for (url, routing, _) in &WAYS[..2] {
        let target = Target::start(url, routing);
        let engine = builder(routing).open(url).unwrap();
        let (scheme, place) = target.address.split_once("://").unwrap();
        let again = format!("{scheme}://{}", place.trim_end_matches("/0"));
        assert_succeeded(&engine, target, &again, routing);
    }
}

/// What libfabric's `shm` has in memory for a process.
fn memory_of(process: u32) -> Vec<std::ffi::OsString> {
    let own = format!("{process}:");
    let all = std::fs::read_dir("/dev/shm").unwrap().map(|it| it.unwrap().file_name());
    all.filter(|name| name.to_string_lossy().starts_with(&own)).collect()
}

#[test]
fn what_a_killed_process_leaves_is_removed_by_its_peer() {
    let _watchdog = Watchdog::start();
    let (mut target, living) = (Target::start("ofi+shm://", ""), Target::start("ofi+shm://", ""));
    let engine = hg::open("ofi+shm://").unwrap();
    let [peer, friend] = [&target, &living].map(|it| engine.lookup(&it.address).unwrap());
    assert_eq!(engine.call(add, &peer, (1, 1)).wait().unwrap(), 2);
    assert_eq!(memory_of(target.process.id()).len(), 1);
    target.kill();
    assert!(engine.call(add, &peer, (1, 1)).wait().is_err());
    watchdog::until("the dead one's memory is removed", || {
        assert_eq!(engine.call(add, &friend, (1, 1)).wait().unwrap(), 2);
        memory_of(target.process.id()).is_empty()
    });
    assert_eq!(memory_of(living.process.id()).len(), 1, "who lives keeps it");
}

#[test]
fn what_processes_leave_that_died_at_once_is_removed_by_the_next() {
    let _watchdog = Watchdog::start();
    let (mut target, living) = (Target::start("ofi+shm://", ""), Target::start("ofi+shm://", ""));
    target.kill();
    assert_eq!(memory_of(target.process.id()).len(), 1);
    drop(hg::open("ofi+shm://").unwrap());
    assert_eq!(memory_of(target.process.id()).len(), 0);
    assert_eq!(memory_of(living.process.id()).len(), 1, "who lives keeps it");
}

#[test]
fn one_address_names_both_ways() {
    let _watchdog = Watchdog::start();
    let target = Target::start("ofi+tcp://127.0.0.1", "");
    assert!(target.address.starts_with("uid://"), "{}", target.address);
    let address: hg::Address = target.address.parse().unwrap();
    assert!(address.part("sm").is_some());
    // Whoever has no shared memory with it takes the network's part.
    let engine = builder("off").open("ofi+tcp://127.0.0.1").unwrap();
    let peer = engine.lookup(address.part("ofi+tcp").unwrap().as_str()).unwrap();
    assert_eq!(engine.call(add, &peer, (3, 4)).wait().unwrap(), 7);
    assert_eq!(engine.way_of(&peer), "ofi+tcp");
}

#[test]
fn what_is_missing_is_said_when_it_is_opened() {
    let error = hg::listen("ofi+cxi://").map(drop).unwrap_err();
    assert!(
        matches!(error, Error::Missing { .. }) && error.to_string().contains("no provider `cxi`"),
        "{error}"
    );
}
