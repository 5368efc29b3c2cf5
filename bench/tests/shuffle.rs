//! `hg-perf shuffle`: the shuffle beside this machine's limit, and beside the same job over each MPI.

mod common;
#[path = "common/mpis.rs"]
mod mpis;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{ended, hg_perf, lines};
use mpis::installed;

/// Built as `hg-perf` was, and beside it; it is another package's.
fn runner() -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_hg-perf")).with_file_name("shuffle-runner");
    if !beside.is_file() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "-q", "-p", "hydrargyrum-shuffle-runner", "--target-dir"]);
        build.arg(beside.parent().and_then(Path::parent).expect("a target folder"));
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo starts").success());
    }
    beside
}

#[test]
fn the_shuffle_stands_beside_the_ring_and_beside_every_mpi_that_is_installed() {
    const NAME: &str = "the_shuffle_stands_beside_the_ring_and_beside_every_mpi_that_is_installed";
    stands_beside(NAME, "yes");
}

#[test]
fn it_stands_there_without_messages_to_oneself_as_well() {
    stands_beside("it_stands_there_without_messages_to_oneself_as_well", "no");
}

fn stands_beside(name: &str, with_self: &str) {
    let runner = runner();
    let mut arguments = vec!["shuffle", "--ranks", "2", "--seconds", "0.05", "--repetitions", "1"];
    arguments.extend(["--runner", runner.to_str().expect("a path that is text")]);
    arguments.extend(["--self", with_self]);
    let mpis = installed(name);
    if mpis.len() < 2 {
        arguments.push("--no-mpi");
    }
    let lines = lines(&arguments);
    let name = |line: &serde_json::Value, key: &str| line[key].as_str().unwrap_or("").to_owned();
    let lines: Vec<_> =
        lines.iter().map(|line| (name(line, "figure"), name(line, "limit"))).collect();
    let mut expected = Vec::new();
    for (ours, theirs) in [("batched", "batched"), ("unbatched", "isend")] {
        let ours = format!("shuffle_{ours}");
        expected.push((ours.clone(), "ring_rate".to_owned()));
        expected.push((format!("{ours}_processor"), String::new()));
        for mpi in mpis.iter().filter(|_| mpis.len() == 2) {
            let theirs = format!("{mpi}_{theirs}");
            expected.extend([(theirs.clone(), String::new()), (ours.clone(), theirs)]);
        }
    }
    assert_eq!(lines, expected);
}

#[test]
fn long_messages_stand_beside_two_copies_of_them() {
    let runner = runner();
    let words = ["shuffle", "--ranks", "2", "--seconds", "0.05", "--repetitions", "1", "--no-mpi"];
    let own = ["--size", "4096", "--runner", runner.to_str().expect("a path that is text")];
    let lines = lines(&[&words[..], &own].concat());
    let beside = |line: &&serde_json::Value| line["limit"] == "handover_rate";
    assert_eq!(lines.iter().filter(beside).count(), 2, "{lines:?}");
    assert!(
        lines.iter().filter(beside).all(|line| line["ratio"].as_f64() > Some(0.0)),
        "{lines:?}"
    );
}

#[test]
fn between_imitated_nodes_it_stands_in_the_same_figures() {
    let runner = runner();
    let words = ["shuffle", "--nodes", "2x2", "--seconds", "0.05", "--repetitions", "1"];
    let own = ["--no-mpi", "--runner", runner.to_str().expect("a path that is text")];
    let lines = lines(&[&words[..], &own].concat());
    let ours: Vec<_> = lines.iter().filter_map(|line| line["figure"].as_str()).collect();
    for figure in ["shuffle_batched", "shuffle_unbatched"] {
        assert!(ours.contains(&figure), "{lines:?}");
    }
    assert!(lines.iter().all(|line| line["median"].as_f64() > Some(0.0)), "{lines:?}");
}

#[test]
fn among_strangers_it_stands_beside_itself_without_them() {
    let runner = runner();
    let words = ["shuffle", "--nodes", "1+1", "--ranks", "2", "--seconds", "0.3", "--no-mpi"];
    let own = ["--repetitions", "1", "--strangers", "3", "--runner"];
    let path = [runner.to_str().expect("a path that is text")];
    let lines = lines(&[&words[..], &own, &path].concat());
    for figure in ["shuffle_batched", "shuffle_unbatched"] {
        let among = format!("{figure}_among_strangers");
        let line = lines.iter().find(|line| line["figure"] == among[..]);
        let line = line.unwrap_or_else(|| panic!("{among}: {lines:?}"));
        assert_eq!(line["limit"], figure, "{line}");
        assert!(line["ratio"].as_f64() > Some(0.0), "{line}");
    }
}

#[test]
fn each_run_beside_busy_loops_is_a_line_and_the_slowest_stands_beside_the_median() {
    let runner = runner();
    let words = ["shuffle", "--ranks", "2", "--seconds", "0.05", "--repetitions", "3", "--busy"];
    let own = ["--runner", runner.to_str().expect("a path that is text")];
    let lines = lines(&[&words[..], &own].concat());
    let (last, runs) = lines.split_last().expect("more than none");
    let mut rates: Vec<f64> = runs.iter().filter_map(|line| line["median"].as_f64()).collect();
    rates.sort_by(f64::total_cmp);
    assert_eq!((rates.len(), &last["figure"]), (3, &"slowest_to_median".into()));
    // Numbers are rounded when they are printed.
    let ratio = last["median"].as_f64().unwrap_or_default();
    assert!((ratio / (rates[0] / rates[1]) - 1.0).abs() < 1e-9, "{lines:?}");
}

#[test]
fn what_is_missing_is_named() {
    let (succeeded, _, said) = ended(hg_perf(&["shuffle", "--no-mpi", "--runner", "/no/runner"]));
    assert!(!succeeded && said.contains("/no/runner did not end well: timeout: "), "{said}");
    let mut without = Command::new(env!("CARGO_BIN_EXE_hg-perf"));
    without.args(["shuffle", "--runner", "/no/runner"]).env("PATH", "/no/folder");
    let said = without.output().expect("hg-perf starts");
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("apt-get install libopenmpi-dev openmpi-bin, or"), "{said}");
}
