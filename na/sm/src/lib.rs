//! Hydrargyrum's shared-memory transport: `sm://`.
//!
//! Two contexts of one machine exchange messages through rings in memory that each writes and the
//! other only reads; eventfds wake who sleeps; long transfers go from memory to memory
//! (`process_vm_readv`). Nothing has a name in the file system, and a killed process leaves nothing.
//!
//! ```
//! use hg_na::{OpenOptions, Plugin};
//!
//! let domain = hg_na_sm::SmPlugin.open(&"sm://".parse()?, &OpenOptions::listening())?;
//! let context = domain.context(0)?;
//! assert_eq!(context.address().scheme(), "sm");
//! # Ok::<(), hg_na::Error>(())
//! ```
//!
//! # Layers
//! | module | what it is |
//! |---|---|
//! | `layout`, `ring`, `arena`, `wake` | the memory protocols; `tests/loom.rs` checks them |
//! | `segment`, `body`, `link` | mapped memory of one connection |
//! | `connection`, `send`, `receive`, `receives` | one peer |
//! | `context`, `post`, `rounds`, `chores`, `handshake`, `draining`, `transfers` | one endpoint |
//! | `domain`, `settings` | what is opened, and how |
//! | [`shared`] | memory that peers map |
//! | `os`, `rendezvous`, `region`, `node`, `offer` | the operating system's part |
//!
//! # Threads
//! A context is used by one thread at a time; its waiter by any. A domain by any.
//!
//! # Cleanup
//! Dropping a context says goodbye to its peers. A process that is killed is noticed by its peers.
//!
//! # Features
//! `fail-points`: for fault tests only, see `src/fail.rs`. `fuzzing`: for fuzz targets only.

// Under loom only the models in `tests/` are built, which include the modules that they check.
#![cfg(not(loom))]

#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "gives the processor a hint that takes an address")
)]
mod ahead;
mod arena;
mod backing;
#[expect(unsafe_code, reason = "turns reservations in the arena into slices")]
mod body;
mod chores;
mod connection;
mod context;
mod domain;
mod draining;
mod fail;
#[cfg(feature = "fuzzing")]
mod fuzzing;
mod handshake;
#[expect(unsafe_code, reason = "writes a completion into the spare capacity of a vector")]
mod in_place;
mod layout;
mod link;
mod node;
mod offer;
mod os;
mod peers;
mod post;
mod receive;
mod receives;
mod region;
mod rendezvous;
mod ring;
mod rounds;
#[expect(unsafe_code, reason = "turns mappings into references, and copies to and from them")]
mod segment;
mod send;
mod settings;
pub mod shared;
mod space;
mod sync;
mod transfers;
mod wake;

pub use domain::SmPlugin;
#[cfg(feature = "fuzzing")]
pub use fuzzing::{fuzz_regions, fuzz_rings};
pub use node::node_id;
#[cfg(feature = "fuzzing")]
pub use rendezvous::hello::fuzz_rendezvous;
