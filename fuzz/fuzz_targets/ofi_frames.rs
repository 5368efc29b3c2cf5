//! Frames come from whoever has greeted: of any that bear a connection's key, none hurts another peer, or has more kept than its bound.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hg_na_ofi::fuzz_frames(bytes));
