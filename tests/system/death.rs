//! Processes that are killed, and what is left of them: nothing.

use std::{
    collections::VecDeque,
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use hg::{CallError, Engine, GoneReason, Progress, Started, Wait};

use crate::{
    common::{
        Child, Random, Watchdog, block_on, falls_to,
        process::{
            abstract_sockets, fds, left_in_file_systems, maps, rss_kib, threads,
            until_nothing_is_left_but,
        },
        settled, until,
    },
    roles::{add, echo, never},
    transports::{bulk_urls, open_over, urls, witness_over},
};

fn is_gone<T, E>(result: &Result<T, CallError<E>>) -> bool {
    matches!(result, Err(CallError::PeerGone { .. }))
}

/// Calls until the target is gone; gives the number of calls that were served before.
fn call_until_gone(engine: &Engine, peer: &hg::Peer, started: &AtomicUsize, len: usize) -> u64 {
    let body = vec![3; len];
    let mut served = 0;
    loop {
        match engine.call(echo, peer, (&body,)).wait() {
            Ok(answer) => assert_eq!(answer, body),
            gone => {
                assert!(is_gone(&gone), "{gone:?}");
                return served;
            }
        }
        if served == 0 {
            started.fetch_add(1, Ordering::SeqCst);
        }
        served += 1;
    }
}

#[test]
fn killing_the_target_ends_every_call_with_peer_gone() {
    let _watchdog = Watchdog::start();
    let waits = [Wait::Block, Wait::default(), Wait::Spin];
    for (url, wait) in urls().flat_map(|url| waits.map(|wait| (url, wait))) {
        let (mut target, address) = Child::target(&format!("url={url}"));
        let engine = open_over(hg::builder().wait(wait), url).unwrap();
        let peer = engine.lookup(&address).unwrap();
        let (started, posted) = (AtomicUsize::new(0), Barrier::new(5));
        thread::scope(|scope| {
            for thread in 0..4 {
                let (engine, peer, started) = (&engine, &peer, &started);
                scope.spawn(move || call_until_gone(engine, peer, started, 8 + 9000 * thread));
            }
            for thread in 0..4 {
                let (engine, peer, posted) = (&engine, &peer, &posted);
                scope.spawn(move || {
                    let calls: VecDeque<_> =
                        (0..50).map(|_| engine.call(never, peer, ())).collect();
                    posted.wait();
                    for call in calls {
                        let result = if thread % 2 == 0 { call.wait() } else { block_on(call) };
                        assert!(is_gone(&result), "{result:?}");
                    }
                });
            }
            scope.spawn(|| {
                let result = block_on(engine.call(never, &peer, ()));
                assert!(is_gone(&result), "{result:?}");
            });
            posted.wait();
            until(|| started.load(Ordering::SeqCst) == 4);
            target.kill();
        });
        assert_eq!(engine.calls_under_way(), 0);
        let after = engine.call(add, &peer, (1, 2)).wait().unwrap_err();
        let CallError::PeerGone { started: Started::No, reason } = &after else {
            panic!("{after}")
        };
        assert_eq!(*reason, GoneReason::Ended, "it did not close: it was killed");
        assert!(engine.notify(add, &peer, (1, 2)).wait().is_err());
    }
}

#[test]
fn a_target_that_is_started_again_at_its_name_is_a_new_peer() {
    let _watchdog = Watchdog::start();
    let name = format!("restarted-{}", std::process::id());
    let url = format!("sm://{name}");
    let engine = hg::open("sm://").unwrap();
    let mut old = Vec::new();
    for _ in 0..5 {
        let (mut target, _) = Child::target(&format!("name={name}"));
        let peer = engine.lookup(&url).unwrap();
        assert!(!old.contains(&peer), "an old handle came back");
        assert_eq!(engine.call(add, &peer, (1, 2)).wait().unwrap(), 3);
        for gone in &old {
            assert!(is_gone(&engine.call(add, gone, (1, 2)).wait()));
        }
        let open = engine.call(never, &peer, ());
        target.kill();
        let result = open.wait();
        let Err(CallError::PeerGone { reason, .. }) = result else { panic!("{result:?}") };
        assert_eq!(reason, GoneReason::Exited);
        old.push(peer);
    }
    let nobody = engine.lookup(&url).unwrap();
    let error = engine.call(add, &nobody, (1, 2)).wait().unwrap_err();
    assert!(matches!(error, CallError::PeerGone { started: Started::No, .. }), "{error}");
    assert!(error.to_string().contains("nobody listens"), "{error}");
}

#[test]
fn an_engine_with_progress_of_its_own_learns_of_a_death_in_progress() {
    let _watchdog = Watchdog::start();
    for url in urls() {
        let (mut target, address) = Child::target(&format!("url={url}"));
        let engine = open_over(hg::builder().progress(Progress::Own), url).unwrap();
        let peer = engine.lookup(&address).unwrap();
        let mut call = engine.call(never, &peer, ());
        while !engine.progress(Duration::ZERO) {}
        target.kill();
        let result = loop {
            engine.progress(Duration::from_secs(1));
            if let Some(result) = call.try_wait() {
                break result;
            }
        };
        assert!(is_gone(&result), "{result:?}");
    }
}

#[test]
fn a_target_that_ends_in_good_order_says_so() {
    let _watchdog = Watchdog::start();
    for url in urls() {
        let (target, address) = Child::target(&format!("url={url}"));
        let engine = open_over(hg::builder(), url).unwrap();
        let peer = engine.lookup(&address).unwrap();
        let call = engine.call(never, &peer, ());
        assert_eq!(engine.call(add, &peer, (1, 2)).wait().unwrap(), 3);
        assert_eq!(target.end().code(), Some(0));
        let result = call.wait();
        let Err(CallError::PeerGone { reason: GoneReason::Closed, .. }) = result else {
            panic!("{result:?}")
        };
    }
}

/// Origins that are killed at once.
const BATCH: u64 = 8;

/// Starts origins, and kills each at a moment of chance: some before they connect, some under load.
fn kill_a_batch(url: &str, address: &str, random: &mut Random, seed: u64) {
    let mut batch: Vec<_> = (0..BATCH)
        .map(|at| {
            let seed = seed + at;
            let settings = format!("url={url} to={address} seed={seed} wait=block quiet=yes");
            Child::start("flooder", &settings)
        })
        .collect();
    for child in &mut batch {
        thread::sleep(random.duration_below(Duration::from_millis(6)));
        child.kill();
    }
}

/// Kills so many origins of a target, and compares what it has afterwards with what it had before.
fn kill_origins(url: &str, origins: u64) {
    let (target, address) = Child::target(&format!("url={url}"));
    let witness = witness_over(url, &address);
    let mut random = Random::new(2026);
    (0..8).for_each(|batch| kill_a_batch(url, &address, &mut random, batch * BATCH));
    let pid = target.pid();
    let state = || (fds(pid), maps(pid), threads(pid));
    let calm = settled(state);
    let memory = rss_kib(pid);
    for batch in 8..origins.div_ceil(BATCH) + 8 {
        kill_a_batch(url, &address, &mut random, batch * BATCH);
    }
    let after = (falls_to(calm.0, || fds(pid)), falls_to(calm.1, || maps(pid)), threads(pid));
    assert!(after.0 <= calm.0, "{} descriptors became {}", calm.0, after.0);
    assert!(after.1 <= calm.1 + 4, "{} mappings became {}", calm.1, after.1);
    assert!(after.2 <= calm.2, "{} threads became {}", calm.2, after.2);
    let grown = falls_to(memory + 2048, || rss_kib(pid)).saturating_sub(memory);
    assert!(grown <= 2048, "the target has kept {grown} KiB of {origins} killed origins");
    witness.testifies();
}

#[test]
fn hundreds_of_killed_origins_leave_the_target_as_it_was() {
    // The kernel takes 30 ms to end a process that has a queue of signals.
    let _watchdog = Watchdog::within(2 * watchdog::LIMIT);
    let before = left_in_file_systems();
    kill_origins("sm://", 400);
    until_nothing_is_left_but(&before);
}

#[test]
fn killed_origins_of_every_transport_leave_the_target_as_it_was() {
    // Beside others that keep all processors busy it takes eight times as long as alone.
    let _watchdog = Watchdog::within(5 * watchdog::LIMIT / 2);
    urls().for_each(|url| kill_origins(url, 40));
}

/// Calls of a greedy origin, far more than its target serves at a time.
const GREEDY: u64 = 600;

#[test]
fn an_origin_with_more_calls_than_are_served_keeps_nobody_from_being_served_alive_stopped_or_killed()
 {
    let _watchdog = Watchdog::within(2 * watchdog::LIMIT);
    for (url, is_stopped) in bulk_urls().flat_map(|url| [false, true].map(|stops| (url, stops))) {
        let (mut target, address) = Child::target(&format!("url={url} in-service=8"));
        let settings = format!("url={url} to={address} calls={GREEDY} wait=block");
        let mut greedy = Child::start("greedy", &settings);
        assert_eq!(greedy.hear(), "ready");
        until(|| target.ask("in-service") == "4"); // Half of what is served, and no more.
        let witness = witness_over(url, &address);
        if is_stopped {
            greedy.stop();
        }
        witness.testifies();
        greedy.kill();
        witness_over(url, &address).testifies();
        until(|| target.ask("in-service") == "0");
    }
}

#[test]
fn nothing_is_left_of_a_killed_process() {
    let _watchdog = Watchdog::start();
    let before = left_in_file_systems();
    let name = format!("left-{}", std::process::id());
    let (mut named, address) = Child::target(&format!("name={name}"));
    let (mut unnamed, other) = Child::target("contexts=2");
    let generated = other.strip_prefix("sm://").and_then(|rest| rest.strip_suffix("/0*2")).unwrap();
    let mut origins: Vec<_> =
        [&address, &other].iter().map(|to| Child::start("flooder", &format!("to={to}"))).collect();
    for origin in &mut origins {
        assert_eq!(origin.hear(), "ready");
    }
    until_nothing_is_left_but(&before); // Of those that live, too: nothing has a name in a file system.
    assert!(!abstract_sockets(&name).is_empty() && !abstract_sockets(generated).is_empty());
    named.kill();
    unnamed.kill();
    origins.iter_mut().for_each(Child::kill);
    for name in [&name, generated] {
        assert_eq!(abstract_sockets(name), Vec::<String>::new());
    }
    until_nothing_is_left_but(&before);
}
