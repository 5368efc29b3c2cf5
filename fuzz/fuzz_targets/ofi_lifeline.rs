//! Lifelines come from anybody who finds the port: any bytes are refused or taken as records, and a context that hears them goes on.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hg_na_ofi::fuzz_lifeline(bytes));
