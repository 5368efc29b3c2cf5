//! A key-value store: handlers with state, own errors, borrowed arguments, one-way calls, a deadline.
//!
//! `cargo run --release --example store` runs both sides in one process.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{
    collections::HashMap,
    error::Error,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// What both sides share: it would live in a crate of its own, as in `examples/interface`.
mod interface {
    /// The error of [`get`].
    #[derive(Debug, serde::Serialize, serde::Deserialize, thiserror::Error)]
    #[error("no such key: {0}")]
    pub(crate) struct NoSuchKey(pub(crate) String);

    #[hg::rpc]
    pub(crate) fn get(key: &str) -> Result<Vec<u8>, NoSuchKey>;

    #[hg::rpc]
    pub(crate) fn put(key: &str, value: &[u8]);
}

use interface::{NoSuchKey, get, put};

fn main() -> Result<(), Box<dyn Error>> {
    let store = Arc::new(Mutex::new(HashMap::<String, Vec<u8>>::new()));
    let written = Arc::clone(&store);
    let handlers = hg::builder()
        .serve(put, move |_request, (key, value)| {
            let mut store = written.lock().unwrap_or_else(PoisonError::into_inner);
            store.insert(key.to_owned(), value.to_vec());
            Ok(())
        })?
        .serve(get, move |_request, (key,)| {
            let store = store.lock().unwrap_or_else(PoisonError::into_inner);
            store.get(key).cloned().ok_or_else(|| NoSuchKey(key.to_owned()))
        })?;
    let target = handlers.listen(true).open("sm://")?;

    let origin = hg::open("sm://")?;
    let peer = origin.lookup(target.address())?;
    origin.call(put, &peer, ("a", b"1")).wait()?;
    origin.notify(put, &peer, ("b", b"2")).wait()?;
    let options = hg::CallOptions::within(Duration::from_secs(1));
    println!("a = {:?}", origin.call_with(get, &peer, ("a",), options).wait()?);
    match origin.call(get, &peer, ("z",)).wait() {
        Err(hg::CallError::Handler(NoSuchKey(key))) => println!("there is no {key}"),
        other => println!("unexpected: {other:?}"),
    }
    Ok(())
}
