//! What an application costs that goes through a daemon.

use hg_na::{Address, OpenOptions, Plugin as _};
use hg_visor::VisorPlugin;
use watchdog::Watchdog;

use crate::common::Daemon;

/// Descriptors of a domain with a context: those of `sm`'s, a set, a doorbell and four of the daemon's.
const DESCRIPTORS: usize = 6;

fn entries(of: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{of}")).unwrap().count()
}

#[test]
fn a_context_has_six_descriptors_and_no_thread_whatever_it_speaks_to() {
    let _watchdog = Watchdog::start();
    let daemon = Daemon::start("one", 0);
    let plugin = VisorPlugin::through(&daemon.name);
    let open = || {
        let url = Address::new("visor://").unwrap();
        plugin.open(&url, &OpenOptions::listening()).unwrap()
    };
    // What the process has once, whatever it opens.
    let first = open();
    drop(first.context(0).unwrap());
    let before = (entries("fd"), entries("task"));
    let second = open();
    let context = second.context(0).unwrap();
    let after = (entries("fd"), entries("task"));
    assert!(after.0 <= before.0 + DESCRIPTORS, "{before:?}, then {after:?}");
    assert_eq!(after.1, before.1);
    drop(context);
}
