//! The RPC protocol as state machines: no I/O, no clock, no thread.
//!
//! | module | what it is |
//! |---|---|
//! | [`header`] | the wire header: encode, decode, check |
//! | [`codec`] | arguments and results, straight into and out of messages |
//! | [`rpc`] | what an RPC is; what `#[hg::rpc]` implements |
//! | [`signature`] | what an RPC's types look like on the wire |
//! | [`registry`] | names to handlers |
//! | [`operations`] | the origin's side: calls, transfers and waits; completions and timeouts in, effects out |
//! | [`serve`] | the target's side: admission, cancellation |
//! | [`kept`] | memory that peers take: before a call is served, before a result is read |
//! | [`backlog`] | what waits for room in the transport |
//! | [`shares`], [`budget`] | fair shares of a limit; bytes of large arguments, in turn |
//! | [`protocol`] | all of these for one context of the transport |
//! | [`error`] | how a call can fail |
//!
//! `hg-engine` drives these with a transport, a clock and threads.

#![forbid(unsafe_code)]

pub mod backlog;
pub mod budget;
pub mod cancel;
pub mod codec;
pub mod deferred;
pub mod error;
pub mod header;
pub mod kept;
pub mod operations;
pub mod protocol;
pub mod registry;
pub mod rpc;
mod rpc_id;
pub mod serve;
pub mod shares;
pub mod signature;
pub mod table;
#[cfg(test)]
mod test_context;
mod timers;
