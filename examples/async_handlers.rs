//! Handlers that take their time: `async`, blocking, answering later, calling out, seeing a cancellation.
//!
//! `cargo run --release --example async_handlers`

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{error::Error, sync::mpsc, thread, time::Duration};

#[hg::rpc]
fn square(number: u64) -> u64 {
    number * number
}

/// Calls other RPCs, at its own origin, before it answers.
#[hg::rpc]
async fn sum_of_squares(request: &hg::Request, numbers: Vec<u64>) -> Result<u64, String> {
    let (engine, origin) = (request.engine(), request.origin());
    let calls: Vec<_> =
        numbers.iter().map(|number| engine.call(square, &origin, (*number,))).collect();
    let mut sum = 0;
    for call in calls {
        sum += call.await.map_err(|error| error.to_string())?;
    }
    Ok(sum)
}

/// Runs on a pool thread, where it may block.
#[hg::rpc(blocking)]
fn read_file(path: &str) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{path}: {error}"))
}

/// Declared here, served by a closure that answers from another thread.
#[hg::rpc]
fn next_event() -> String;

/// Declared here, served by a closure that waits until nobody wants its answer any more.
#[hg::rpc]
fn patience();

fn main() -> Result<(), Box<dyn Error>> {
    let target = hg::listen("sm://")?;
    target.register(sum_of_squares)?;
    target.register(read_file)?;

    let (waiting, events) = mpsc::channel::<hg::Answer<next_event>>();
    target.serve_later(next_event, move |_, (), answer| {
        // Nobody listens only when this program ends.
        let _ = waiting.send(answer);
    })?;
    thread::spawn(move || {
        for (answer, number) in events.into_iter().zip(1..) {
            answer.send(Ok(format!("event {number}")));
        }
    });
    let (gave_up, given_up) = mpsc::channel();
    target.serve_async(patience, move |request, ()| {
        let gave_up = gave_up.clone();
        async move {
            request.cancelled().await;
            // Nobody listens only when this program ends.
            let _ = gave_up.send(());
            Ok(())
        }
    })?;

    let origin = hg::open("sm://")?;
    origin.register(square)?;
    let peer = origin.lookup(target.address())?;
    println!("1 + 4 + 9 = {}", origin.call(sum_of_squares, &peer, (vec![1, 2, 3],)).wait()?);
    println!("{}", origin.call(next_event, &peer, ()).wait()?);
    println!("{}", origin.call(next_event, &peer, ()).wait()?);
    let missing = origin.call(read_file, &peer, ("/no/such/file",)).wait();
    println!("{}", missing.expect_err("there is no such file"));

    let options = hg::CallOptions::within(Duration::from_millis(10));
    let late = origin.call_with(patience, &peer, (), options).wait();
    println!("{}", late.expect_err("nobody is that patient"));
    given_up.recv()?;
    println!("and the handler saw it");
    Ok(())
}
