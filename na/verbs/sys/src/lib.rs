//! Declarations of libibverbs (`ibv_*`), which is loaded at run time.
//!
//! Nothing is needed to build this: neither headers nor a library, no CMake, no libclang. One binary serves every rdma-core, and starts
//! where there is none; [`library`] then says what is missing.
//!
//! - Objects of the library's (contexts, queues, queue pairs, registrations) are made and freed by it; only the fields are declared that
//!   C's own inline functions use, and those are older than rdma-core.
//! - What C's headers write as inline functions goes through [`ContextOps`], as there ([`calls`]).
//! - Sizes and offsets are asserted ([`layout`]); `tests/headers.rs` compares them with the C headers.
//!
//! C's names, in camel case, without `ibv_`: `ibv_send_wr` is [`SendWr`].
//!
//! # Features
//! None.

#![expect(unsafe_code, reason = "declares and calls functions of a C library")]

pub mod calls;
mod constants;
pub mod layout;
mod library;
mod objects;
mod structs;

pub use constants::*;
pub use library::{Library, Missing, PATH_VARIABLE, library};
pub use objects::*;
pub use structs::*;
