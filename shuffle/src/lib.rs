//! All-to-all messages between the ranks of a job, in three hops over few connections.
//!
//! ```text
//!   SRC --shared memory--> SRCREP --network--> DSTREP --shared memory--> DST
//! ```
//! A process needs a queue for each rank of its own node and for a few other nodes, instead of one for every rank: on
//! 10,000 nodes of 32 ranks, 31 and 313 instead of 320,000. Messages travel in batches; each hop acknowledges a batch
//! when nothing of it waits there any more, which is all the flow control there is: memory is bounded, and nothing is
//! dropped. After deltafs-shuffle and deltafs-nexus.
//!
//! ```no_run
//! use hg_shuffle::{Options, Ranks, Shuffle, Shutdown};
//!
//! let job = hg_job::Job::connect()?; // from mpirun, srun or a runner of its own
//! let shuffle = Shuffle::new(&Ranks::of(&job, "keys"), "keys", Options::default(), |message| {
//!     println!("{} bytes of type {} from {}", message.bytes.len(), message.kind, message.source);
//! })?;
//! shuffle.enqueue((job.rank() + 1) % job.size(), 7, b"hello")?;
//! shuffle.flush_all()?; // every message of every rank was delivered
//! shuffle.shutdown(Shutdown::Drain)?;
//! job.leave()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! `examples/` has whole programs: a histogram, a sort, and word counts over files. `shuffle-runner --plot FILE.svg -- PROGRAM` draws
//! what those of any program's ranks on this machine do over time: where `HG_SHUFFLE_SAMPLES` names a folder, each leaves its samples there.
//!
//! # Threads
//! A [`Shuffle`] is used from any number of threads. It has a thread for its engine, one for delivery unless that is inline, and
//! one that sends batches which have waited long enough. A thread that waits for room in a queue makes the engine's progress
//! meanwhile.
//!
//! The fast way is a [`Sender`] for each thread that sends much ([`Shuffle::sender`]: a lock for each batch, not for each
//! message), and [`Options::deliver_inline`] where the callback does not block: then a thread that sends delivers what has
//! come meanwhile, and no other one is woken. Together they are three times as fast as `enqueue` and a thread.
//!
//! # Cleanup
//! [`Shuffle::shutdown`] is collective and ends all threads and connections; dropping a shuffle ends it for this rank,
//! which the others take for a failure.

#![forbid(unsafe_code)]
// The models take the files that they search themselves.
#![cfg(not(loom))]

mod account;
mod broadcasts;
mod error;
mod hop;
mod inbox;
mod inner;
mod linger;
mod lock;
mod mail;
mod meeting;
mod message;
mod of_job;
mod onward;
mod options;
mod order;
mod overflow;
mod parent;
mod queue;
mod room;
pub mod route;
mod rpc;
mod samples;
mod secret;
mod sender;
mod shuffle;
mod stats;
mod sync;
mod transport;
mod turns;

pub use crate::{
    account::{Account, Way},
    error::{Error, Failure, Hop},
    mail::Delivery,
    message::MESSAGE_MAX,
    of_job::Ranks,
    options::{BUFTARGET_MAX, LINGER_MAX, MAXRPC_MAX, Options},
    queue::Counts,
    sender::Sender,
    shuffle::{Dump, Flush, Group, Shuffle, Shutdown},
    stats::Statistics,
};
