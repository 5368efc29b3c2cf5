//! `job-probe` under every launcher: real `mpirun`s, a real Slurm, the local runner, and hosts that are network
//! namespaces.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]
#![expect(clippy::print_stdout, reason = "says what is skipped")]

mod common;
mod hosts;
mod intel_mpi;
mod local;
mod mpirun;
#[expect(dead_code, reason = "what other tests use")]
#[path = "../../../tests/hosts/hosts.rs"]
mod namespaces;
mod slurm;
mod slurm_daemons;
