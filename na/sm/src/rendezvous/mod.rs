//! How two contexts meet: names, sockets, the messages that carry the segments, and who is let in.
//!
//! Abstract unix sockets only: nothing of it has a name in the file system, and a killed process leaves
//! nothing behind.

pub(crate) mod address_space;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub(crate) mod name;
pub(crate) mod packet;
pub(crate) mod policy;
pub(crate) mod process;
pub(crate) mod socket;
