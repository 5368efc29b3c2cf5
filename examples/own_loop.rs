//! Progress without a thread of the engine's: by an own loop, and by a foreign event loop's sleep.
//!
//! `cargo run --release --example own_loop`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{
    error::Error,
    os::fd::AsFd,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

static GREETED: AtomicU64 = AtomicU64::new(0);
const ORIGINS: u64 = 3;

#[hg::rpc]
fn greet(name: &str) -> String {
    GREETED.fetch_add(1, Ordering::Relaxed);
    format!("hello, {name}")
}

fn main() -> Result<(), Box<dyn Error>> {
    let target = hg::builder().listen(true).progress(hg::Progress::Own).open("sm://")?;
    target.register(greet)?;

    let origins = (0..ORIGINS).map(|number| {
        let address = target.address().clone();
        thread::spawn(move || origin(number, &address).expect("the target answers"))
    });
    let origins: Vec<_> = origins.collect();

    let events = target.event_loop()?;
    while GREETED.load(Ordering::Relaxed) < ORIGINS {
        while events.progress() {}
        // Asked immediately before every sleep; a real loop has its own descriptors beside this one.
        if events.may_sleep()? {
            let mut descriptors = [PollFd::new(events.as_fd(), PollFlags::POLLIN)];
            poll(&mut descriptors, PollTimeout::from(100u8))?;
        }
    }
    while events.progress() {}
    for origin in origins {
        println!("{}", origin.join().expect("the origin does not panic"));
    }
    Ok(())
}

/// An origin that makes its progress in a loop of its own, and does something else in between.
fn origin(number: u64, target: &hg::Address) -> Result<String, hg::CallError> {
    let engine = hg::builder().progress(hg::Progress::Own).open("sm://")?;
    let target = engine.lookup(target)?;
    let name = format!("origin {number}");
    let mut call = engine.call(greet, &target, (&name,));
    let mut rounds = 0u64;
    loop {
        if let Some(greeting) = call.try_wait() {
            return Ok(format!("{} (after {rounds} rounds)", greeting?));
        }
        rounds += 1;
        engine.progress(Duration::from_millis(1));
    }
}
