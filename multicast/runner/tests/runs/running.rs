//! `multicast-runner`: patterns, links, pictures, and what it says where something is wrong.

use std::fs;

use serde_json::Value;
use watchdog::until;

use crate::{
    RUNNER,
    common::{File, Outcome, command, run},
    hosts::{Hosts, or_skip, skip},
    receiver::{has_ended, signal},
};

pub(crate) fn local(ranks: &str, more: &[&str]) -> Outcome {
    run(RUNNER, &[&["--json", "--local", ranks], more].concat(), &[])
}

pub(crate) fn well(outcome: &Outcome) -> Vec<Value> {
    assert_eq!(outcome.code, Some(0), "{}", outcome.all());
    let lines = outcome.lines();
    assert_eq!(lines.last().expect("more than none")["is_well"], true, "{}", outcome.all());
    lines
}

/// Whether the runner can emulate links here; if not, the test has said so. Unlike hosts of tests, they are nothing for a user namespace.
pub(crate) fn has_links() -> bool {
    let shaped =
        Hosts::new(1).and_then(|hosts| hosts.link(0).shape("tbf rate 1gbit burst 64k limit 1m"));
    if or_skip(shaped).is_none() {
        return false;
    }
    let made = run("unshare", &["--net", "--uts", "--", "true"], &[]);
    if made.code != Some(0) {
        skip(format!("no right to make network namespaces: {}", made.err.trim()));
    }
    made.code == Some(0)
}

#[test]
fn every_combination_is_verified_and_has_a_line() {
    let more = [
        "--size",
        "1,100K,1M",
        "--schedule",
        "auto,sequential,chain,tree,pipeline,hybrid",
        "--count",
        "2",
    ];
    for url in ["sm://", "tcp://127.0.0.1"] {
        let outcome = local(
            "5",
            &[
                &more[..],
                &["--url", url, "--setting", "routing=off"][..if url == "sm://" { 2 } else { 4 }],
            ]
            .concat(),
        );
        let lines = well(&outcome);
        assert_eq!(lines.len(), 19, "{}", outcome.all());
        assert!(lines[..18].iter().all(|line| line["seconds_median"].as_f64() > Some(0.0)));
    }
}

#[test]
fn overlapping_groups_and_a_trace_are_verified() {
    for pattern in ["all", "half"] {
        let lines = well(&local("4", &["--pattern", pattern, "--size", "300K", "--count", "3"]));
        let groups = if pattern == "all" { 4 } else { 2 };
        assert_eq!(
            (&lines[0]["groups"], &lines[0]["objects"]),
            (&groups.into(), &(3 * groups).into())
        );
    }
    let lines = well(&local("6", &["--pattern", "trace", "--count", "20", "--scale", "0.01"]));
    assert_eq!((&lines[0]["groups"], &lines[0]["objects"]), (&10.into(), &20.into()));
}

#[test]
fn emulated_links_are_stated_and_their_rate_is_what_counts() {
    if !has_links() {
        return;
    }
    let outcome = local(
        "3",
        &[
            "--link",
            "200mbit",
            "--size",
            "2M",
            "--block-size",
            "256K",
            "--schedule",
            "pipeline",
            "--count",
            "1",
        ],
    );
    let lines = well(&outcome);
    let last = lines.last().unwrap();
    assert!(last["links"].as_str().unwrap().starts_with("emulated links of 200 Mbit/s"), "{last}");
    // No byte is faster than its link; what it is slowed down by is measured elsewhere.
    assert!(lines[0]["mb_per_s"].as_f64().unwrap() < 25.0 * 1.2, "{}", lines[0]);
}

#[test]
fn a_picture_has_a_bar_for_each_block_of_each_receiver() {
    let file = File::new("steps.svg");
    let more =
        ["--size", "1M", "--block-size", "64K", "--schedule", "pipeline", "--plot", file.text()];
    well(&local("3", &more));
    let text = fs::read_to_string(&file.0).unwrap();
    assert_eq!(text.matches(" from member ").count(), 32, "{text}");
    // The root gives each block away at least once.
    assert!(text.matches(" to member ").count() >= 16 && text.contains(">root</text>"), "{text}");
}

#[test]
fn processes_that_are_bound_to_cores_do_the_same() {
    let lines = well(&local("3", &["--bind", "--size", "1M", "--count", "1"]));
    assert_eq!(lines.len(), 2);
}

#[test]
fn a_runner_that_is_killed_leaves_neither_receivers_nor_what_they_have_received() {
    if !has_links() {
        return;
    }
    let folder = File::new("killed");
    fs::create_dir(&folder.0).unwrap();
    let name = |process: &u32| fs::read_to_string(format!("/proc/{process}/comm"));
    let is_copy = |process: &u32| name(process).is_ok_and(|name| name == "multicast-cp\n");
    for name_of_signal in ["-TERM", "-KILL"] {
        let words = ["--local", "2", "--link", "10mbit", "--size", "8M", "--copy"];
        let mut runner = command(RUNNER, &words).env("TMPDIR", &folder.0).spawn().unwrap();
        let mut below = Vec::new();
        until("two receivers and a sender", || {
            below = watchdog::below(runner.id());
            assert!(runner.try_wait().unwrap().is_none(), "it has ended too early");
            below.iter().filter(|it| is_copy(it)).count() == 3
        });
        signal(name_of_signal, below[0]);
        assert!(!watchdog::ended(&mut runner).status.success());
        until("the end of all of them", || below.iter().all(has_ended));
        until("an empty folder", || fs::read_dir(&folder.0).unwrap().next().is_none());
    }
}

#[test]
fn what_makes_no_sense_is_said_once() {
    for (words, said) in [
        (&["--local", "1"][..], "--local: a group needs two processes"),
        (&["--local", "3", "--pattern", "trace"], "--pattern: a trace needs 4"),
        (&["--local", "2", "--setting", "x"], "--setting: `x` is not NAME=VALUE"),
        (&["--local", "2", "--plot", "/nowhere/x"], "--plot: /nowhere/x cannot be written"),
        (&["--local", "2", "--stall", "2:0:1"], "--stall: there is no member 2 among 2"),
        (
            &["--local", "4", "--pattern", "trace", "--block-size", "1K,2K"],
            "--block-size: a trace takes one, not several",
        ),
        (&["--local", "2", "--pattern", "all", "--mpi"], "--mpi: goes with `--pattern one` only"),
        (
            &["--local", "2", "--size", "1,2G", "--mpi"],
            "--size: MPI_Bcast sends 2147483647 bytes at most, not 2147483648",
        ),
    ] {
        let outcome = run(RUNNER, words, &[]);
        assert_eq!(
            (outcome.code, outcome.err.matches(said).count()),
            (Some(1), 1),
            "{}",
            outcome.all()
        );
    }
}
