//! A connected peer may write anything into its rings, its positions and flags, its arena, its pins and its
//! region table, at any time: what it sends is a message or costs it the connection, and everything that
//! was posted to it ends once. What is checked stands in `na/sm/src/fuzzing.rs`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hg_na_sm::fuzz_rings(bytes));
