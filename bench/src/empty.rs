//! `hg-perf-empty`: a Rust program that does nothing until its standard input ends.
//!
//! `hg-perf memory` holds a target's memory against it.

use std::io::Read;

fn main() {
    // An error is an end, too.
    let _ = std::io::stdin().read(&mut [0]);
}
