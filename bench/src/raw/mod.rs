//! The room with `unsafe`: everything below turns what the kernel gives into safe Rust.
//!
//! - [`lines`]: cache lines of atomics in memory shared by two processes.
//! - [`futex`]: sleeping on one of those atomics.
//! - [`denied`]: a filter that denies two system calls.
//! - [`descriptors`]: file descriptors that arrive on a unix socket, and of processes.
//! - [`ending`]: what is said when a signal ends this program.
//! - [`pages`]: memory that begins at a page, registered.

pub(crate) mod denied;
pub(crate) mod descriptors;
pub(crate) mod ending;
pub(crate) mod futex;
pub(crate) mod lines;
pub(crate) mod pages;
