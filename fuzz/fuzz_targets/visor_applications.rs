//! Applications say whatever they like to the daemon `hg-visor`, and die: it keeps its promises to an honest one.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hg_visor::fuzz_applications(bytes));
