//! Frames come from whoever has connected: a context that is told anything at all keeps its own promises.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hg_na_tcp::fuzz_frames(bytes));
