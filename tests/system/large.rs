//! Arguments and results beyond one message, over each transport: as if they were short.

use std::time::Duration;

use hg::{CallError, CallOptions, Engine, Wait};
use nix::sys::signal::Signal;

use crate::{
    bulk::pattern,
    common::{Child, Random, Watchdog, Witness, falls_to, process::fds, settled, until},
    roles::{add, arrive, arrived, echo, never, toil},
    transports::{bulk_urls, open_over},
};

const MIB: usize = 1 << 20;

/// A result of any length.
#[hg::rpc]
pub(crate) fn make(len: u64) -> Vec<u8> {
    pattern(0, usize::try_from(len).expect("a length of this machine"))
}

/// A target in a process of its own, and its address.
fn target(url: &str, settings: &str) -> (Child, String) {
    Child::target(&format!("url={url} wait=block {settings}"))
}

/// The same, and an engine that reaches it.
fn pair(url: &str, settings: &str) -> (Child, Engine, hg::Peer) {
    let (target, address) = target(url, settings);
    let engine = open_over(hg::builder().wait(Wait::Block), url).unwrap();
    let peer = engine.lookup(&address).unwrap();
    (target, engine, peer)
}

#[test]
fn arguments_and_results_of_64_mib_go_both_ways() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let (mut target, engine, peer) = pair(url, "");
        let body = pattern(0, 64 * MIB);
        assert!(engine.call(echo, &peer, (&body,)).wait().unwrap() == body);
        // One way: nobody answers, and the memory goes back all the same.
        engine.notify(arrive, &peer, (0, &body)).wait().unwrap();
        until(|| engine.call(arrived, &peer, ()).wait().unwrap() == (1, 0));
        until(|| engine.large_untaken() == 0);
        assert_eq!(target.ask("kept"), "0");
    }
}

/// The codec's length before bytes.
const LENGTH: usize = if cfg!(feature = "postcard") { 3 } else { 8 };

#[test]
fn the_longest_argument_arrives_and_one_more_byte_is_an_error_that_names_the_limit() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let (_target, address) = Child::target(&format!("url={url}"));
        let max = 2 * MIB;
        let engine = open_over(hg::builder().large_max(max as u64), url).unwrap();
        assert!(engine.message_max() < max);
        let peer = engine.lookup(&address).unwrap();
        let longest = Random::new(9).bytes(max - LENGTH + 1);
        let says_so = |error: &dyn std::fmt::Display| {
            let text = error.to_string();
            let is_named = text.contains(&max.to_string()) && text.contains("large_max");
            assert!(is_named, "{text}");
        };
        let refused = engine.call(echo, &peer, (&longest,)).wait().unwrap_err();
        assert!(matches!(refused, CallError::NotMade(_)), "{refused:?}");
        says_so(&refused);
        says_so(&engine.notify(echo, &peer, (&longest,)).wait().unwrap_err());
        let longest = &longest[1..];
        assert_eq!(engine.call(echo, &peer, (longest,)).wait().unwrap(), longest);
    }
}

#[test]
fn either_side_refuses_what_exceeds_its_own_limit_and_names_it() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let says_so = |result: Result<_, CallError>| {
            let text = result.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(text.contains("1000000") && text.contains("large_max"), "{text}");
        };
        let (mut target, engine, peer) = pair(url, "large-max=1000000");
        says_so(engine.call(echo, &peer, (&pattern(0, MIB),)).wait());
        says_so(engine.call(make, &peer, (MIB as u64,)).wait());
        engine.notify(arrive, &peer, (7, &pattern(0, MIB))).wait().unwrap();
        until(|| engine.large_untaken() == 0);
        assert_eq!(engine.call(arrived, &peer, ()).wait().unwrap(), (0, 0));
        let body = pattern(0, 900_000);
        assert_eq!(engine.call(echo, &peer, (&body,)).wait().unwrap(), body);
        until(|| target.ask("kept") == "0");

        let (mut target, address) = self::target(url, "");
        let engine = open_over(hg::builder().large_max(1_000_000), url).unwrap();
        let peer = engine.lookup(&address).unwrap();
        says_so(engine.call(make, &peer, (MIB as u64,)).wait());
        assert_eq!(engine.call(make, &peer, (900_000,)).wait().unwrap(), pattern(0, 900_000));
        until(|| target.ask("kept") == "0");
    }
}

#[test]
fn a_target_killed_while_it_takes_arguments_ends_every_call_with_peer_gone() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let (mut target, engine, peer) = pair(url, "");
        let body = pattern(0, 2 * MIB);
        assert_eq!(engine.call(echo, &peer, (&body,)).wait().unwrap(), body);
        // Its only thread is busy when it is killed: nothing after that was served.
        drop(engine.notify(toil, &peer, (50_000,)));
        let calls: Vec<_> = (0..20).map(|_| engine.call(echo, &peer, (&body,))).collect();
        let one_ways: Vec<_> = (0..20).map(|_| engine.notify(arrive, &peer, (0, &body))).collect();
        let open = engine.call(never, &peer, ());
        target.kill();
        for call in calls {
            match call.wait() {
                Ok(bytes) => assert_eq!(bytes, body),
                Err(error) => assert!(matches!(error, CallError::PeerGone { .. }), "{error}"),
            }
        }
        drop(one_ways);
        let gone = open.wait().unwrap_err();
        assert!(matches!(gone, CallError::PeerGone { .. }), "{gone}");
        until(|| engine.large_untaken() == 0);
        assert_eq!(engine.calls_under_way(), 0);
    }
}

#[test]
fn origins_killed_with_large_calls_under_way_leave_nothing_at_the_target() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let (mut target, address) = target(url, "");
        let engine = open_over(hg::builder().wait(Wait::Block), url).unwrap();
        let witness = Witness::with(engine, &address);
        let before = settled(|| fds(target.pid()));
        let mut random = Random::new(11);
        for seed in 0..10 {
            let settings = format!("to={address} url={url} seed={seed} big=600000");
            let mut origin = Child::start("flooder", &settings);
            assert_eq!(origin.hear(), "ready");
            std::thread::sleep(random.duration_below(Duration::from_millis(20)));
            origin.kill();
        }
        let after = falls_to(before, || fds(target.pid()));
        assert!(after <= before, "{before} descriptors became {after}");
        until(|| target.ask("kept") == "0");
        witness.testifies();
        until(|| target.ask("in-service") == "0");
    }
}

#[test]
fn a_deadline_ends_a_large_call_to_a_stopped_target_which_serves_on_afterwards() {
    let _watchdog = Watchdog::start();
    for url in bulk_urls() {
        let (mut target, engine, peer) = pair(url, "");
        let body = pattern(0, 2 * MIB);
        assert_eq!(engine.call(add, &peer, (1, 2)).wait().unwrap(), 3);
        target.stop();
        let options = CallOptions::within(Duration::from_millis(100));
        let calls: Vec<_> =
            (0..5).map(|_| engine.call_with(echo, &peer, (&body,), options)).collect();
        let dropped = engine.call(echo, &peer, (&body,));
        for call in calls {
            let error = call.wait().unwrap_err();
            assert!(matches!(error, CallError::DeadlineExceeded(_)), "{error}");
        }
        drop(dropped);
        let waiting = engine.call(echo, &peer, (&body,));
        target.signal(Signal::SIGCONT);
        assert_eq!(waiting.wait().unwrap(), body);
        until(|| target.ask("kept") == "0" && target.ask("in-service") == "0");
    }
}
