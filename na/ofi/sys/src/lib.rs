//! Declarations of libfabric (`ofi`, `fi_*`), which is loaded at run time.
//!
//! Nothing is needed to build this: neither headers nor a library, no CMake, no libclang. One binary serves
//! every libfabric from 1.17 on, and starts where there is none; [`library`] then says what is missing.
//!
//! The rules that make it so:
//! - The library's own structures are never allocated here (`fi_dupinfo(NULL)` does that), so they may grow.
//! - [`API`] 1.17 is asked for, and only fields of that version are touched.
//! - Six functions are looked up ([`Library`]); everything else in libfabric is a call through a table of
//!   functions in an object ([`calls`]).
//! - Sizes and offsets are asserted ([`layout`]); `tests/headers.rs` compares them with the C headers.
//!
//! C's names, in camel case, without `fi_`: `fi_info` is [`Info`], `fi_ops_msg` is [`OpsMsg`]. Tables are cut
//! off behind the last function that is used; functions that are not are [`Unused`].
//!
//! # Features
//! None.

#![expect(unsafe_code, reason = "declares and calls functions of a C library")]

pub mod calls;
mod constants;
mod info;
pub mod layout;
mod library;
mod objects;
mod signals;

pub use constants::*;
pub use info::*;
pub use library::{Library, Missing, PATH_VARIABLE, library};
pub use objects::*;

/// `FI_VERSION(1, 17)`: the interface that is asked for.
pub const API: u32 = 1 << 16 | 17;
