//! The contract, with a pre-shared key.

mod common;

hg_na_conformance::suite!(
    common::Named { key: true },
    "tcp://127.0.0.1",
    named = "tcp://name-{}",
    report = watchdog::report
);
