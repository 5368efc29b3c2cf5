//! `multicast-runner` and `multicast-cp` as they are used: real processes, on one host and on emulated ones.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]
#![expect(clippy::print_stdout, reason = "says what is skipped")]

#[expect(dead_code, reason = "shared with other tests, which need more")]
#[path = "../../../../shuffle/runner/tests/runs/common.rs"]
mod common;
mod copies;
mod files;
#[expect(dead_code, reason = "shared with other tests, which need more")]
#[path = "../../../../tests/hosts/hosts.rs"]
mod hosts;
mod interrupted;
mod launchers;
mod options;
mod receiver;
mod running;
#[path = "../../../../job/tests/launchers/slurm_daemons.rs"]
mod slurm_daemons;
mod words;

const RUNNER: &str = env!("CARGO_BIN_EXE_multicast-runner");
const CP: &str = env!("CARGO_BIN_EXE_multicast-cp");
