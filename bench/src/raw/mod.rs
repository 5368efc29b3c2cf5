//! The room with `unsafe`: everything below turns what the kernel gives into safe Rust.
//!
//! - [`lines`]: cache lines of atomics in memory shared by two processes.
//! - [`futex`]: sleeping on one of those atomics.
//! - [`descriptors`]: file descriptors that arrive on a unix socket.

pub(crate) mod descriptors;
pub(crate) mod futex;
pub(crate) mod lines;
