//! Calls and bulk data over `verbs://`, through the facade, between processes on two cards that a cable joins, and over shared memory inside
//! the node. `tests/verbs-vm` runs it over soft-RoCE in a virtual machine.
//!
//! `HG_VERBS_DEVICES` names both cards: `rxe0,rxe1`.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "../ofi/target.rs"]
mod target;

use std::{env, fs, process::Command};

use hg::{CallError, bulk::Rights};
use target::{
    MIB, Target, add, assert_answers, assert_moves, assert_succeeded, builder, echo, pattern,
    reversed,
};
use watchdog::Watchdog;

const DEVICES: &str = "HG_VERBS_DEVICES";
/// Deaths of [`killed_targets_cost_nobody_else_anything_and_leave_nothing`].
const KILLS: &str = "HG_TEST_KILLS";

/// The URL of a card: 0 or 1.
fn url(card: usize) -> String {
    let devices = env::var(DEVICES).unwrap_or_default();
    let devices: Vec<&str> = devices.split(',').collect();
    format!("verbs://{}", devices[card % devices.len()])
}

#[test]
fn calls_and_arguments_of_8_mib_come_back() {
    let _watchdog = Watchdog::start();
    let target = Target::start(&url(0), "off");
    let engine = builder("off").open(&url(1)).unwrap();
    let peer = engine.lookup(&target.address).unwrap();
    assert_answers(&engine, &peer, &pattern(8 * MIB), "verbs");
    assert_eq!(engine.way_of(&peer), "verbs");
}

#[test]
fn bulk_data_moves_both_ways_and_stale_descriptors_move_nothing() {
    let _watchdog = Watchdog::start();
    let target = Target::start(&url(0), "off");
    let engine = builder("off").listen(true).open(&url(1)).unwrap();
    let peer = engine.lookup(&target.address).unwrap();
    assert_moves(&engine, &peer, &[1, 4097, 32 << 10, 5 * MIB + 5], "verbs");
}

#[test]
fn one_address_names_both_ways() {
    let _watchdog = Watchdog::start();
    let target = Target::start(&url(0), "on");
    let address: hg::Address = target.address.parse().unwrap();
    assert!(address.part("sm").is_some() && address.part("verbs").is_some(), "{address}");
    let engine = builder("on").open(&url(1)).unwrap();
    let peer = engine.lookup(&target.address).unwrap();
    assert_eq!(engine.call(add, &peer, (3, 4)).wait().unwrap(), 7);
    assert_eq!(engine.way_of(&peer), "sm");
    // Whoever has no shared memory with it takes the network's part.
    let engine = builder("off").open(&url(1)).unwrap();
    let peer = engine.lookup(address.part("verbs").unwrap().as_str()).unwrap();
    assert_eq!(engine.call(add, &peer, (3, 4)).wait().unwrap(), 7);
    assert_eq!(engine.way_of(&peer), "verbs");
}

#[test]
fn a_killed_target_is_reported_and_its_successor_is_a_new_peer() {
    let _watchdog = Watchdog::start();
    let target = Target::start(&url(0), "off");
    let engine = builder("off").open(&url(1)).unwrap();
    let again = target.address.clone();
    assert_succeeded(&engine, target, &again, "off");
}

/// The network device of a soft-RoCE card; up again when dropped.
struct Cable(String);

impl Cable {
    /// Takes it down.
    fn cut(card: usize) -> Self {
        let name = url(card).trim_start_matches("verbs://").to_owned();
        let path = format!("/sys/class/infiniband/{name}/ports/1/gid_attrs/ndevs/1");
        let cable = Self(fs::read_to_string(path).unwrap().trim().to_owned());
        cable.set("down");
        cable
    }

    fn set(&self, state: &str) {
        let status = Command::new("ip").args(["link", "set", &self.0, state]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.set("up");
    }
}

/// How often a card has repeated something.
fn repetitions(card: usize) -> u64 {
    let name = url(card).trim_start_matches("verbs://").to_owned();
    let counters = format!("/sys/class/infiniband/{name}/ports/1/hw_counters");
    let read = |counter| fs::read_to_string(format!("{counters}/{counter}")).unwrap();
    read("completer_retry_err").trim().parse().unwrap()
}

#[test]
fn a_cut_of_the_cable_costs_time_and_a_port_that_is_down_costs_the_peer() {
    let _watchdog = Watchdog::start();
    let target = Target::start(&url(0), "off");
    let engine = builder("off").open(&url(1)).unwrap();
    let peer = engine.lookup(&target.address).unwrap();
    assert_eq!(engine.call(add, &peer, (1, 1)).wait().unwrap(), 2);
    let before = repetitions(1);
    // The other end: here packets leave, and are lost.
    let cable = Cable::cut(0);
    let call = engine.call(add, &peer, (1, 2));
    watchdog::until("the card repeats what nobody answers", || repetitions(1) >= before + 2);
    drop(cable);
    assert_eq!(call.wait().unwrap(), 3);
    // Its own end.
    let cable = Cable::cut(1);
    let failed = engine.call(add, &peer, (1, 1)).wait();
    assert!(matches!(failed, Err(CallError::PeerGone { .. })), "{failed:?}");
    drop(cable);
    // The target was not told, and is there.
    let peer = engine.lookup(&target.address).unwrap();
    assert_eq!(engine.call(add, &peer, (2, 2)).wait().unwrap(), 4);
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn killed_targets_cost_nobody_else_anything_and_leave_nothing() {
    let kills = env::var(KILLS).ok().and_then(|it| it.parse().ok()).unwrap_or(10);
    let engine = builder("off").listen(true).open(&url(1)).unwrap();
    let living = Target::start(&url(0), "off");
    let friend = engine.lookup(&living.address).unwrap();
    assert_eq!(engine.call(add, &friend, (1, 1)).wait().unwrap(), 2);
    let from = engine.expose(pattern(2 * MIB), Rights::READ).unwrap();
    let mut before = None;
    for _ in 0..kills {
        let _watchdog = Watchdog::start();
        let mut target = Target::start(&url(0), "off");
        let peer = engine.lookup(&target.address).unwrap();
        assert_eq!(engine.call(add, &peer, (1, 1)).wait().unwrap(), 2);
        let into = engine.expose(vec![0; 2 * MIB], Rights::WRITE).unwrap();
        let transfer = engine.call(reversed, &peer, (from.bound_descriptor(), into.descriptor()));
        let large = pattern(MIB);
        let call = engine.call(echo, &peer, (&large,));
        target.kill();
        // Each ends, well or with its peer; none is waited for in vain.
        let (moved, called) = (transfer.wait(), call.wait());
        assert!(matches!(moved, Ok(_) | Err(CallError::PeerGone { .. })), "{moved:?}");
        assert!(matches!(called, Ok(_) | Err(CallError::PeerGone { .. })), "{:?}", called.err());
        drop(into);
        assert_eq!(engine.call(add, &friend, (2, 2)).wait().unwrap(), 4);
        let now = descriptors();
        assert!(now <= *before.get_or_insert(now), "a descriptor is left of each");
    }
}
