//! A peer as users see it: cheap to copy, good for one incarnation, bound to the context that looked it up.

use std::fmt;

/// A looked-up target, or the origin of a request.
///
/// Plain data, good for one incarnation: after [`hg_core::error::CallError::PeerGone`] look the address up again.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer {
    pub(crate) na: hg_na::Peer,
    pub(crate) port: u8,
}

impl fmt::Debug for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Peer({}.{} of context {})", self.na.index(), self.na.generation(), self.port)
    }
}
