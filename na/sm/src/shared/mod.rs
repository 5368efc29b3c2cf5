//! Memory that peers map: transfers at the speed of `memcpy`, and views without a copy.
//!
//! ```
//! use hg_na::{Memory, Rights, OpenOptions, Plugin};
//!
//! let mut buffer = hg_na_sm::shared::alloc(1 << 20)?;
//! buffer[..5].copy_from_slice(b"hello");
//! let domain = hg_na_sm::SmPlugin.open(&"sm://".parse()?, &OpenOptions::listening())?;
//! let region = domain.register(Memory::from(buffer), Rights::READ)?;
//! // Peers get, or view, without a system call.
//! let buffer = hg_na_sm::shared::Buffer::try_from(region.unregister()?).expect("what was registered");
//! assert_eq!(&buffer.freeze()?[..5], b"hello");
//! # Ok::<(), hg_na::Error>(())
//! ```
//!
//! Registered, or frozen, it is nobody's to look at or to write through the buffer:
//! ```compile_fail,E0505
//! let buffer = hg_na_sm::shared::alloc(8)?;
//! let slice = &buffer[..];
//! let _memory = hg_na::Memory::from(buffer);
//! assert_eq!(slice[0], 0);
//! # Ok::<(), hg_na::Error>(())
//! ```
//! ```compile_fail,E0505
//! let mut buffer = hg_na_sm::shared::alloc(8)?;
//! let slice = &mut buffer[..];
//! let _frozen = buffer.freeze()?;
//! slice[0] = 1;
//! # Ok::<(), hg_na::Error>(())
//! ```
//!
//! The owner's side is in `buffer`: [`Buffer`], what is frozen of it, and their [`hg_na::Memory`].
//! Protocol and states: `na/sm/ARCHITECTURE.md`, "Memory that peers map".

#[expect(unsafe_code, reason = "turns memory that peers map into slices, and into `Memory`")]
pub(crate) mod buffer;

pub use buffer::{Buffer, alloc};
pub use hg_na::Frozen;

#[cfg(test)]
mod tests;
