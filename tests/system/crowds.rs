//! A thousand peers, thousands of connections, and a process without descriptors left.

use std::{thread, time::Duration};

use hg::{CallError, CallOptions, Engine, GoneReason, Wait};

use crate::{
    common::{
        Child, Watchdog, Witness, falls_to,
        process::{fds, maps, own_rss_kib, rss_kib, threads},
        settled,
    },
    roles::{add, never},
    transports::{PLAIN_TCP, open_over, urls, witness_over},
};

/// Processes, and contexts of each, of which every one is a peer.
const PROCESSES: usize = 20;
const CONTEXTS: usize = 50;

/// So many live peers of one process: what each costs it, and that all of them are served.
fn live_peers(url: &str, processes: usize, fds_each: usize) {
    let (target, address) = Child::target(&format!("url={url} nofile=20000 wait=block"));
    let pid = target.pid();
    let engine = open_over(hg::builder().wait(Wait::Block), url).unwrap();
    let peer = engine.lookup(&address).unwrap();
    assert_eq!(engine.call(add, &peer, (1, 2)).wait().unwrap(), 3);
    let (few_fds, little) = settled(|| (fds(pid), rss_kib(pid)));
    let settings =
        format!("url={url} to={address} contexts={CONTEXTS} progress=own wait=block nofile=20000");
    let mut origins: Vec<_> = (0..processes).map(|_| Child::start("origin", &settings)).collect();
    for origin in &mut origins {
        assert_eq!(origin.hear(), "ready");
        assert_eq!(origin.ask("call"), "ok");
    }
    let peers = processes * CONTEXTS;
    let per_peer = fds(pid) - few_fds;
    assert!(per_peer <= fds_each * peers, "{per_peer} descriptors for {peers} peers");
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

/// Mappings that the allocator makes for threads, when more of them live at a time than did before.
const ARENAS: u64 = 40;

#[test]
fn a_thousand_live_peers_cost_four_descriptors_and_128_kib_each() {
    let _watchdog = Watchdog::start();
    live_peers("sm://", PROCESSES, 4);
}

#[cfg(feature = "tcp")]
#[test]
fn a_thousand_live_peers_over_tcp_cost_a_descriptor_and_128_kib_each() {
    let _watchdog = Watchdog::start();
    live_peers(PLAIN_TCP, PROCESSES, 1);
}

#[test]
fn an_engine_with_one_peer_costs_three_mib() {
    let _watchdog = Watchdog::start();
    for url in urls() {
        let mut empty = Child::start("parrot", "");
        assert_eq!(empty.ask("hello"), "hello");
        let (target, address) = Child::target(&format!("url={url} wait=block"));
        let mut origin = Child::start("origin", &format!("url={url} to={address} wait=block"));
        assert_eq!(origin.hear(), "ready");
        assert_eq!(origin.ask("call"), "ok");
        // What is mapped from the program's file is left out: without optimisation it is not what users get.
        for child in [&target, &origin] {
            let more = own_rss_kib(child.pid()) - own_rss_kib(empty.pid());
            assert!(more <= 3 * 1024, "{more} KiB");
        }
    }
}

/// Opens, calls and closes so often in one process; compares what both have afterwards with what they had before.
fn come_and_go(url: &str, cycles: usize) {
    let (target, address) = Child::target(&format!("url={url} wait=block"));
    let pid = target.pid();
    let witness = witness_over(url, &address);
    let settings = format!("url={url} to={address} cycles={cycles} wait=block");
    let mut origin = Child::start("soak", &settings);
    assert_eq!(origin.hear(), "warm");
    let calm = (fds(pid), maps(pid), rss_kib(pid));
    let report = origin.hear();
    let numbers: Vec<u64> = report.split(' ').map(|word| word.parse().unwrap()).collect();
    let [fds_before, maps_before, rss_before, fds_after, maps_after, rss_after] = numbers[..]
    else {
        panic!("{report}")
    };
    assert!(fds_after <= fds_before, "descriptors: {fds_before} became {fds_after}");
    let mappings = maps_before + ARENAS;
    assert!(maps_after <= mappings, "mappings: {maps_before} became {maps_after}");
    assert!(rss_after <= rss_before + 2048, "KiB: {rss_before} became {rss_after}");
    let after = (falls_to(calm.0, || fds(pid)), falls_to(calm.1 + 8, || maps(pid)));
    assert!(after.0 <= calm.0, "descriptors: {} became {}", calm.0, after.0);
    assert!(after.1 <= calm.1 + 8, "mappings: {} became {}", calm.1, after.1);
    let memory = falls_to(calm.2 + 2048, || rss_kib(pid));
    assert!(memory <= calm.2 + 2048, "KiB: {} became {memory}", calm.2);
    witness.testifies();
}

#[test]
fn ten_thousand_times_open_call_close_leave_nothing_in_either_process() {
    let _watchdog = Watchdog::start();
    come_and_go("sm://", 10_000);
}

#[test]
fn open_call_close_leaves_nothing_in_either_process_over_any_transport() {
    let _watchdog = Watchdog::start();
    urls().for_each(|url| come_and_go(url, 500));
}

/// The same for processes.
fn visit(url: &str, processes: usize) {
    let (target, address) = Child::target(&format!("url={url} wait=block"));
    let pid = target.pid();
    let visit = |count: usize| {
        let settings = format!("url={url} to={address} wait=block");
        let mut visitors: Vec<_> = (0..count).map(|_| Child::start("visitor", &settings)).collect();
        for visitor in &mut visitors {
            assert_eq!(visitor.hear(), "ok");
        }
        visitors.into_iter().for_each(|visitor| assert_eq!(visitor.end().code(), Some(0)));
    };
    (0..5).for_each(|_| visit(8));
    let calm = settled(|| (fds(pid), maps(pid), threads(pid)));
    let memory = rss_kib(pid);
    (0..processes.div_ceil(8)).for_each(|_| visit(8));
    let after = (falls_to(calm.0, || fds(pid)), falls_to(calm.1 + 4, || maps(pid)), threads(pid));
    assert!(after.0 <= calm.0, "descriptors: {} became {}", calm.0, after.0);
    assert!(after.1 <= calm.1 + 4, "mappings: {} became {}", calm.1, after.1);
    assert!(after.2 <= calm.2, "threads: {} became {}", calm.2, after.2);
    let grown = falls_to(memory + 1024, || rss_kib(pid)).saturating_sub(memory);
    assert!(grown <= 1024, "the target has kept {grown} KiB of {processes} processes");
}

#[test]
fn a_thousand_processes_that_come_and_go_leave_the_target_as_it_was() {
    let _watchdog = Watchdog::start();
    visit("sm://", 1000);
}

#[test]
fn processes_that_come_and_go_leave_the_target_as_it_was_over_any_transport() {
    let _watchdog = Watchdog::start();
    urls().for_each(|url| visit(url, 80));
}

/// How peers of a target come out that has descriptors for some of them.
struct Crowd {
    served: Vec<(Engine, hg::Peer)>,
    refused: Vec<(Engine, CallError)>,
}

impl Crowd {
    fn call(url: &str, address: &str, peers: usize) -> Self {
        let engines: Vec<_> =
            (0..peers).map(|_| open_over(hg::builder().wait(Wait::Block), url).unwrap()).collect();
        let mut crowd = Self { served: Vec::new(), refused: Vec::new() };
        for engine in engines {
            let peer = engine.lookup(address).unwrap();
            match engine.call(add, &peer, (1, 2)).wait() {
                Ok(sum) => {
                    assert_eq!(sum, 3);
                    crowd.served.push((engine, peer));
                }
                Err(error) => crowd.refused.push((engine, error)),
            }
        }
        crowd
    }
}

#[test]
fn without_descriptors_a_new_peer_is_refused_in_words_and_the_old_ones_go_on() {
    let _watchdog = Watchdog::start();
    let (target, address) = Child::target("nofile=64 wait=block");
    let witness = Witness::of(&address);
    let Crowd { mut served, refused } = Crowd::call("sm://", &address, 30);
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

#[cfg(feature = "tcp")]
#[test]
fn a_tcp_target_without_descriptors_serves_the_old_peers_and_new_ones_when_there_is_room() {
    let _watchdog = Watchdog::start();
    let (target, address) = Child::target(&format!("url={PLAIN_TCP} nofile=40 wait=block"));
    let witness = witness_over(PLAIN_TCP, &address);
    // The first that finds no descriptor waits for a second, as long as some might be closed; later ones are refused at once.
    let engines: Vec<_> =
        (0..50).map(|_| open_over(hg::builder().wait(Wait::Block), PLAIN_TCP).unwrap()).collect();
    let peers: Vec<_> = engines.iter().map(|it| it.lookup(&address).unwrap()).collect();
    let call = |at: usize, within: u64| {
        let options = CallOptions::within(Duration::from_millis(within));
        engines[at].call_with(add, &peers[at], (1, 2), options).wait()
    };
    let served: Vec<_> = (0..engines.len()).filter(|at| call(*at, 300).is_ok()).collect();
    assert!((5..40).contains(&served.len()), "{} peers fit into 40 descriptors", served.len());
    for at in &served {
        assert_eq!(call(*at, 60_000).unwrap(), 3);
    }
    let refused = Crowd::call(PLAIN_TCP, &address, 1).refused;
    let [(_, error)] = &refused[..] else { panic!("there is room for one more") };
    assert!(error.is_retryable(), "{error}");
    let words = error.to_string();
    assert!(words.contains("RLIMIT_NOFILE") && words.contains("40"), "{words}");
    drop(refused);
    witness.testifies();
    // Those that go make room for one that waited.
    drop((engines, peers));
    let (engine, limit) = (open_over(hg::builder(), PLAIN_TCP).unwrap(), 40);
    let peer = engine.lookup(&address).unwrap();
    assert_eq!(engine.call(add, &peer, (1, 2)).wait().unwrap(), 3);
    assert!(falls_to(limit / 2, || fds(target.pid())) <= limit / 2);
}

#[test]
fn an_origin_without_descriptors_is_told_its_own_limit() {
    let _watchdog = Watchdog::start();
    for url in urls() {
        let (_target, address) = Child::target(&format!("url={url}"));
        let settings = format!("url={url} to={address} nofile=24 contexts=20 wait=block");
        let mut origin = Child::start("origin", &settings);
        // It has too few for its contexts, or for its connections; either is said.
        let words = match origin.hear().as_str() {
            "ready" => origin.ask("call"),
            error => error.to_owned(),
        };
        assert!(words.contains("RLIMIT_NOFILE") && words.contains("24"), "{words}");
    }
}

#[test]
fn a_peer_beyond_the_configured_number_is_refused_in_words() {
    let _watchdog = Watchdog::start();
    for (url, setting) in [
        ("sm://", "sm.max-peers"),
        #[cfg(feature = "tcp")]
        (PLAIN_TCP, "tcp.max-peers"),
    ] {
        let (_target, address) = Child::target(&format!("url={url} {setting}=3"));
        let Crowd { served, refused } = Crowd::call(url, &address, 5);
        assert_eq!((served.len(), refused.len()), (3, 2), "{url}");
        for (_, error) in refused {
            let words = error.to_string();
            assert!(words.contains("max-peers") && words.contains('3'), "{words}");
        }
    }
}

#[test]
fn peers_that_connect_at_the_same_moment_are_all_served() {
    let _watchdog = Watchdog::start();
    for url in urls() {
        let (_target, address) = Child::target(&format!("url={url} wait=block"));
        let engines: Vec<_> =
            (0..40).map(|_| open_over(hg::builder().wait(Wait::Block), url).unwrap()).collect();
        thread::scope(|scope| {
            for engine in &engines {
                scope.spawn(|| {
                    let peer = engine.lookup(&address).unwrap();
                    for number in 0..20 {
                        let sum = engine.call(add, &peer, (number, 1)).wait().unwrap();
                        assert_eq!(sum, number + 1);
                    }
                });
            }
        });
    }
}
