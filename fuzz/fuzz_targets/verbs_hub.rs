//! Peers name queue pairs, tokens and lines in any order: what is kept of them stays consistent, and nothing is left of lines that have ended.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hg_na_verbs::fuzz_sharing(bytes));
