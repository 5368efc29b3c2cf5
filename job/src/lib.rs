//! Who am I among whom: rank, size, node, all-gather, barrier and abort, from whatever started the process.
//!
//! ```
//! let job = hg_job::Job::connect()?;
//! println!("rank {} of {}, {} of {} on node {}",
//!     job.rank(), job.size(), job.local_rank(), job.local_size(), job.node());
//! let everybody = job.all_gather(b"my address")?;
//! assert_eq!(everybody.len(), job.size() as usize);
//! job.leave()?;
//! # Ok::<(), hg_job::Error>(())
//! ```
//!
//! | started by | how ranks meet | needs |
//! |---|---|---|
//! | `mpirun` of Open MPI, `srun --mpi=pmix` | PMIx | `libpmix.so.2` at run time |
//! | `mpirun` of MPICH or Intel MPI, `srun --mpi=pmi2` | PMI-1 (or PMI-2) over `PMI_FD`, `PMI_PORT` | |
//! | [`Local`] | a socket pair with the runner | |
//! | anything that gives ranks | `HG_JOB_RENDEZVOUS=dir:FOLDER` or `tcp:HOST:PORT`, `HG_JOB_RANK`, `HG_JOB_SIZE` | |
//! | nothing | one process alone | |
//!
//! Nothing needs an MPI library, and a program that uses MPI besides is not disturbed. The launcher only
//! carries addresses; everything else goes over a connection of each rank to a *hub*, a thread in rank 0 or in the runner, which
//! therefore knows at once who dies, and says it to everybody. Of more than 33 ranks some have hubs of their own, which are
//! connected as a tree: no process has more than [`SOCKETS_MAX`] sockets for the job.
//!
//! # Threads
//! A [`Job`] may be used from any thread; collective calls of one [`Channel`] need one order on all ranks.
//! Each rank has one thread that sleeps in a read; whoever has a hub one more for that; PMIx one more.
//!
//! # Cleanup
//! Nothing is left behind, but the file of a `dir:` rendezvous when rank 0 is killed while ranks meet.
//!
//! # Features
//! `fuzzing`: for fuzz targets only.

mod connect;
mod deadline;
mod detect;
mod error;
mod foreign;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod host;
mod hub;
mod job;
mod launcher;
mod link;
mod local;
mod meeting;
mod node_map;
mod notice;
mod pmi;
mod pmix;
mod settings;
#[doc(hidden)]
pub mod simulate;
mod stream;
mod tree;

pub use error::{Error, Ranks};
#[doc(hidden)]
pub use foreign::LAYOUT;
pub use frame::{CHANNEL_MAX, VALUE_MAX};
#[cfg(any(test, feature = "fuzzing"))]
pub use fuzzing::{fuzz_hub, fuzz_texts};
pub use job::{Channel, Job};
pub use local::{Ended, Local, Started};
pub use node_map::{MapError, NodeMap, RANKS_MAX};
pub use settings::{Settings, Via};
pub use tree::SOCKETS_MAX;
