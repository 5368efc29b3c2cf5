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
//! | [`moves`] | those of a peer over memory that it has lent |
//! | [`frame`], [`lanes`] | the header of a frame; credits, and the messages that frames make |
//! | [`exchange`] | which frame leaves next, and what one that has come means |
//! | [`record`] | what is said beside the frames, on a lifeline |
//! | [`strangers`] | what connections may cost that have not said who they are |
//! | [`table`] | values in places that are used again under new generations |

#![forbid(unsafe_code)]

pub mod exchange;
pub mod frame;
pub mod grant;
pub mod initiator;
pub mod lanes;
pub mod link;
pub mod links;
pub mod moves;
pub mod owner;
pub mod queues;
pub mod record;
pub mod sending;
pub mod strangers;
pub mod table;
pub mod transfer;
pub mod verdict;

pub use exchange::{Carrier, Framed};
pub use frame::{Header, Kind};
pub use grant::Grant;
pub use initiator::{Cancelled, Initiator, Lent, Piece, abandon};
pub use link::{Limits, Link};
pub use links::Links;
pub use moves::Moves;
pub use owner::Owner;
pub use record::{Greeting, Record};
pub use sending::{Lane, Sending};
pub use strangers::Strangers;
pub use table::{Key, Table};
pub use transfer::{ACCESS_LEN, Access, Loan, Transfer};
pub use verdict::{VERDICT_LEN, Verdict};
