//! Greetings come from anybody who finds the port: any bytes are refused or decoded, and what is accepted encodes
//! to something that reads the same, within the limit.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hg_na_tcp::fuzz_greeting(bytes));
