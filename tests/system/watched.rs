//! What is said of a test that hangs.

use std::process::Command;

use hg::Engine;

use crate::{
    common::{Child, Watchdog, watchdog},
    roles::{add, never},
};

#[test]
fn a_test_that_hangs_is_told_by_its_stacks_its_engines_and_those_of_its_processes() {
    let _watchdog = Watchdog::within(2 * watchdog::LIMIT);
    let (mut target, address) = Child::target("url=sm://");
    let origin = Engine::open("sm://").unwrap();
    let peer = origin.lookup(&address).unwrap();
    assert_eq!(origin.call(add, &peer, (1, 2)).wait().unwrap(), 3);
    let hangs = origin.call(never, &peer, ());
    let said = watchdog::report();
    let engine = format!("context 0 at {}: ", origin.address());
    let line = said.lines().find(|line| line.starts_with(&engine)).expect(&said);
    assert!(line.contains("1 calls") && line.contains("0 transfers"), "{line}");
    for process in [std::process::id(), target.pid()] {
        assert!(said.contains(&format!("stacks of process {process}:")), "{said}");
    }
    let has_gdb = Command::new("gdb").arg("--version").output().is_ok();
    let says_so = said.contains("gdb has to be installed, and allowed to look");
    let has_stacks = said.contains("watchdog::report");
    assert!(if has_gdb { has_stacks || says_so } else { says_so }, "{said}");
    // Whoever was looked at goes on.
    assert_eq!(target.ask("kept"), "0");
    drop(hangs);
    assert_eq!(origin.call(add, &peer, (1, 2)).wait().unwrap(), 3);
}
