//! Bulk transfers as state machines: no I/O, no clock, no thread.
//!
//! | module | what it is |
//! |---|---|
//! | [`Descriptor`] | names memory of some process; travels in any RPC |
//! | [`Local`] | memory of this process as registered regions |
//! | [`Range`], [`RemoteRange`] | checked ranges of either |
//! | [`Plan`] | a transfer: two lists of regions, cut differently, become puts or gets |
//! | [`zeroed`] | memory of a size that somebody else has chosen |
//! | [`TransferError`] | how a transfer can fail |
//!
//! `hg-engine` drives these with a transport, a clock and threads.

#![forbid(unsafe_code)]

mod descriptor;
mod error;
mod local;
mod plan;
mod range;
mod recent;
mod view;
mod wire;
mod zeroed;

pub use descriptor::{Descriptor, SCHEME_MAX};
pub use error::TransferError;
pub use local::{Local, copy_of};
pub use plan::{Limits, PIECE_MAX, PIECES_IN_FLIGHT, Piece, Place, Plan};
pub use range::{AsRange, Range, RangeRef, Regions, RemoteRange};
pub use wire::reading;
pub use zeroed::zeroed;
