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
//! Each module uses those of the lines above its own, and of its own, without a circle.
//!
//! | module | what it is |
//! |---|---|
//! | `layout`, `ring`, `arena`, `wake`, `sync` | the memory protocols; `tests/loom.rs` checks them |
//! | `descriptor` | what names a region |
//! | `os`, `node` | the operating system's part |
//! | `rendezvous` | sockets: names, greetings, messages about mappings, and the process at the other end |
//! | `segment`, `body` | the mapped memory of one side of a connection |
//! | [`shared`], `region` | memory that peers map, and memory that is registered |
//! | `link`, `transfer`, `ferry`, `maps`, `receives` | the parts of a connection: rings, transfers, what is mapped of the peer |
//! | `connection`, `send`, `receive`, `peers` | one peer, and all of them |
//! | `settings`, `domain` | what is opened, how, and what its contexts share |
//! | `context` | one endpoint |
//! | `plugin`, `offer` | what `na` opens |
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
#[expect(unsafe_code, reason = "turns reservations in the arena into slices")]
mod body;
mod completion;
mod connection;
mod context;
mod descriptor;
mod domain;
mod fail;
mod ferry;
#[cfg(feature = "fuzzing")]
mod fuzzing;
mod layout;
mod link;
mod maps;
mod offer;
mod os;
mod peers;
mod plugin;
mod receive;
mod receives;
mod region;
mod rendezvous;
mod ring;
#[expect(unsafe_code, reason = "turns mappings into references, and copies to and from them")]
mod segment;
mod send;
mod settings;
pub mod shared;
mod sync;
mod transfer;
mod wake;

#[cfg(feature = "fuzzing")]
pub use fuzzing::{fuzz_regions, fuzz_rings};
pub use hg_na_memory::node_id;
pub use plugin::SmPlugin;
#[cfg(feature = "fuzzing")]
pub use rendezvous::fuzzing::fuzz_rendezvous;
