//! `hg-perf-served URL [SETTING=VALUE]...`: a target that serves the 8-byte call, and nothing else of `hg-perf`.
//!
//! `hg-perf memory` holds it against a program that does nothing: what is left is the library's.

use std::error::Error;
use std::io::{Read, Write};

/// The 8-byte call, by the name that `hg-perf` calls it.
#[hg::rpc(name = "hg_perf::product::echo")]
fn echo(value: u64) -> u64 {
    value
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("the URL to listen on is missing")?;
    let mut builder = hg::builder().listen(true).wait(hg::Wait::Block);
    for setting in arguments {
        let (name, value) = setting.split_once('=').ok_or("a setting is NAME=VALUE")?;
        builder = builder.setting(name, value);
    }
    let engine = builder.open(&url)?;
    engine.register(echo)?;
    writeln!(std::io::stdout(), "{}", engine.address())?;
    // An error is an end, too.
    let _ = std::io::stdin().read(&mut [0]);
    Ok(())
}
