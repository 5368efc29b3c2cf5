//! What launchers, rank 0 and users write: refused, or taken apart; never more.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hg_job::fuzz_texts(bytes));
