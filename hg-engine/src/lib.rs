//! Drives the RPC state machines of `hg-core` over a transport of `na`: threads, clock, wait set.
//!
//! From those that users see to those that know nothing of the others; no two modules need one another:
//!
//! | module | what it is |
//! |---|---|
//! | `builder`, `registering` | how an engine is opened: plugins, contexts; how it is given handlers |
//! | `handle`, `peer` | what users hold: register, look up, call |
//! | `call`, `start`, `in_place`, `arriving` | what comes of a call; how one begins; large results on their way here |
//! | `bulk`, `transfer`, `view` | registered memory; how transfers begin, and what comes of them; the short ways |
//! | `ready` | waiting for room for another call, and for the end of all that is in service |
//! | `event` | the descriptor for foreign event loops |
//! | `pending` | what is under way for a user, of whatever kind (`Pending<T>`): waited for, polled, cancelled or dropped in one way |
//! | `serve` | runs handlers of all kinds, here, on the pool or on a runtime of the user's |
//! | `role` | who makes progress: a waiting caller, the background thread, the user's loop |
//! | `dump` | what all engines are doing, for tests that hang |
//! | `port` | one context with its calls, requests and tasks; the round of progress; peers that are good for all contexts |
//! | `background`, `followers`, `idle` | what the role is passed on by: who stands aside, who waits in line, who sleeps |
//! | `pool`, `spawn` | threads for what may block; runtimes of users |
//! | `deferred`, `contain` | what of a user's is never run or dropped under a lock; its panics |
//! | `inside` | which handlers a thread is inside of, and whether it may wait there |
//! | `large`, `frozen`, `failure`, `settings`, `schemes` | where large bytes, and frozen memory among arguments, are; why a call was not made; what an engine is opened with |
//! | `lock`, `thread_number` | locks that a forked child can go on with; which context a thread takes |
//! | `platform` | clock, threads, parking: the machine, or a simulation |
//! | `interrupts` | what a simulation does at locks |
//!
//! # Threads
//! Whoever holds the *role* of a port makes its progress; posting needs only the port's state, whose
//! lock is never held while anybody sleeps or a handler runs. Lock order: role, then state.

#![forbid(unsafe_code)]

mod arriving;
mod background;
mod builder;
mod bulk;
mod call;
mod contain;
mod deferred;
mod dump;
mod engine;
mod event;
mod failure;
mod followers;
mod frozen;
mod idle;
mod in_place;
mod inside;
#[cfg(feature = "interrupts")]
#[doc(hidden)]
pub mod interrupts;
mod large;
mod lock;
mod memory;
mod peer;
mod pending;
#[doc(hidden)]
pub mod platform;
mod pool;
mod port;
mod ready;
mod registering;
mod role;
mod schemes;
mod serve;
mod settings;
mod spawn;
mod start;
mod thread_number;
mod transfer;
mod view;

pub use builder::Builder;
pub use bulk::{Bulk, Busy, Usage};
pub use call::{Call, CallOptions, OneWay, OwnedCall};
pub use dump::dump_engines;
pub use engine::Engine;
pub use event::EventLoop;
pub use peer::{Peer, ToAddress};
pub use pending::Pending;
pub use port::Request;
pub use ready::{Drain, DrainError, Ready};
pub use schemes::Advice;
pub use serve::Answer;
pub use settings::{OpenError, Progress, Wait};
pub use spawn::Spawn;
pub use transfer::Transfer;
pub use view::{Fetch, View};

/// Contexts of one engine at most; an address names its context by a byte.
pub const CONTEXTS_MAX: usize = 256;
/// Calls that one context can have under way at a time, by default.
pub const CALLS_MAX: usize = 65_536;
/// Default of [`Builder::pool_threads_max`].
pub const POOL_THREADS_MAX: usize = 512;
/// Bytes of read-only memory that ride in its descriptor, by default.
pub const EAGER_MAX: u64 = 4096;
/// Default of [`Builder::large_max`]: 1 GiB, or a sixteenth of the memory that there is.
pub const LARGE_MAX: u64 = 1 << 30;
/// Default of [`Builder::large_in_service_max`]: 4 GiB, or a quarter of the memory that there is. Arguments as long as [`LARGE_MAX`] find room beside whatever one other origin
/// holds.
pub const LARGE_IN_SERVICE_MAX: u64 = 4 * LARGE_MAX;
