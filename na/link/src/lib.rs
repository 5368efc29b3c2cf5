//! What a network transport needs above sending and receiving frames: state machines without I/O, a clock or threads.
//!
//! The transport tells what has come, what has left and who is gone, and asks what is to leave; completions are
//! given to the list that it passes, in the order that [`hg_na`] promises. `ARCHITECTURE.md` says who owns what.
//!
//! | module | what |
//! |---|---|
//! | [`links`], [`link`] | all peers of a context; one of them: post, cancel, admission, death |
//! | [`queues`], [`sending`] | messages that wait, and how operations end |
//! | [`initiator`], [`owner`] | puts and gets: those of this side, and those that it serves |
//! | [`transfer`], [`verdict`] | what of them travels |
//! | [`strangers`] | what connections may cost that have not said who they are |
//! | [`table`] | values in places that are used again under new generations |

#![forbid(unsafe_code)]

pub mod initiator;
pub mod link;
pub mod links;
pub mod owner;
pub mod queues;
pub mod sending;
pub mod strangers;
pub mod table;
pub mod transfer;
pub mod verdict;

pub use initiator::{Initiator, Lent, Piece};
pub use link::{Limits, Link};
pub use links::{Cancelled, Links};
pub use owner::Owner;
pub use sending::{Lane, Sending};
pub use strangers::Strangers;
pub use table::Table;
pub use transfer::{ACCESS_LEN, Access, Transfer};
pub use verdict::{VERDICT_LEN, Verdict};
