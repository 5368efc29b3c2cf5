//! Sealed records come from whoever has connected, with the key or without it: a context with a key that is told anything at all keeps
//! its own promises.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hg_na_tcp::fuzz_sealed(bytes));
