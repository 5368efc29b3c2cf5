//! `hg-perf sort`: the example beside the same sort over each MPI.

mod common;

use std::path::Path;
use std::process::Command;

use common::{ended, hg_perf, lines};

#[test]
fn the_sort_is_verified_and_stands_in_its_figures() {
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
    let example = example.to_str().expect("a path that is text");
    let arguments = ["sort", "--ranks", "2", "--keys", "20000", "--repetitions", "1", "--no-mpi"];
    let lines = lines(&[&arguments[..], &["--example", example]].concat());
    let figures: Vec<_> = lines.iter().filter_map(|line| line["figure"].as_str()).collect();
    assert_eq!(figures, ["sort_single", "sort_packed"]);
}

#[test]
fn an_example_that_is_not_there_is_named() {
    let (succeeded, _, said) = ended(hg_perf(&["sort", "--no-mpi", "--example", "/no/example"]));
    assert!(!succeeded && said.contains("/no/example did not end well"), "{said}");
}
