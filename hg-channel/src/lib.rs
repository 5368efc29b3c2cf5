//! Channels: one-way, ordered, bounded streams of small records between two *ends*, threads of one process or of two.
//!
//! An end is a thread with its context of a transport; it has a number, and a [`Port`] that holds all its channels. A channel opens with the
//! first record that is written to it. Records are packed into blocks without a lock; a block is one message of the transport, or is
//! handed over to a thread of the same process. How it works, who owns what, and what it costs: `ARCHITECTURE.md` beside this crate.
//!
//! ```
//! use std::{sync::Arc, time::{Duration, Instant}};
//! use hg_channel::{Batch, Directory, Event, Limits, Near, Port, When};
//! use hg_na::{Address, OpenOptions, Plugin as _};
//!
//! // Two ends of one process; ends of other processes are reached by the addresses of the directory.
//! let domain = hg_na_sm::SmPlugin.open(&Address::new("sm://")?, &OpenOptions::listening())?;
//! let contexts = [domain.context(0)?, domain.context(1)?];
//! let addresses = contexts.iter().map(|it| it.address().clone()).collect();
//! let (directory, near) = (Arc::new(Directory::new([7; 16], addresses)), Near::new(0, 2));
//! let [mut here, mut there] = [0, 1].map({
//!     let mut contexts = contexts.into_iter();
//!     move |end| {
//!         let context = contexts.next().expect("one each");
//!         Port::new(end, context, Arc::clone(&directory), Arc::clone(&near), Limits::default())
//!     }
//! });
//!
//! let room = here.record(1, 42, 5, u64::MAX)?; // to end 1, with a tag of one's own, 5 bytes
//! room.copy_from_slice(b"hello");
//! here.tell(1, When::Consumed, "it was read");
//! here.flush(1);
//!
//! let mut batch = Batch::default();
//! there.advance(Instant::now(), &mut batch)?;
//! let Some(Event::Block(block)) = there.next(&mut batch) else { panic!("nothing has come") };
//! let mut bytes = block.bytes();
//! let record = hg_channel::next_record(&mut bytes)?.expect("one record");
//! assert_eq!((record.tag, record.bytes), (42, b"hello".as_slice()));
//! there.consumed(block);
//! there.acknowledge();
//!
//! here.advance(Instant::now(), &mut batch)?;
//! assert!(here.next(&mut batch).is_none());
//! assert_eq!(here.due(), Some("it was read"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Threads
//! A port belongs to one thread at a time. [`Near::wake`] may be called by any.
//!
//! # Cleanup
//! Dropping a port closes its channels: what had not left is lost ([`Port::is_flushed`] says when all has). The others see
//! [`Event::Gone`].

#![cfg(not(loom))] // A model compiles the files that it needs.
#![forbid(unsafe_code)]

mod error;
mod inbox;
mod incoming;
mod limits;
mod near;
mod outgoing;
mod port;
mod sync;
#[cfg(test)]
mod tests;
mod wire;

pub use error::{Broken, Error};
pub use limits::Limits;
pub use near::Near;
pub use outgoing::When;
pub use port::{Arrived, Batch, Directory, Event, Kept, Port, Stats};
pub use wire::{RECORD, Record, next_record};
