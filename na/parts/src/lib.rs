//! What several transports are made of: no `unsafe`, and no I/O but waiting for it, questions to the system about its limits, and
//! reading the file of a key.
//!
//! | part | what |
//! |---|---|
//! | [`regions`] | memory that its owner serves to peers, named by claims with tokens |
//! | [`receives`] | matches expected messages with posted receives |
//! | [`credits`] | what may be sent before the other side has taken some of it |
//! | [`Flush`] | which messages a flush waits for |
//! | [`Refusals`] | which kinds of operations a peer was refused for want of room |
//! | [`limits`] | limits of the operating system, in words that say what to do |
//! | [`place`] | host and port, as addresses say them |
//! | [`WaitSet`] | what a context sleeps on |
//! | [`Subnet`] | a range of internet addresses |
//! | [`Reader`] | reads a domain's settings |
//! | [`bounds`] | the settings that all transports over a network have |
//! | [`key`] | a pre-shared key, and encryption with it |
//!
//! # Features
//! | feature | what | default |
//! |---|---|---|
//! | `key` | encryption: without it a key is refused; brings `snow` | no |

pub mod bounds;
pub mod credits;
mod flush;
pub mod key;
pub mod limits;
pub mod place;
pub mod receives;
mod refusals;
pub mod regions;
mod settings;
mod subnet;
mod wait_set;

pub use flush::Flush;
pub use refusals::Refusals;
pub use settings::{MAX_HELD_MIB, Reader};
pub use subnet::Subnet;
pub use wait_set::{FREE_NAME, WaitSet};
