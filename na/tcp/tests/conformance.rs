//! The contract, in the clear.

mod common;

hg_na_conformance::suite!(
    common::Named::default(),
    "tcp://127.0.0.1",
    named = "tcp://name-{}",
    report = watchdog::report
);
