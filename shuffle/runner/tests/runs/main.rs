//! `shuffle-runner` as it is used: real processes, by itself and under every launcher that is installed; and what is
//! left when one of them dies.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]
#![expect(clippy::print_stdout, reason = "says what is skipped")]

mod accounts;
mod common;
mod faults;
mod launchers;
mod local;
mod running;
