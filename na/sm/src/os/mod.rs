//! What the plugin asks of the operating system, each part behind a safe type of its own.

pub(crate) mod closing;
pub(crate) mod event;
#[expect(unsafe_code, reason = "maps memfds and turns mappings into references")]
pub(crate) mod mapping;
#[expect(unsafe_code, reason = "maps address space for a moment")]
pub(crate) mod room;
#[expect(unsafe_code, reason = "system calls that `nix` does not offer safely")]
pub(crate) mod signals;

use hg_na::{Error, GoneReason};

/// The error for something that a peer got wrong; it costs the peer its connection.
pub(crate) fn misbehaved(why: impl Into<std::sync::Arc<str>>) -> Error {
    Error::PeerGone(GoneReason::Misbehaved(why.into()))
}

/// An error of `rustix`, as the rest of this crate has it.
pub(crate) fn errno(error: rustix::io::Errno) -> nix::errno::Errno {
    nix::errno::Errno::from_raw(error.raw_os_error())
}
