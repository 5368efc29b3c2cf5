//! What this transport does beyond the contract, and what it withstands.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod addresses;
mod child;
mod descriptors;
mod end;
mod hang_up;
#[cfg(feature = "tcp-key")]
mod keys;
#[path = "../common/log.rs"]
mod log;
mod parts;
mod raw;
mod restarts;
mod silence;
mod strangers;
mod transfers;
