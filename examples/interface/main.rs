//! Two programs that share only an interface crate: it declares the RPCs, the target implements them.
//!
//! `cargo run --release --example interface` runs both sides in one process.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{
    error::Error,
    sync::atomic::{AtomicI64, Ordering},
};

use calculator::{DivisionByZero, accumulate, divide};

/// The target's side: a function for one declaration, a closure with state for the other.
#[hg::rpc(implements = calculator::divide)]
fn serve_divide(a: i64, b: i64) -> Result<i64, DivisionByZero> {
    a.checked_div(b).ok_or(DivisionByZero { dividend: a })
}

fn main() -> Result<(), Box<dyn Error>> {
    let total = AtomicI64::new(0);
    let target = hg::builder()
        .register(serve_divide)?
        .serve(accumulate, move |_, (numbers,)| {
            let sum: i64 = numbers.iter().sum();
            Ok(total.fetch_add(sum, Ordering::Relaxed) + sum)
        })?
        .listen(true)
        .open("sm://")?;

    // The origin's side knows the declarations only.
    let origin = hg::open("sm://")?;
    let peer = origin.lookup(target.address())?;
    println!("7 / 2 = {}", origin.call(divide, &peer, (7, 2)).wait()?);
    println!("total {}", origin.call(accumulate, &peer, (vec![1, 2, 3],)).wait()?);
    println!("total {}", origin.call(accumulate, &peer, (vec![4],)).wait()?);
    match origin.call(divide, &peer, (7, 0)).wait() {
        Err(hg::CallError::Handler(error)) => println!("{error}"),
        other => println!("unexpected: {other:?}"),
    }
    Ok(())
}
