//! One-sided transfers: the published table of regions, the pins that keep a region alive while a peer is
//! in the middle of a transfer, and the transfers themselves.

pub(crate) mod boards;
#[expect(unsafe_code, reason = "gives the kernel addresses of this and of another process")]
pub(crate) mod cma;
mod extents;
pub(crate) mod pins;
pub(crate) mod plan;
pub(crate) mod state;
#[expect(unsafe_code, reason = "says that the table's entries may be shared with other processes")]
pub(crate) mod table;
pub(crate) mod tables;
