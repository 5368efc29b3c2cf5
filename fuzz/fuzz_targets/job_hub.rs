//! Connections of a job's hub say whatever they like, in any order, and hang up: it keeps its promises.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hg_job::fuzz_hub(bytes));
