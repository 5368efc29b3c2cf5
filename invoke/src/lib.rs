//! Asynchronous calls between the threads of a job's processes: millions of tiny ones, packed into blocks.
//!
//! Each process has the same number of *workers*, one for each thread that calls and is called. A call runs a registered function at another
//! worker (or at this one), in the order in which it was made. Nobody waits for it, unless asked to: by a [`Synchronizer`], or until
//! everything everywhere has run ([`Worker::quiesce`]). How it works: `ARCHITECTURE.md` beside this crate.
//!
//! ```
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use hg_invoke::{Fabric, Place, Request, rpc};
//!
//! static SUM: AtomicU64 = AtomicU64::new(0);
//!
//! #[rpc(crate = hg_invoke)]
//! fn add(number: u64) {
//!     SUM.fetch_add(number, Ordering::Relaxed);
//! }
//!
//! #[rpc(crate = hg_invoke)]
//! fn spread(here: &Request, left: u64) {
//!     here.call(Place { process: 0, thread: 1 }, add, (left,)).expect("there is room");
//! }
//!
//! let job = hg_job::Job::connect()?; // alone here; under mpirun, one of many
//! let workers = Fabric::new().threads(2).register(add)?.register(spread)?.open(&job, "sm://")?;
//! std::thread::scope(|scope| {
//!     for worker in workers {
//!         scope.spawn(move || {
//!             if worker.place().thread == 0 {
//!                 for number in 1..=100 {
//!                     worker.call(Place { process: 0, thread: 0 }, spread, (number,)).expect("room");
//!                 }
//!             }
//!             worker.quiesce().expect("everybody is there"); // collective
//!             worker.finish()
//!         });
//!     }
//! });
//! assert_eq!(SUM.load(Ordering::Relaxed), 5050);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Threads
//! A worker may be moved to a thread, and belongs to it. Synchronizers may be used from any.
//!
//! # Cleanup
//! [`Worker::finish`] sends what was called; a worker that is dropped without it drops what has not left.

#![cfg(not(loom))] // A model compiles the files that it needs.
#![forbid(unsafe_code)]

mod bounds;
mod broadcasts;
mod buffers;
mod error;
mod fabric;
mod functions;
mod groups;
mod how;
mod memory;
mod numa;
mod quiet;
mod returned;
mod service;
mod sync;
mod synchronizer;
mod tree;
mod worker;

pub use buffers::{EndsWith, FrontOf};
pub use error::{Error, Refused};
pub use fabric::{Fabric, Group};
pub use hg_channel::{Limits, Stats, When};
pub use hg_core::rpc::Rpc;
/// Makes a function callable: `#[hg_invoke::rpc(crate = hg_invoke)]`. A first argument `&Request` is the worker that runs it. The function is
/// known by the hash of its path, or of the name that it is given; what it returns is dropped.
pub use hg_macros::rpc;
pub use how::{How, Packing, Place, Room};
pub use memory::{Buffer, Locator, Part, Spot, Written};
pub use returned::{Failed, Outcome, Returned};
pub use synchronizer::Synchronizer;
pub use worker::Worker;

/// What a function that asks for it is given: the worker that runs it.
pub type Request = Worker;

#[doc(hidden)]
pub mod __private {
    //! For what the attribute writes.
    pub use hg_core::rpc::{
        LocalCall, NoError, Responder, Rpc, Serve, ServeKind, SignatureCell, serde_bytes, travels,
    };
}
