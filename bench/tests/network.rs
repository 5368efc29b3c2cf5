//! `hg-perf` over TCP, and over an address that is reached by shared memory or by TCP.

mod common;

use std::process::Command;

use common::{ended, hg_perf, lines, number, text};

const TCP: &str = "tcp://127.0.0.1:0";
const BOTH: &str = "sm+tcp://127.0.0.1:0";

#[test]
fn a_call_over_tcp_stands_beside_a_bare_round_trip_of_the_same_mode() {
    for (wait, bare) in [("spin", "spin"), ("block", "block"), ("adaptive", "spin")] {
        let lines = lines(&["rate", "--url", TCP, "--wait", wait, "--repetitions", "1"]);
        let line = &lines[0];
        assert_eq!((&line["url"], &line["wait"]), (&TCP.into(), &wait.into()));
        assert_eq!((&line["limit"], &line["unit"]), (&"tcp_round_trip".into(), &"us".into()));
        // `tcp://` is TCP: there was no choice to tell of.
        assert!(line.get("via").is_none(), "{line}, beside {bare}");
    }
}

#[test]
fn several_calls_over_tcp_stand_beside_round_trips_a_second() {
    let lines = lines(&["rate", "--url", TCP, "--inflight", "16", "--repetitions", "1"]);
    assert_eq!((&lines[0]["limit"], &lines[0]["unit"]), (&"tcp_round_trip".into(), &"1/s".into()));
    // One round trip takes no hour and no nanosecond.
    assert!((1.0..1e9).contains(&number(&lines[0], "limit_median")), "{}", lines[0]);
}

#[test]
fn a_routed_call_says_which_way_it_went_and_stands_beside_the_limit_of_that_way() {
    let ways = [("same", "sm", "eventfd_round_trip"), ("other", "tcp", "tcp_round_trip")];
    for (node, way, limit) in ways {
        let arguments = ["rate", "--url", BOTH, "--node", node, "--wait", "block"];
        let lines = lines(&[&arguments[..], &["--repetitions", "1"]].concat());
        assert_eq!((&lines[0]["via"], &lines[0]["limit"]), (&way.into(), &limit.into()));
    }
}

#[test]
fn a_routed_call_stands_beside_the_direct_one_which_has_a_control_of_its_own() {
    for (node, way) in [("same", "sm"), ("other", "tcp")] {
        let arguments = ["routing", "--node", node, "--wait", "block", "--rounds", "3"];
        let lines = lines(&[&arguments[..], &["--repetitions", "2"]].concat());
        let [routed, direct, ratio, control] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!((&routed["via"], &routed["repetitions"]), (&way.into(), &6.into()));
        assert!(text(direct, "url").starts_with(&format!("{way}://")), "{direct}");
        assert!(direct.get("via").is_none(), "{direct}");
        for (line, figure) in [(ratio, "routed_to_direct"), (control, "control_to_direct")] {
            // One value for each set of processes.
            assert_eq!((&line["figure"], &line["repetitions"]), (&figure.into(), &2.into()));
            assert!(number(line, "median") > 0.0, "{line}");
        }
    }
}

#[test]
fn routing_needs_an_address_of_two_ways() {
    let (succeeded, _, said) = ended(hg_perf(&["routing", "--url", TCP]));
    assert!(!succeeded && said.contains("give two"), "{said}");
}

#[test]
fn a_new_peer_is_timed_over_tcp_and_over_routing() {
    for (url, via) in [(TCP, None), (BOTH, Some("sm"))] {
        let lines = lines(&["first", "--url", url, "--wait", "block", "--repetitions", "2"]);
        assert_eq!((lines[0]["via"].as_str(), lines[1]["via"].as_str()), (via, via));
        assert_eq!(lines[0]["figure"], "first_call");
    }
}

#[test]
fn transfers_over_tcp_stand_beside_a_bare_stream() {
    for op in ["pull", "push"] {
        let what = ["bandwidth", "--url", TCP, "--op", op, "--size", "300000", "--inflight", "3"];
        let lines = lines(&[&what[..], &["--wait", "block", "--repetitions", "1"]].concat());
        assert_eq!((&lines[0]["limit"], &lines[0]["op"]), (&"tcp_stream".into(), &op.into()));
        assert!(number(&lines[0], "median") > 0.0);
    }
}

#[test]
fn calls_that_travel_together_are_counted_with_and_without_strace() {
    let counting = ["syscalls", "--url", TCP, "--calls", "20"];
    if Command::new("strace").arg("--version").output().is_err() {
        let (succeeded, _, said) = ended(hg_perf(&counting));
        assert!(!succeeded && said.contains("install the package `strace`"), "{said}");
        return;
    }
    let lines = lines(&counting);
    for figure in ["calls_per_syscall_and_side", "calls_per_segment_and_side"] {
        let of = lines.iter().filter(|line| line["figure"] == figure);
        let waits: Vec<&str> = of.map(|line| text(line, "wait")).collect();
        assert_eq!(waits, ["spin", "block"], "{figure}");
    }
}
