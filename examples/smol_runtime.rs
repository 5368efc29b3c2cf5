//! `async` handlers on a runtime that this crate does not know: `smol`, with its timers and sockets.
//!
//! `cargo run --release --example smol_runtime` runs both sides in one process.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{error::Error, pin::Pin, time::Duration};

use smol::{
    Timer,
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// The runtime: all that an engine needs of it.
struct Smol;

impl hg::Spawn for Smol {
    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        smol::spawn(future).detach();
    }

    fn spawn_blocking(&self, job: Box<dyn FnOnce() + Send>) {
        smol::unblock(job).detach();
    }
}

/// Sleeps by `smol`'s timer, then asks a server at this address, over a socket of `smol`'s.
#[hg::rpc]
async fn ask(address: String, number: u8) -> Result<u8, String> {
    Timer::after(Duration::from_millis(5)).await;
    over_tcp(&address, number).await.map_err(|error| error.to_string())
}

async fn over_tcp(address: &str, number: u8) -> std::io::Result<u8> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(&[number]).await?;
    let mut answer = [0];
    stream.read_exact(&mut answer).await?;
    Ok(answer[0])
}

/// Doubles numbers that come over sockets.
async fn serve_tcp(listener: TcpListener) -> std::io::Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        let mut number = [0];
        stream.read_exact(&mut number).await?;
        stream.write_all(&[2 * number[0]]).await?;
    }
}

async fn serve_and_call() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let _server = smol::spawn(serve_tcp(listener));

    let target = hg::builder().listen(true).runtime(Smol).open("sm://")?;
    target.register(ask)?;
    let origin = hg::open("sm://")?;
    let peer = origin.lookup(target.address())?;
    for number in 1..=3 {
        let answer = origin.call(ask, &peer, (address.clone(), number)).await?;
        println!("twice {number} is {answer}");
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    smol::block_on(serve_and_call())
}
