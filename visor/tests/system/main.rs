//! Whole systems: daemons that are processes, applications that are processes, and who of them is killed, lies or leaves.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]
#![expect(clippy::print_stdout, reason = "a child tells its parent")]

mod common;
mod costs;
mod daemons;
mod deaths;
mod fairness;
mod metrics;
mod networks;
mod scribble;
mod several;
mod shares;
mod sockets;
mod strangers;
mod upgrades;
mod users;
mod withheld;

use common::{Daemon, echo, engine, length, listening};
use watchdog::Watchdog;

#[test]
fn calls_and_bulk_data_go_through_two_daemons_unchanged() {
    let _watchdog = Watchdog::start();
    calls_and_bulk_data();
}

fn calls_and_bulk_data() {
    let (near, far) = (Daemon::start("near", 0), Daemon::start("far", 0));
    let target = listening(&far, "visor://store");
    let expected = format!("visor://store/0@{}", far.address);
    assert_eq!(target.address().to_string(), expected);
    let origin = engine(&near);
    let peer = origin.lookup(target.address()).unwrap();
    assert_eq!(origin.way_of(&peer), "visor");
    for number in 0..100 {
        assert_eq!(origin.call(echo, &peer, (number,)).wait().unwrap(), number);
    }
    for len in [0_usize, 56, 16_000, 17_000, 3_000_000] {
        let bytes: Vec<u8> = (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let expected = (len as u64, bytes.iter().map(|byte| u64::from(*byte)).sum());
        assert_eq!(origin.call(length, &peer, (bytes,)).wait().unwrap(), expected);
    }
    let status = near.status();
    let passed = status["bytes_passed"].as_u64().unwrap();
    assert!(passed > 3_000_000 && status["connections"] == 1, "{status}");
    drop((origin, peer, target));
    near.until("no connection is left", |status| status["connections"] == 0);
    far.until("no connection is left", |status| status["connections"] == 0);
}

#[test]
fn another_spelling_of_an_address_reaches_the_same_node_and_keeps_nobody_from_it() {
    let _watchdog = Watchdog::start();
    let (near, far) = (Daemon::start("near", 0), Daemon::start("far", 0));
    let target = listening(&far, "visor://store");
    let spelled = hg::Address::new(&format!("{}/0", target.address())).unwrap();
    let (first, second) = (engine(&near), engine(&near));
    let there = first.lookup(&spelled).unwrap();
    assert_eq!(first.call(echo, &there, (1,)).wait().unwrap(), 1);
    let peer = second.lookup(target.address()).unwrap();
    assert_eq!(second.call(echo, &peer, (2,)).wait().unwrap(), 2);
    assert_eq!(first.call(echo, &there, (3,)).wait().unwrap(), 3);
    assert_eq!(near.status()["daemons"], 1);
    drop((first, second, target, peer, there));
    near.until("no connection is left", |status| status["connections"] == 0);
    far.until("no connection is left", |status| status["connections"] == 0);
}

#[test]
fn applications_of_one_node_reach_each_other_and_know_who_calls() {
    let _watchdog = Watchdog::start();
    let daemon = Daemon::start("one", 0);
    let (target, origin) = (listening(&daemon, "visor://"), engine(&daemon));
    let peer = origin.lookup(target.address()).unwrap();
    let own = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap());
    let (uid, pid) = origin.call(common::whoami, &peer, ()).wait().unwrap();
    assert_eq!((uid, pid), (Some(own), Some(std::process::id())));
}
