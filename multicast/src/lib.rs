//! Reliable multicast of large objects: from one process, the *root* of a group, to all other members, by blocks that receivers pass on
//! while others are still coming. After RDMC (Behrens et al., DSN 2018), with what its released code does not do: every survivor learns of
//! a death, [`Group::close`] tells whether every object has reached every member, and [`Group::reform`] goes on without the dead, by block.
//!
//! ```
//! use hg_multicast::{Destination, GroupId, Multicast, Options};
//!
//! // Each member is mostly a process of its own. An address is told to the others by any means, and so is the group's id.
//! let all = [Multicast::open(hg::builder(), "sm://")?, Multicast::open(hg::builder(), "sm://")?];
//! let members: Vec<hg::Address> = all.iter().map(|it| it.address().clone()).collect();
//! let id = GroupId::random()?;
//!
//! let root = all[0].group(id, &members, 0, Options::default(), |_| Err("only the root sends".to_owned()))?;
//! let receiver = all[1].group(id, &members, 1, Options::default(), |incoming| {
//!     assert_eq!((incoming.size, incoming.metadata), (1_000_000, b"model.bin".as_slice()));
//!     Ok(Destination::Allocate)
//! })?;
//!
//! let sending = root.send(vec![7; 1_000_000], b"model.bin")?;
//! let received = receiver.receive().wait()?.expect("the group is not closed yet");
//! assert_eq!(received.data.into_vec()?, Some(vec![7; 1_000_000]));
//! sending.wait()?; // every member has it whole
//!
//! let closing = receiver.close();
//! root.close().wait()?; // every object has reached every member
//! closing.wait()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Processes of a job
//! Under `mpirun` or `srun`, or started by [`hg_job::Local`](https://docs.rs/hydrargyrum-job), the feature `job` tells all ranks the addresses
//! and the id:
//!
//! ```no_run
//! # #[cfg(feature = "job")]
//! # fn run() -> Result<(), Box<dyn std::error::Error>> {
//! # use hg_multicast::{Destination, Multicast, Options};
//! let job = hg_job::Job::connect()?;
//! let (multicast, members) = Multicast::of_job(&job, hg::builder(), "tcp://")?;
//! let id = Multicast::ids_of_job(&job, 1)?[0];
//! let group = multicast.group(id, &members, job.rank(), Options::default(), |_| Ok(Destination::Allocate))?;
//! if job.rank() == 0 {
//!     group.send(std::fs::read("model.bin")?, b"model.bin")?.wait()?;
//! } else {
//!     let received = group.receive().wait()?.expect("the root sends one object");
//!     println!("{} bytes", received.size);
//! }
//! group.close().wait()?;
//! job.leave()?;
//! # Ok(())
//! # }
//! ```
//!
//! Without a launcher anything that carries a line of text will do: `examples/speed.rs` starts the other members itself, and tells them addresses,
//! their places and the id ([`GroupId::to_bytes`]) by their standard input.
//!
//! # Files
//! The root sends one by [`Object::file`]; a receiver answers [`Destination::Blocks`] with a file that it has opened for reading and writing, since
//! blocks are passed on from there.
//!
//! # After a death
//! Whatever waits ends with a [`Failure`], which says who it was. What had come whole is received first. Then all survivors reform:
//!
//! ```no_run
//! # use hg_multicast::{Error, Group, Received};
//! fn receive_all(mut group: Group, mut take: impl FnMut(Received)) -> Result<(), Error> {
//!     loop {
//!         match group.receive().wait() {
//!             Ok(Some(received)) => take(received),
//!             Ok(None) => return Ok(group.close().wait()?),
//!             Err(failure) => {
//!                 eprintln!("{failure}");
//!                 group = group.reform().wait()?; // Where member 0 has died, `group.own()` may be 0 now: it sends from here on.
//!             }
//!         }
//!     }
//! }
//! ```
//!
//! # Threads
//! A [`Multicast`] has one thread, which makes the progress of its engine and drives all groups; files are read and written by a thread for
//! each object that is one. Everything else may be called by any thread; what gives a [`Completion`] can be waited for or awaited.
//! The function that is asked where an object goes runs on the thread that drives all groups: it must not block.
//!
//! # Cleanup
//! [`Group::close`] is the good end. A group that is dropped without it has left, which the others take for a failure. Dropping the
//! last clone of a [`Multicast`] ends its engine.

#![forbid(unsafe_code)]

mod checksum;
mod completion;
mod disk;
mod driver;
mod error;
mod group;
mod id;
mod inbox;
#[cfg(feature = "job")]
mod job;
mod machine;
mod multicast;
mod object;
mod options;
mod process;
pub mod schedule;
mod shared;
mod store;
mod wire;

pub use crate::{
    completion::Completion,
    error::{Error, Failure},
    group::{Group, Receive},
    id::GroupId,
    machine::METADATA_MAX,
    multicast::Multicast,
    object::{Blocks, Data, Destination, Incoming, Object, Received},
    options::Options,
    shared::{Progress, TraceEvent, What},
};
