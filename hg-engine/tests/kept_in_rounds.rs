//! Memory that nobody has any more but the transfers of a round that are moved together, and that panics when it is dropped.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use hg_bulk::Descriptor;
use hg_core::error::CallError;
use hg_engine::{Builder, Handle, Progress, Request};
use hg_macros::rpc;
use hg_na::{Memory, Rights, Segment};
use hg_na_sm::SmPlugin;

mod hg;

#[rpc(crate = crate::hg)]
fn served(memory: Descriptor) -> Result<u64, String>;

const PATIENCE: Duration = Duration::from_secs(60);
const LEN: usize = 4096;
/// Requests of one round.
const REQUESTS: usize = 6;

/// Counts, and panics.
struct Rude(Arc<AtomicUsize>);

impl Drop for Rude {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("the test's own panic");
    }
}

#[expect(unsafe_code, reason = "memory with a keeper of its own")]
fn rude_memory(dropped: &Arc<AtomicUsize>) -> Memory {
    let bytes = vec![0_u8; LEN].leak();
    let segment = Segment { address: bytes.as_mut_ptr().expose_provenance(), len: bytes.len() };
    // SAFETY:
    // - the bytes live for ever, and nobody else has them.
    unsafe { Memory::from_raw_parts(vec![segment], true, Arc::new(Rude(Arc::clone(dropped)))) }
}

fn open() -> Handle {
    let builder = Builder::new().plugin(SmPlugin).progress(Progress::Own).eager_max(0);
    builder.listen(true).open("sm://").unwrap()
}

#[test]
fn each_ones_memory_is_dropped_by_itself_and_all_are_answered() {
    let ((target, origin), dropped) = ((open(), open()), Arc::new(AtomicUsize::new(0)));
    let of_handlers = Arc::clone(&dropped);
    let serve = move |request: Request, (memory,): (Descriptor,)| {
        let local = request.engine().expose(rude_memory(&of_handlers), Rights::empty()).unwrap();
        async move {
            let transfer = request.pull(memory, &local);
            drop(local); // The transfer has it, until it is moved.
            transfer.await.map_err(|error| error.to_string())?;
            Ok(1)
        }
    };
    target.serve_async(served, serve).unwrap();
    let peer = origin.lookup(target.address()).unwrap();
    let lent = origin.expose(vec![1; LEN], Rights::READ).unwrap();
    let (limit, mut well) = (Instant::now() + PATIENCE, 0);
    // The first one connects; the others come in one round.
    for count in [1, REQUESTS] {
        let calls = (0..count).map(|_| origin.call(served, &peer, (lent.descriptor(),)));
        for mut call in calls.collect::<Vec<_>>() {
            let outcome = loop {
                while target.progress(Duration::ZERO) | origin.progress(Duration::ZERO) {}
                call = match call.try_take() {
                    Ok(outcome) => break outcome,
                    Err(open) => open,
                };
                assert!(Instant::now() < limit, "a call is never answered");
            };
            match outcome {
                Ok(number) => well += number,
                // Alone in its round it has its memory for itself, and drops that.
                Err(error) => assert!(matches!(error, CallError::Panicked(_)), "{error}"),
            }
        }
    }
    assert!(well > 1, "no round had several requests");
    assert_eq!(dropped.load(Ordering::SeqCst), 1 + REQUESTS);
}
