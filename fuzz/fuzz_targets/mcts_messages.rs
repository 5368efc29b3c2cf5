//! A process of a search team sends whatever it likes in the middle of a phase: what makes no sense is refused, and the rest is counted.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| hg_mcts::fuzz_messages(bytes));
