//! Routing: a plugin made of two plugins. Peers of this node are reached by the local one (`sm`), all others
//! by the network, under one address: `uid://NODE#sm://...#tcp://...`.
//!
//! ```
//! use hg_na::{OpenOptions, Plugin};
//! use hg_na_conformance::Mem; // stands for a network here
//! use hg_na_route::Route;
//!
//! let route = Route::new(hg_na_sm::SmPlugin, Mem::default(), hg_na_sm::node_id, &["uid", "mem"]);
//! let domain = route.open(&"mem://".parse()?, &OpenOptions::listening())?;
//! let context = domain.context(0)?;
//! assert!(context.address().as_str().starts_with("uid://"));
//! assert_eq!(context.address().part("sm").map(|part| part.scheme().to_owned()), Some("sm".into()));
//! # Ok::<(), hg_na::Error>(())
//! ```
//!
//! # The choice
//! It is made when an address is looked up. An equal node id means that the local plugin is tried. Where that is
//! refused, or nobody is there, before it is connected, the network is taken instead: what is posted meanwhile
//! waits, and goes the way that was chosen, in order, and the reason is logged. Once it is connected
//! the way does not change: the end of the way is the end of the peer. Its next incarnation, looked up
//! again, chooses anew. A part of an address can be looked up too; it is reached that way and no other.
//!
//! A peer that this side looked up and the one that the other side's connection makes are two where the chosen
//! plugin makes two of them (`sm`), one where it makes one (`tcp`).
//!
//! # Who does what
//! | module | what it is |
//! |---|---|
//! | `plugin` | opening: which URLs, which settings for whom |
//! | `uid` | the address |
//! | `domain`, `caps`, `region` | what both can do; memory that stands in both |
//! | `context` | the fast way through: posts and completions of peers that are settled |
//! | `trials`, `candidates` | peers that the local plugin is tried for, and what waits for them |
//! | `moves`, `moved` | peers that took the network instead |
//! | `held`, `waits`, `names` | operations that wait here, and how they are called afterwards |
//! | `marks` | which of these a peer is |
//! | `rounds` | which of the two a round looks at; sleep |
//! | `flushes` | flushes of both |
//! | `network`, `hearing` | when the network is looked at, and what it has said |
//! | `slices` | local memory of transfers under way |
//! | `waiter` | one sleep for both |
//!
//! # What it costs
//! Handles and ids are those of the plugins; one bit tells them apart. A settled peer costs a comparison a post
//! and nothing a completion. An idle network is not polled: it has agreed to sleep, and both plugins have their
//! descriptors in one wait set ([`hg_na::Waiter::host`]), or the network's set stands in the local plugin's
//! ([`hg_na::Waiter::join`]).
//!
//! # Threads
//! As every plugin: a context belongs to one thread at a time, its waiter and the domain to any.
//!
//! # Cleanup
//! Dropping a context drops that of each plugin.

#![forbid(unsafe_code)]

mod at_once;
mod candidates;
mod caps;
mod context;
mod domain;
mod flushes;
mod hearing;
mod held;
mod lookups;
mod marks;
mod moved;
mod moves;
mod names;
mod network;
mod parts;
mod plugin;
mod region;
mod rounds;
mod slices;
mod trials;
mod uid;
mod waiter;
mod waits;

pub use plugin::Route;

/// One of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Local,
    Network,
}
