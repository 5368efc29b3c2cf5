//! Who is killed, and what the others see of it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use hg::{CallError, Engine};
use watchdog::Watchdog;

use crate::common::{Daemon, Process, echo, engine, hang, listening};

/// Applications that are killed by default; `VISOR_KILLS` says how many otherwise.
const KILLS: usize = 40;
/// Steps of the time that one lives, of 0 to 63.
const MOMENT: Duration = Duration::from_millis(1);
/// Memory that a daemon may have more after them, whatever their number.
const GROWTH_KIB: u64 = 4096;

/// Calls all the time, and never sees an error.
pub(crate) fn witness(
    origin: Engine,
    target: &str,
    stop: &Arc<AtomicBool>,
) -> std::thread::JoinHandle<u64> {
    let (peer, stop) = (origin.lookup(target).unwrap(), Arc::clone(stop));
    std::thread::spawn(move || {
        let mut number = 0;
        // Relaxed: only that it ends.
        while !stop.load(Ordering::Relaxed) {
            assert_eq!(origin.call(echo, &peer, (number,)).wait().unwrap(), number);
            number += 1;
        }
        number
    })
}

#[test]
fn applications_killed_under_load_leave_nothing_and_nobody_else_sees_an_error() {
    let kills = std::env::var("VISOR_KILLS").ok().and_then(|it| it.parse().ok()).unwrap_or(KILLS);
    let _watchdog = Watchdog::within(watchdog::LIMIT * u32::try_from(1 + kills / KILLS).unwrap());
    kill_applications(kills);
}

pub(crate) fn kill_applications(kills: usize) {
    let (near, far) = (Daemon::start("near", 0), Daemon::start("far", 0));
    let target = listening(&far, "visor://");
    let address = target.address().to_string();
    let stop = Arc::default();
    let witnesses =
        [witness(engine(&near), &address, &stop), witness(engine(&far), &address, &stop)];
    let mut number = 0_u64;
    let mut kill_one = |daemon: &Daemon| {
        let mut application = Process::application("load", &daemon.name, &address);
        number += 1;
        // Daemons have turns: of each one's victims every other is heard first.
        if (number / 2).is_multiple_of(2) {
            application.hear("busy");
        }
        // At any moment: of its greeting, while it opens, or later.
        let end = Instant::now() + MOMENT * u32::try_from(number * 7919 % 64).unwrap();
        while Instant::now() < end {
            std::thread::yield_now();
        }
        application.kill();
    };
    let until_witnesses_are_left = || {
        near.until("only the witness is left", |status| {
            status["connections"] == 1 && status["applications"] == 1
        });
        far.until("only target and witnesses are left", |status| {
            status["connections"] == 2 && status["applications"] == 2
        });
    };
    // What a network opens at its first uses, it has from now on.
    [&near, &far].into_iter().cycle().take(8).for_each(&mut kill_one);
    until_witnesses_are_left();
    let before = [&near, &far].map(|it| (it.descriptors(), it.mappings(), it.threads()));
    let memory = [&near, &far].map(Daemon::memory_kib);
    [&near, &far].into_iter().cycle().take(kills).for_each(&mut kill_one);
    until_witnesses_are_left();
    // A question costs a connection of its own, of which the first count may have had some.
    for (daemon, before) in [&near, &far].into_iter().zip(before) {
        watchdog::until("all descriptors, mappings and threads are back", || {
            let (descriptors, mappings, threads) = before;
            daemon.descriptors() <= descriptors
                && daemon.mappings() <= mappings
                && daemon.threads() <= threads
        });
    }
    // Of each application that is killed it has had some hundred KiB.
    let after = [&near, &far].map(Daemon::memory_kib);
    let grown = |at: usize| after[at].saturating_sub(memory[at]);
    assert!(grown(0).max(grown(1)) <= GROWTH_KIB, "{memory:?} KiB, then {after:?}");
    // Relaxed: as above.
    stop.store(true, Ordering::Relaxed);
    for witness in witnesses {
        assert!(witness.join().unwrap() > 0);
    }
    assert_eq!(
        (near.status()["disconnected"].clone(), far.status()["disconnected"].clone()),
        (0.into(), 0.into())
    );
}

#[test]
fn a_target_that_is_killed_ends_the_calls_to_it_and_its_name_is_free_again() {
    let _watchdog = Watchdog::start();
    kill_a_target();
}

pub(crate) fn kill_a_target() {
    let (near, far) = (Daemon::start("near", 0), Daemon::start("far", 0));
    let mut target = Process::application("serve", &far.name, "visor://phoenix");
    let address = target.hear("address");
    let origin = engine(&near);
    let peer = origin.lookup(&address).unwrap();
    assert_eq!(origin.call(echo, &peer, (1,)).wait().unwrap(), 1);
    let open = origin.call(hang, &peer, ());
    target.kill();
    let error = open.wait().unwrap_err().to_string();
    assert!(error.contains("its process has ended"), "{error}");
    assert!(origin.call(echo, &peer, (2,)).wait().is_err(), "an old handle is never good again");
    let mut target = Process::application("serve", &far.name, "visor://phoenix");
    assert_eq!(target.hear("address"), address);
    let peer = origin.lookup(&address).unwrap();
    assert_eq!(origin.call(echo, &peer, (3,)).wait().unwrap(), 3);
}

#[test]
fn a_daemon_that_is_killed_is_a_named_error_and_its_successor_is_found_again() {
    let _watchdog = Watchdog::start();
    kill_a_daemon();
}

pub(crate) fn kill_a_daemon() {
    let (mut near, far) = (Daemon::start("near", 0), Daemon::start("far", 0));
    let port = near.address.rsplit(':').next().unwrap().parse().unwrap();
    let (target, origin) = (listening(&near, "visor://store"), engine(&far));
    let local = engine(&near);
    let address = target.address().to_string();
    let call = |origin: &Engine| -> Result<u64, String> {
        let peer = origin.lookup(&address).map_err(|error| error.to_string())?;
        origin.call(echo, &peer, (7,)).wait().map_err(|error: CallError| error.to_string())
    };
    assert_eq!((call(&origin), call(&local)), (Ok(7), Ok(7)));
    let peers = [&origin, &local].map(|it| it.lookup(&address).unwrap());
    let [across, inside] = [origin.call(hang, &peers[0], ()), local.call(hang, &peers[1], ())];
    near.process.kill();
    let said = inside.wait().unwrap_err().to_string();
    assert!(said.contains("the daemon hg-visor of this node"), "{said}");
    // What the other node's daemon was told of the way there.
    across.wait().unwrap_err();
    let said = call(&local).unwrap_err();
    assert!(said.contains("hg-visor"), "{said}");
    drop(near);
    let near = Daemon::start("near", port);
    watchdog::until("the target is called again inside its node", || call(&local) == Ok(7));
    watchdog::until("the target is called again from the other", || call(&origin) == Ok(7));
    assert_eq!(near.status()["applications"], 2);
}
