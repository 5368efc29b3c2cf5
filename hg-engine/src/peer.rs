//! A peer as users see it: cheap to copy, good for one incarnation, bound to the engine or the context that looked it up.

use std::fmt;

use hg_na::Address;

/// A looked-up target, or the origin of a request.
///
/// Plain data, good for one incarnation and for the engine that looked it up, or the one context of it that has done so or was
/// called: any other one refuses it with [`hg_na::Error::UnknownPeer`]. After [`hg_core::error::CallError::PeerGone`] look the address up again.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The transport's handle, or the place of an entry of [`crate::contexts::Contexts`].
    pub(crate) na: hg_na::Peer,
    /// The port, or the whole engine, that looked it up: nothing else in this process has the same number.
    pub(crate) port: u64,
}

impl fmt::Debug for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Peer({}.{} of context {})", self.na.index(), self.na.generation(), self.port)
    }
}

/// What can be looked up: an address, or the text of one.
pub trait ToAddress {
    /// The address.
    ///
    /// # Errors
    /// [`hg_na::Error::BadAddress`].
    fn to_address(&self) -> Result<Address, hg_na::Error>;
}

impl ToAddress for Address {
    fn to_address(&self) -> Result<Address, hg_na::Error> {
        Ok(self.clone())
    }
}

impl ToAddress for str {
    fn to_address(&self) -> Result<Address, hg_na::Error> {
        self.parse()
    }
}

impl ToAddress for String {
    fn to_address(&self) -> Result<Address, hg_na::Error> {
        self.parse()
    }
}

impl<T: ToAddress + ?Sized> ToAddress for &T {
    fn to_address(&self) -> Result<Address, hg_na::Error> {
        (**self).to_address()
    }
}
