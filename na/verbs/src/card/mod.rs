//! The card, by libibverbs: one room for all calls into C.
//!
//! | part | what |
//! |---|---|
//! | [`device`] | an opened card with a protection domain, its port and its address; what there is to open |
//! | [`registration`] | memory that the card reaches |
//! | [`chunk`], [`frames`] | memory for messages |
//! | [`pair`] | a queue pair, and what its send queue holds |
//! | [`desk`] | where a context finds what has come for it |
//! | [`endpoint`] | completion queue, shared receive queue, and all pairs of those that share them |
//! | [`asks`] | asking for the completion of silent posts |
//! | [`lines`] | connections over pairs: how they are met, and end |
//! | [`hub`] | an endpoint that threads share |
//! | [`events`] | what a card says that concerns no operation |
//! | [`fault`] | what a call or a completion says |
//!
//! libibverbs takes calls from any thread; an endpoint is used by one at a time all the same.

mod asks;
mod chunk;
mod desk;
mod device;
mod endpoint;
mod events;
mod fault;
mod frames;
mod hub;
mod lines;
mod pair;
mod registration;

pub(crate) use desk::{Bytes, Desk, Event, Target};
pub(crate) use device::{Device, Found, Wanted, found};
pub(crate) use events::Told;
pub(crate) use fault::Fault;
pub(crate) use frames::{FRAME, Frame};
pub(crate) use hub::{Hub, Way};
pub(crate) use lines::Greeted;
pub(crate) use pair::Side;
pub(crate) use registration::Registration;
