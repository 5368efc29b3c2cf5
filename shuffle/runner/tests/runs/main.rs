//! `shuffle-runner` as it is used: real processes, by itself and under every launcher that is installed; and what is
//! left when one of them dies.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]
#![expect(clippy::print_stdout, reason = "says what is skipped")]

mod accounts;
mod apart;
mod cables;
mod common;
mod daemons;
mod drawn;
mod faults;
#[expect(dead_code, reason = "shared with other tests, which need more")]
#[path = "../../../../tests/hosts/hosts.rs"]
mod hosts;
mod launchers;
mod local;
mod many_hosts;
#[path = "../../../../tests/daemons/daemons.rs"]
mod nodes;
mod running;
#[path = "../../../../job/tests/launchers/slurm_daemons.rs"]
mod slurm_daemons;
mod strangers;

const RUNNER: &str = env!("CARGO_BIN_EXE_shuffle-runner");
