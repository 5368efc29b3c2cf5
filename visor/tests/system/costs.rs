//! What an application costs that goes through a daemon.

use std::io::{Read as _, Write as _};

use hg_na::{Address, OpenOptions, Plugin as _};
use hg_visor::VisorPlugin;
use watchdog::Watchdog;

use crate::common::{Daemon, Process, echo, engine, length, listening, through};

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

/// Applications whose memory is measured, beyond the first, and targets that each calls.
const APPLICATIONS: u64 = 16;
const TARGETS: usize = 3;
/// Of an application, with what its daemon keeps for it: less than twice as much as it takes (94 KiB), and than the 512 KiB that it may.
const MEMORY_KIB: u64 = 160;

#[test]
fn an_application_that_has_called_others_costs_little_memory_with_its_daemon_s_part() {
    let _watchdog = Watchdog::start();
    let daemon = Daemon::start("one", 0);
    let targets: Vec<_> = (0..TARGETS).map(|_| listening(&daemon, "visor://")).collect();
    let addresses: Vec<_> = targets.iter().map(|it| it.address().to_string()).collect();
    let mut process = Process::application("costs", &daemon.name, &addresses.join(","));
    let mut memory = || {
        process.hear("called");
        let memory = process.memory_kib() + daemon.memory_kib();
        process.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        memory
    };
    let (first, all) = (memory(), memory());
    let each = all.saturating_sub(first) / APPLICATIONS;
    assert!(each <= MEMORY_KIB, "{each} KiB each: {first} KiB, then {all}");
    assert!(each > MEMORY_KIB / 8, "{each} KiB each: it was not measured");
}

/// Calls with a large argument, which travels in so many frames of 64 KiB; as many pages are in each.
const LARGE: usize = 4 << 20;
const FRAMES: u64 = 64;
const LARGE_CALLS: u64 = 32;

#[test]
#[cfg_attr(not(target_env = "gnu"), ignore = "another allocator")]
fn a_daemon_uses_the_memory_of_frames_again_instead_of_asking_the_kernel_for_each() {
    let _watchdog = Watchdog::start();
    let daemons = ["near", "far"].map(|name| Daemon::start(name, 0));
    let (origin, target) = (engine(&daemons[0]), listening(&daemons[1], "visor://"));
    let peer = origin.lookup(target.address()).unwrap();
    let call = || {
        let sent = (LARGE as u64, LARGE as u64);
        assert_eq!(origin.call(length, &peer, (vec![1; LARGE],)).wait().unwrap(), sent);
    };
    // What they have once.
    call();
    let before = daemons.each_ref().map(Daemon::page_faults);
    (0..LARGE_CALLS).for_each(|_| call());
    for (daemon, before) in daemons.iter().zip(before) {
        let faults = daemon.page_faults() - before;
        assert!(faults < FRAMES * LARGE_CALLS, "{faults} page faults of {}", daemon.name);
    }
}

/// What the process does whose applications are measured: one calls, then the others do.
pub(crate) fn applications(daemon: &str, targets: &str) {
    let mut engines = Vec::new();
    for count in [1, APPLICATIONS] {
        for _ in 0..count {
            let engine = through(daemon, "visor://", true).unwrap();
            for target in targets.split(',') {
                let peer = engine.lookup(target).unwrap();
                for number in 0..10 {
                    assert_eq!(engine.call(echo, &peer, (number,)).wait().unwrap(), number);
                }
                assert_eq!(
                    engine.call(length, &peer, (vec![1; 10_000],)).wait().unwrap().0,
                    10_000
                );
            }
            engines.push(engine);
        }
        println!("\ncalled");
        std::io::stdin().read_exact(&mut [0]).unwrap();
    }
}
