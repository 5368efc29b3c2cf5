//! The card, by libibverbs: one room for all calls into C.
//!
//! | part | what |
//! |---|---|
//! | [`device`] | an opened card with a protection domain, its port and its address; what there is to open |
//! | [`registration`] | memory that the card reaches |
//! | [`frames`] | memory for messages |
//! | [`pair`] | a queue pair, and what its send queue holds |
//! | [`endpoint`] | completion queue, shared receive queue, and all pairs of a context |
//! | [`fault`] | what a call or a completion says |
//!
//! libibverbs takes calls from any thread; each endpoint is used by one at a time all the same.

mod device;
mod endpoint;
mod fault;
mod frames;
mod pair;
mod registration;

pub(crate) use device::{Device, Found, Wanted, found};
pub(crate) use endpoint::{Endpoint, Event};
pub(crate) use fault::Fault;
pub(crate) use frames::FRAME;
pub(crate) use pair::Side;
