//! Bulk data: a store pulls what it is told to keep, and pushes it where it is asked for.
//!
//! `cargo run --release --example bulk` runs both sides in one process.

#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{
    error::Error,
    sync::{Arc, Mutex, PoisonError},
};

use hg::bulk::{Bulk, Descriptor, Rights};

/// Keeps what `from` names, and says how much that was. Only the descriptor travels with the call.
#[hg::rpc]
fn keep(from: Descriptor) -> Result<u64, String>;

/// Puts what is kept, from `offset` on, into the memory that `into` names.
#[hg::rpc]
fn load(offset: u64, into: Descriptor) -> Result<(), String>;

fn main() -> Result<(), Box<dyn Error>> {
    let target = hg::listen("sm://")?;
    let kept: Arc<Mutex<Option<Arc<Bulk>>>> = Arc::default();
    let store = Arc::clone(&kept);
    target.serve_async(keep, move |request, (from,)| {
        let store = Arc::clone(&store);
        async move {
            let engine = request.engine();
            let bytes = request.fetch(from).await.map_err(text)?;
            // Registered once, for every push to come; no rights: nobody else is to reach it.
            let bulk = engine.expose(bytes, Rights::empty()).map_err(text)?;
            let len = bulk.len();
            *store.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(bulk));
            Ok(len)
        }
    })?;
    target.serve_async(load, move |request, (offset, into)| {
        let bulk = kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        async move {
            let bulk = bulk.ok_or("nothing is kept")?;
            let range = bulk.range(offset..offset.saturating_add(into.len())).map_err(text)?;
            request.push(range, into).await.map_err(text)
        }
    })?;

    let origin = hg::open("sm://")?;
    let peer = origin.lookup(target.address())?;
    let numbers: Vec<u8> = (0..=255).cycle().take(10 << 20).collect();
    let source = origin.expose(numbers, Rights::READ)?;
    println!("kept {} bytes", origin.call(keep, &peer, (source.descriptor(),)).wait()?);

    let window = origin.expose(vec![0; 8], Rights::WRITE)?;
    origin.call(load, &peer, (100, window.descriptor())).wait()?;
    println!("loaded {:?}", window.into_vec()?);
    let late = origin.call(load, &peer, (10 << 20, source.descriptor())).wait();
    println!("beyond the end: {}", late.err().map_or_else(String::new, |error| error.to_string()));
    Ok(())
}

fn text(error: impl Error) -> String {
    error.to_string()
}
