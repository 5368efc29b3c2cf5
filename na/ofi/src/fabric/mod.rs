//! libfabric behind safe types: the one room with `unsafe`.
//!
//! | file | what |
//! |---|---|
//! | `fault` | what the library's numbers mean |
//! | `offer` | `fi_getinfo`: what this machine offers |
//! | `handles` | objects that close themselves |
//! | `frames` | memory that the library reads and writes while an operation is open |
//! | `intake` | memory that is posted for messages: frames, or multi-receive buffers |
//! | `injected` | which address an injected message that is lost was on its way to |
//! | `way` | the calls that carry messages, untagged or tagged |
//! | `near` | endpoints of this process know when one another is closed |
//! | `open` | opens what an endpoint is made of |
//! | `rma` | one-sided operations, and registration as each provider wants it |
//! | `sends` | which message may leave now, injected or in a frame, and which have gone |
//! | `shares` | how many moves and frames may be under way, and whose |
//! | `stuck` | a lock that a killed process has left locked |
//! | `closing` | how an endpoint is closed |
//! | `endpoint` | an endpoint with its queue, its address vector and its frames |
//!
//! Each endpoint has a domain of its own, so that one thread at a time calls into it: `Endpoint` is `Send` and
//! every method that reaches the library takes `&mut self`.

mod closing;
mod endpoint;
mod fault;
mod frames;
mod handles;
mod injected;
mod intake;
mod near;
mod offer;
mod open;
mod rma;
mod sends;
mod shares;
mod stuck;
#[cfg(test)]
mod tests;
mod way;

#[cfg(test)]
pub(crate) use closing::tests::lose_everything;
pub(crate) use endpoint::{Endpoint, Event, Handed};
pub(crate) use fault::Fault;
pub(crate) use intake::Arrival;
pub(crate) use offer::{Offer, Wanted, library, offers};
pub(crate) use open::try_device;
pub(crate) use way::{Form, Way};
