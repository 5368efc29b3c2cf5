//! `hg-perf sort`: the example beside the same sort over each MPI.

mod common;
#[path = "common/mpis.rs"]
mod mpis;

use std::path::Path;
use std::process::Command;

use common::{ended, hg_perf, lines};
use mpis::installed;

/// Built as `hg-perf` was, and beside it; it is another package's.
fn example() -> String {
    let example = Path::new(env!("CARGO_BIN_EXE_hg-perf")).with_file_name("examples");
    let example = example.join("sort");
    if !example.is_file() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "-q", "-p", "hydrargyrum-shuffle", "--example", "sort"]);
        build.arg("--target-dir");
        build.arg(example.ancestors().nth(3).expect("a target folder"));
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo starts").success());
    }
    example.to_str().expect("a path that is text").to_owned()
}

/// Each line's figure and what it stands beside; all ranks have verified what they sorted, or there would be none.
fn figures(more: &[&str]) -> Vec<(String, String)> {
    let example = example();
    let arguments = ["sort", "--ranks", "2", "--keys", "20000", "--repetitions", "1"];
    let lines = lines(&[&arguments[..], &["--example", &example], more].concat());
    let text = |line: &serde_json::Value, key: &str| line[key].as_str().unwrap_or("").to_owned();
    lines.iter().map(|line| (text(line, "figure"), text(line, "limit"))).collect()
}

#[test]
fn the_sort_is_verified_and_stands_in_its_figures() {
    let alone = |figure: &str| (figure.to_owned(), String::new());
    assert_eq!(figures(&["--no-mpi"]), ["sort_single", "sort_packed"].map(alone));
}

#[test]
fn it_stands_beside_the_same_sort_over_every_mpi_that_is_installed() {
    let mpis = installed("it_stands_beside_the_same_sort_over_every_mpi_that_is_installed");
    let mut expected = Vec::new();
    for mpi in &mpis {
        let theirs = format!("{mpi}_alltoallv");
        expected.push((theirs.clone(), String::new()));
        expected.extend(["sort_single", "sort_packed"].map(|own| (own.to_owned(), theirs.clone())));
    }
    if !mpis.is_empty() {
        assert_eq!(figures(&[]), expected);
    }
}

#[test]
fn an_example_that_is_not_there_is_named() {
    let (succeeded, _, said) = ended(hg_perf(&["sort", "--no-mpi", "--example", "/no/example"]));
    assert!(!succeeded && said.contains("/no/example did not end well"), "{said}");
}
