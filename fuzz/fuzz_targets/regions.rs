//! A peer's table of regions may hold anything: a descriptor is resolved exactly when a plain reading of
//! the table, as its layout says, accepts it, to the same runs, and no pin is left behind.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hg_na_sm::fuzz_regions(bytes));
