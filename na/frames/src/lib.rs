//! A context of a transport whose frames stand alone, with a *lifeline* beside each connection: what `na/ofi` and `na/verbs` are made of.
//!
//! Such a transport sends and receives frames, lends and reaches memory, but is not told when a peer is gone, and does not know who a
//! stranger is. So each connection has a stream socket beside it, which carries greeting, refusal and goodbye, and which the kernel
//! closes when its process dies. The transport says how frames go out and come in ([`hg_na_link::Carrier`], [`Transport`]); what is in
//! them, and what ends when, decide the state machines of [`hg_na_link`]; this crate calls both, and the kernel.
//!
//! | module | what |
//! |---|---|
//! | [`context`] | the state of a context, its rounds, and what a plugin has of its own |
//! | `calls` | what `na` calls: post, cancel, forget, sleep |
//! | [`connection`] | where one connection stands |
//! | `chores`, `accept` | how connections begin and end: lifelines, timers, strangers |
//! | [`lifeline`], `secrecy`, `cut` | the socket; what is said on it, in the clear or sealed; how it ends |
//! | [`waiter`], `steps` | what a context sleeps on, and how long where it can only be polled |
//! | `parts`, `scarce` | memory of messages that have come in part; who is sent away where there is too much |
//! | [`common`] | what the contexts of a domain share; the settings that all such transports have |

#![forbid(unsafe_code)]

mod accept;
mod calls;
mod chores;
pub mod common;
pub mod connection;
pub mod context;
mod cut;
pub mod lifeline;
mod parts;
mod scarce;
mod secrecy;
mod steps;
pub mod waiter;

pub use common::{Bounds, Common};
pub use connection::{Connection, Phase};
pub use context::{FramedContext, Link, Transport, Unmet};
pub use lifeline::{Lifeline, Listener, Place};
pub use waiter::FramesWaiter;
