//! Drives the RPC state machines of `hg-core` over a transport of `na`: threads, clock, wait set.
//!
//! | module | what it is |
//! |---|---|
//! | `builder` | how an engine is opened: plugins, contexts, progress, limits |
//! | `handle` | what users hold: register, look up, call |
//! | `pending` | what is under way for a user, of whatever kind: waited for, polled, cancelled or dropped in one way |
//! | `call`, `ready` | a call under way; waiting for room for another one |
//! | `in_place` | calls whose arguments were written where they are sent from |
//! | `bulk` | registered memory; what starts transfers |
//! | `transfer`, `view` | a transfer under way; the short ways |
//! | `port` | one context with its calls, requests and tasks; the round of progress |
//! | `role` | who makes progress: a waiting caller, the background thread, the user's loop |
//! | `handler` | handlers of all kinds behind one trait; answers |
//! | `inside` | which handlers a thread is inside of, and whether it may wait there |
//! | `event` | the descriptor for foreign event loops |
//! | `dump` | what all engines are doing, for tests that hang |
//! | `deferred` | wakers, and what else of a user's is never run or dropped under a lock |
//! | `lock` | locks that a forked child can go on with |
//! | `pool`, `owed` | threads for what may block; the answers that are owed meanwhile |
//! | `runtime` | handlers on a runtime of the user's |
//! | `platform` | clock, threads, parking: the machine, or a simulation |
//!
//! # Threads
//! Whoever holds the *role* of a port makes its progress; posting needs only the port's state, whose
//! lock is never held while anybody sleeps or a handler runs. Lock order: role, then state.

#![forbid(unsafe_code)]

mod builder;
mod bulk;
mod call;
mod deferred;
mod dump;
mod event;
mod handle;
mod handler;
mod in_place;
mod inside;
mod large;
mod lock;
mod owed;
mod peer;
mod pending;
#[doc(hidden)]
pub mod platform;
mod pool;
mod port;
mod ready;
mod request;
mod role;
mod running;
mod runtime;
mod schemes;
mod start;
mod tasks;
mod transfer;
mod view;

pub use builder::{Builder, OpenError, Progress, Wait};
pub use bulk::{Bulk, Busy};
pub use call::{Call, CallOptions, OneWay, OwnedCall};
pub use dump::dump_engines;
pub use event::EventLoop;
pub use handle::Handle;
pub use handler::Answer;
pub use peer::{Peer, ToAddress};
pub use ready::{Drain, Ready};
pub use request::Request;
pub use runtime::Spawn;
pub use schemes::Advice;
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
/// Default of [`Builder::large_max`]: 1 GiB.
pub const LARGE_MAX: u64 = 1 << 30;
/// Default of [`Builder::large_in_service_max`]: 1 GiB.
pub const LARGE_IN_SERVICE_MAX: u64 = 1 << 30;
