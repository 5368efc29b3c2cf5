//! `verbs://DEVICE[:PORT][@ADDRESS]`: Hydrargyrum's transport over RDMA verbs, without libfabric between.
//!
//! libibverbs is loaded when the first such URL is opened; a program starts without it and is told then what to install. Any
//! card with reliable connections and shared receive queues will do: InfiniBand, RoCE, soft-RoCE. `ARCHITECTURE.md` says how it works.
//!
//! ```no_run
//! use hg_na::{Address, OpenOptions, Plugin as _};
//!
//! let plugin = hg_na_verbs::VerbsPlugin::default();
//! let domain = plugin.open(&Address::new("verbs://")?, &OpenOptions::listening())?;
//! let context = domain.context(0)?;
//! println!("{}", context.address());
//! # Ok::<(), hg_na::Error>(())
//! ```
//!
//! # Settings
//! | name | meaning |
//! |---|---|
//! | `connect-timeout-ms` | bound for greeting a peer (30,000) |
//! | `silence-bound-ms` | bound for noticing a peer that is cut off (30,000; 3,000 at least) |
//! | `max-peers` | connections of one context (65,536) |
//! | `device` | `a,b`: ports (`DEVICE[:PORT]`, 8 at most) over which peers are spread, instead of one in the URL |
//! | `signal-every` | one in so many posts of a queue pair asks for its completion (32); 1: each |
//! | `queue-pairs` | `own`: one for each connection of two contexts; one for each pair of processes (`shared`) |
//! | `operations` | which operations move the bytes of put and get (`RC|SEND|WRITE|READ`): a get is written by the memory's owner, a put read; what is not named travels in messages. Without `SEND` transfers of every length are one-sided where that is named |
//! | `rma` | `off`: put and get travel in messages (`on`) |
//! | `rma-from` | put and get of so many bytes are a write or a read of the card's (32,768); 1: all |
//! | `max-held-mib` | MiB that requests which wait for admission take, of all peers (1,024); past it the peer whose take most is disconnected, or whose messages stand still |
//! | `key-file`, `key-env` | where the pre-shared key is: who has it not is no peer; frames are not encrypted |
//!
//! # Threads
//! As `hg_na` says. The contexts of a domain share queue pairs, completion queue and receive queue, without waiting for each other; with
//! `queue-pairs=own` each has its own.
//!
//! # Cleanup
//! Dropping a context says goodbye to its peers and frees all that it has of the card; the library stays loaded.
//!
//! # Features
//! | feature | what | default |
//! |---|---|---|
//! | `key` | a pre-shared key for lifelines; brings `snow` and `graviola` | no |
//! | `device` | for tests that need a card only | no |
//! | `fuzzing` | for fuzz targets only | no |

#![cfg(not(loom))] // A model compiles the files that it needs.

mod address;
mod bell;
#[expect(unsafe_code, reason = "calls into a C library")]
mod card;
mod choice;
mod domain;
#[cfg(feature = "fuzzing")]
mod fuzzing;
mod gauge;
mod health;
mod idle;
mod plugin;
mod settings;
mod shared;
mod sharing;
mod signals;
mod spread;
mod transport;
mod turn;
mod wire;

#[cfg(feature = "fuzzing")]
pub use fuzzing::{fuzz_greeting, fuzz_sharing};
pub use plugin::VerbsPlugin;
pub use rdma_core_sys::{Missing, PATH_VARIABLE};
