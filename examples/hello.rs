//! The smallest whole thing: a target and an origin, two processes, one RPC.
//!
//! `cargo run --release --example hello` starts the target itself.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{
    error::Error,
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
    time::Instant,
};

#[hg::rpc]
fn add(a: i64, b: i64) -> i64 {
    a + b
}

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1).as_deref() {
        Some("target") => target(),
        _ => origin(),
    }
}

/// Serves until its parent goes away.
fn target() -> Result<(), Box<dyn Error>> {
    let engine = hg::builder().register(add)?.listen(true).open("sm://")?;
    println!("{}", engine.address());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Starts the target, calls it, and stops it by closing its standard input.
fn origin() -> Result<(), Box<dyn Error>> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg("target")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut address = String::new();
    let output = child.stdout.take().ok_or("the target has no output")?;
    BufReader::new(output).read_line(&mut address)?;

    let engine = hg::open("sm://")?;
    let target = engine.lookup(address.trim())?;
    println!("2 + 3 = {}, says process {}", engine.call(add, &target, (2, 3)).wait()?, child.id());

    let calls = 10_000;
    let begun = Instant::now();
    for number in 0..calls {
        assert_eq!(engine.call(add, &target, (number, 1)).wait()?, number + 1);
    }
    println!("{calls} more calls took {:?}", begun.elapsed());

    drop(child.stdin.take());
    child.wait()?;
    Ok(())
}
