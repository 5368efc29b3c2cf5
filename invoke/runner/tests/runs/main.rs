//! `invoke-runner` as it is used: real processes, by itself and under every launcher that is installed; and what is left when one of them
//! dies.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]
#![expect(clippy::print_stdout, reason = "says what is skipped")]

#[path = "../../../../shuffle/runner/tests/runs/apart.rs"]
mod apart;
#[expect(dead_code, reason = "shared with other tests, which need more")]
#[path = "../../../../shuffle/runner/tests/runs/common.rs"]
mod common;
mod daemons;
mod deaths;
mod launchers;
mod local;
#[path = "../../../../tests/daemons/daemons.rs"]
mod nodes;
mod progress;
#[path = "../../../../job/tests/launchers/slurm_daemons.rs"]
mod slurm_daemons;

use common::Outcome;
use serde_json::Value;

const RUNNER: &str = env!("CARGO_BIN_EXE_invoke-runner");

const OFI: &str = "ofi+tcp://127.0.0.1";

/// Is there a libfabric that has the provider? If not, the test says that it is skipped.
fn has_ofi(test: &str) -> bool {
    let outcome = common::run(RUNNER, &["--local", "1", "--count", "1", "--url", OFI], &[]);
    let is_missing = ["lists the providers that work", "libfabric is not installed"];
    let is_missing = is_missing.iter().any(|it| outcome.err.contains(it));
    if is_missing {
        println!("SKIPPED: {test}: libfabric offers no ofi+tcp here");
    }
    !is_missing
}

/// The last line, after a run of so many threads in which each call ran once, in order and whole.
fn total(outcome: &Outcome, threads: u64) -> Value {
    assert_eq!(outcome.code, Some(0), "{}", outcome.all());
    let lines = outcome.lines();
    assert_eq!(lines.len() as u64, threads + 1, "{}", outcome.all());
    let total = lines.last().expect("more than none").clone();
    let wrong = ["lost", "repeated", "corrupted"].map(|name| total[name].as_u64());
    assert_eq!(wrong, [Some(0); 3], "{total}");
    assert_eq!((total["rank"].is_null(), &total["threads"]), (true, &threads.into()), "{total}");
    assert_eq!(total["made"], total["run"], "{total}");
    for line in &lines {
        let is_there = |name: &str| line[name].as_f64().expect(name) > 0.0;
        assert!(is_there("peak_rss_kib") && is_there("seconds"), "{line}");
    }
    assert!(total["calls_per_s"].as_f64() > Some(0.0), "{total}");
    total
}
