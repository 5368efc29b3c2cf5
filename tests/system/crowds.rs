//! A thousand peers, thousands of connections, and a process without descriptors left.

use std::thread;

use hg::{CallError, Engine, GoneReason, Wait};

use crate::{
    common::{
        Child, Watchdog, Witness, falls_to,
        process::{fds, maps, rss_kib, threads},
        settled,
    },
    roles::{add, never},
};

/// Processes, and contexts of each, of which every one is a peer.
const PROCESSES: usize = 20;
const CONTEXTS: usize = 50;

#[test]
fn a_thousand_live_peers_cost_four_descriptors_and_128_kib_each() {
    let _watchdog = Watchdog::start();
    let (target, address) = Child::target("nofile=20000 wait=block");
    let pid = target.pid();
    let engine = Engine::builder().wait(Wait::Block).open("sm://").unwrap();
    let peer = engine.lookup(&address).unwrap();
    assert_eq!(engine.call(add, &peer, (1, 2)).wait().unwrap(), 3);
    let (few_fds, little) = settled(|| (fds(pid), rss_kib(pid)));
    let mut origins: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let settings = format!("to={address} contexts={CONTEXTS} progress=own wait=block");
            Child::start("origin", &settings)
        })
        .collect();
    for origin in &mut origins {
        assert_eq!(origin.hear(), "ready");
        assert_eq!(origin.ask("call"), "ok");
    }
    let peers = PROCESSES * CONTEXTS;
    let per_peer = fds(pid) - few_fds;
    assert!(per_peer <= 4 * peers, "{per_peer} descriptors for {peers} peers");
    let bound = little + 128 * peers as u64;
    let much = falls_to(bound, || rss_kib(pid));
    assert!(much <= bound, "{} KiB for {peers} peers", much - little);
    // All of them still work, in any order.
    for origin in origins.iter_mut().rev() {
        origin.tell("call 2");
    }
    assert_eq!(engine.call(add, &peer, (1, 2)).wait().unwrap(), 3);
    for origin in &mut origins {
        assert_eq!(origin.hear(), "ok");
    }
    drop(origins);
    assert_eq!(falls_to(few_fds, || fds(pid)), few_fds);
    assert_eq!(engine.call(add, &peer, (1, 2)).wait().unwrap(), 3);
}

#[test]
fn ten_thousand_times_open_call_close_leave_nothing_in_either_process() {
    let _watchdog = Watchdog::start();
    let (target, address) = Child::target("wait=block");
    let pid = target.pid();
    let witness = Witness::of(&address);
    let mut origin = Child::start("soak", &format!("to={address} cycles=10000 wait=block"));
    assert_eq!(origin.hear(), "warm");
    let calm = (fds(pid), maps(pid), rss_kib(pid));
    let report = origin.hear();
    let numbers: Vec<u64> = report.split(' ').map(|word| word.parse().unwrap()).collect();
    let [fds_before, maps_before, rss_before, fds_after, maps_after, rss_after] = numbers[..]
    else {
        panic!("{report}")
    };
    assert!(fds_after <= fds_before, "descriptors: {fds_before} became {fds_after}");
    assert!(maps_after <= maps_before + 8, "mappings: {maps_before} became {maps_after}");
    assert!(rss_after <= rss_before + 2048, "KiB: {rss_before} became {rss_after}");
    let after = (falls_to(calm.0, || fds(pid)), falls_to(calm.1 + 8, || maps(pid)));
    assert!(after.0 <= calm.0, "descriptors: {} became {}", calm.0, after.0);
    assert!(after.1 <= calm.1 + 8, "mappings: {} became {}", calm.1, after.1);
    let memory = falls_to(calm.2 + 2048, || rss_kib(pid));
    assert!(memory <= calm.2 + 2048, "KiB: {} became {memory}", calm.2);
    witness.testifies();
}

#[test]
fn a_thousand_processes_that_come_and_go_leave_the_target_as_it_was() {
    let _watchdog = Watchdog::start();
    let (target, address) = Child::target("wait=block");
    let pid = target.pid();
    let visit = |count: usize| {
        let mut visitors: Vec<_> = (0..count)
            .map(|_| Child::start("visitor", &format!("to={address} wait=block")))
            .collect();
        for visitor in &mut visitors {
            assert_eq!(visitor.hear(), "ok");
        }
        visitors.into_iter().for_each(|visitor| assert_eq!(visitor.end().code(), Some(0)));
    };
    (0..5).for_each(|_| visit(8));
    let calm = settled(|| (fds(pid), maps(pid), threads(pid)));
    let memory = rss_kib(pid);
    (0..125).for_each(|_| visit(8));
    let after = (falls_to(calm.0, || fds(pid)), falls_to(calm.1 + 4, || maps(pid)), threads(pid));
    assert!(after.0 <= calm.0, "descriptors: {} became {}", calm.0, after.0);
    assert!(after.1 <= calm.1 + 4, "mappings: {} became {}", calm.1, after.1);
    assert!(after.2 <= calm.2, "threads: {} became {}", calm.2, after.2);
    let grown = falls_to(memory + 1024, || rss_kib(pid)).saturating_sub(memory);
    assert!(grown <= 1024, "the target has kept {grown} KiB of 1,000 processes");
}

#[test]
fn without_descriptors_a_new_peer_is_refused_in_words_and_the_old_ones_go_on() {
    let _watchdog = Watchdog::start();
    let (target, address) = Child::target("nofile=64 wait=block");
    let witness = Witness::of(&address);
    let engines: Vec<_> =
        (0..30).map(|_| Engine::builder().wait(Wait::Block).open("sm://").unwrap()).collect();
    let mut served = Vec::new();
    let mut refused = Vec::new();
    for engine in engines {
        let peer = engine.lookup(&address).unwrap();
        match engine.call(add, &peer, (1, 2)).wait() {
            Ok(sum) => {
                assert_eq!(sum, 3);
                served.push((engine, peer));
            }
            Err(error) => refused.push((engine, error)),
        }
    }
    assert!(served.len() >= 5, "only {} peers fit into 64 descriptors", served.len());
    assert!(refused.len() >= 5, "{} peers fit into 64 descriptors", served.len());
    for (_, error) in &refused {
        let CallError::PeerGone { reason, .. } = error else { panic!("{error}") };
        assert!(matches!(reason, GoneReason::Refused(_)), "{error}");
        let words = error.to_string();
        assert!(words.contains("RLIMIT_NOFILE") && words.contains("64"), "{words}");
    }
    for (engine, peer) in &served {
        assert_eq!(engine.call(add, peer, (1, 2)).wait().unwrap(), 3);
    }
    witness.is_served_on();
    // Some go; then there is room for new ones.
    let full = fds(target.pid());
    let open: Vec<_> = served.iter().map(|(engine, peer)| engine.call(never, peer, ())).collect();
    drop(open);
    served.truncate(served.len() - 3);
    falls_to(full - 9, || fds(target.pid()));
    for (engine, _) in refused.into_iter().take(2) {
        let peer = engine.lookup(&address).unwrap();
        assert_eq!(engine.call(add, &peer, (1, 2)).wait().unwrap(), 3);
        served.push((engine, peer));
    }
    witness.testifies();
}

#[test]
fn an_origin_without_descriptors_is_told_its_own_limit() {
    let _watchdog = Watchdog::start();
    let (_target, address) = Child::target("");
    let mut origin =
        Child::start("origin", &format!("to={address} nofile=24 contexts=20 wait=block"));
    // It has too few for its contexts, or for its connections; either is said.
    let words = match origin.hear().as_str() {
        "ready" => origin.ask("call"),
        error => error.to_owned(),
    };
    assert!(words.contains("RLIMIT_NOFILE") && words.contains("24"), "{words}");
}

#[test]
fn a_peer_beyond_the_configured_number_is_refused_in_words() {
    let _watchdog = Watchdog::start();
    let (_target, address) = Child::target("sm.max-peers=3");
    let engines: Vec<_> = (0..5).map(|_| Engine::open("sm://").unwrap()).collect();
    for (engine, at) in engines.iter().zip(0..) {
        let peer = engine.lookup(&address).unwrap();
        let result = engine.call(add, &peer, (1, 2)).wait();
        if at < 3 {
            assert_eq!(result.unwrap(), 3);
        } else {
            let words = result.unwrap_err().to_string();
            assert!(words.contains("max-peers") && words.contains('3'), "{words}");
        }
    }
}

#[test]
fn peers_that_connect_at_the_same_moment_are_all_served() {
    let _watchdog = Watchdog::start();
    let (_target, address) = Child::target("wait=block");
    let engines: Vec<_> =
        (0..40).map(|_| Engine::builder().wait(Wait::Block).open("sm://").unwrap()).collect();
    thread::scope(|scope| {
        for engine in &engines {
            scope.spawn(|| {
                let peer = engine.lookup(&address).unwrap();
                for number in 0..20 {
                    assert_eq!(engine.call(add, &peer, (number, 1)).wait().unwrap(), number + 1);
                }
            });
        }
    });
}
