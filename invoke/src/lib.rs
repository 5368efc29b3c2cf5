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
//! Results, notifications, broadcasts, buffers and groups:
//! ```
//! use hg_invoke::{Fabric, How, Place, Synchronizer, rpc};
//!
//! #[rpc(crate = hg_invoke)]
//! fn length(bytes: &[u8]) -> u64 {
//!     bytes.len() as u64
//! }
//!
//! let job = hg_job::Job::connect()?;
//! let worker = Fabric::new().register(length)?.open(&job, "sm://")?.remove(0);
//! let to = Place { process: 0, thread: 0 };
//! let mut returned = worker.call_return(to, length, (b"four",))?;
//! assert_eq!(returned.wait(&worker)?, 4);
//! // One synchronizer counts any number of events; whoever waits for it does so after the calls.
//! let done = Synchronizer::new();
//! let told = How::default().when_run(&done);
//! worker.call_with(to, length, (b"one",), told)?;
//! worker.broadcast_with(length, (b"everywhere",), told)?;
//! let buffer = worker.allocate(1 << 20)?; // read by the receiver, before its function runs
//! worker.call_buffer_read(to, length, (), buffer.part(0..1 << 20), told)?;
//! let there = worker.allocate_at(to, 100)?; // until it is dropped
//! worker.put(&buffer, 0..100, there.locator(), 0, &done)?;
//! done.wait(&worker)?;
//! worker.block_on(done)??; // or as any future
//! worker.call_with(to, length, (b"of a group",), How::default().of_group(7))?;
//! worker.quiesce_group(7)?; // collective; waits for calls of this group alone
//! worker.finish()?;
//! job.leave()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Memory that others allocate, and a broadcast that is put there:
//! ```
//! use hg_invoke::{Fabric, How, Place, Request, Synchronizer, Written, rpc};
//!
//! #[rpc(crate = hg_invoke)]
//! fn look(here: &Request, written: Written) {
//!     let memory = here.memory_of(written.locator()).expect("it was allocated here");
//!     let mut bytes = [0; 4];
//!     memory.read(written.range().start, &mut bytes).expect("there are so many");
//!     assert_eq!(&bytes, b"each");
//! }
//!
//! let job = hg_job::Job::connect()?;
//! let worker = Fabric::new().register(look)?.open(&job, "sm://")?.remove(0);
//! let done = Synchronizer::new();
//! // At one thread, or at any of a process (`Place::any_of`, `allocate_at_node`): by one-sided puts and gets.
//! let own = worker.allocate(100)?;
//! let there = worker.allocate_at(Place { process: 0, thread: 0 }, 100)?;
//! worker.put(&own, 0..100, there.locator(), 0, &done)?;
//! // At each: written along the tree before the function runs.
//! let everywhere = worker.allocate_everywhere(100)?;
//! own.write(0, b"each")?;
//! let told = How::default().when_run(&done);
//! worker.broadcast_buffer_written(look, (), own.part(0..4), everywhere.at(50), told)?;
//! done.wait(&worker)?;
//! assert_eq!(worker.panicked(), 0);
//! worker.finish()?;
//! job.leave()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # State
//! A function is no closure: what it works on lies in a `static`, or in a `thread_local!`, since functions run in the thread that makes progress of their
//! worker: it is one worker's where each has a thread of its own. A service thread ([`Fabric::services`]) has its own.
//!
//! [`Worker::memory_of`] finds memory that others have allocated here. A [`Buffer`] of one's own ([`Worker::allocate`]) it does not find: its owner keeps it where
//! the functions find it, in a `thread_local!` as well, and they compare its [`Buffer::locator`] if there are several.
//!
//! # Calls that are refused
//! Calls with choices ([`Worker::call_with`] and others) come back with their arguments: [`Refused`]. Where these are not needed, `.map_err(|it| it.error)?` goes on with the [`Error`]. After
//! [`Error::Full`] a worker makes progress and calls again. A function may not: by [`Room::Queue`] it has [`Fabric::queue_max`], and what is refused beyond that it keeps in its state,
//! for its worker to call when it has made progress.
//!
//! # Barriers
//! No worker may skip one that others enter: it is waited for. A thread that cannot go on drops its worker, which its panic does, or ends the job: the
//! others' barriers then end with [`Error::Gone`].
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
mod held;
mod how;
mod memory;
mod numa;
mod owed;
mod patience;
mod queues;
mod quiet;
mod remote;
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
/// known by the hash of its path, or of the name that it is given. What it returns goes to whoever has called it by [`Worker::call_return`], and is
/// dropped otherwise.
///
/// The attribute is that of RPCs, which looks for a crate `hg`: without `(crate = hg_invoke)` the compiler says that it "could not find `hg`".
pub use hg_macros::rpc;
pub use how::{How, Packing, Place, Room};
pub use memory::{Buffer, Locator, Part, Spot, Written};
pub use remote::{Everywhere, Remote, SpotEverywhere};
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
