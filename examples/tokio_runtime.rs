//! `async` handlers on `tokio`, with its timers and sockets; calls that are awaited by its tasks. First on several threads, then on one.
//!
//! `cargo run --release --example tokio_runtime` runs both sides in one process. A crate of your own needs the feature `tokio`.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{error::Error, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    runtime::{Builder, Handle},
};

/// Sleeps by `tokio`'s timer, then asks a server at this address, over a socket of `tokio`'s.
#[hg::rpc]
async fn ask(address: String, number: u64) -> Result<u64, String> {
    tokio::time::sleep(Duration::from_millis(5)).await;
    over_tcp(&address, number).await.map_err(|error| error.to_string())
}

async fn over_tcp(address: &str, number: u64) -> std::io::Result<u64> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_u64(number).await?;
    stream.read_u64().await
}

/// Doubles numbers that come over sockets.
async fn serve_tcp(listener: TcpListener) -> std::io::Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        let number = stream.read_u64().await?;
        stream.write_u64(2 * number).await?;
    }
}

async fn serve_and_call() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let server = tokio::spawn(serve_tcp(listener));

    // Its handlers run on the runtime that this runs on.
    let builder = hg::builder().listen(true);
    let target = builder.runtime(Handle::current()).open("sm://")?;
    target.register(ask)?;

    // Calls need no such setting: they are futures that any runtime can await.
    let origin = hg::open("sm://")?;
    let peer = origin.lookup(target.address())?;
    let call = |number| {
        let (origin, address) = (origin.clone(), address.clone());
        tokio::spawn(async move { origin.call(ask, &peer, (address, number)).await })
    };
    let calls: Vec<_> = (1..=3).map(call).collect();
    for call in calls {
        println!("twice that is {}", call.await??);
    }
    server.abort();
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let several = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    several.block_on(serve_and_call())?;
    let one = Builder::new_current_thread().enable_all().build()?;
    one.block_on(serve_and_call())
}
