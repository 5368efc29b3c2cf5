//! Why a call was not made.

use hg_core::{
    codec::CodecError,
    error::{Failure, Started},
};

#[cold]
pub(crate) fn forked() -> Failure {
    Failure::NotMade(hg_na::Error::Forked)
}

#[cold]
pub(crate) fn reserve_failure(error: hg_na::Error) -> Failure {
    match error {
        hg_na::Error::PeerGone(reason) => Failure::PeerGone { reason, started: Started::No },
        hg_na::Error::UnknownPeer => {
            Failure::PeerGone { reason: hg_na::GoneReason::Ended, started: Started::No }
        }
        other => other.into(),
    }
}

#[cold]
pub(crate) fn unencodable(name: &str, error: &CodecError) -> Failure {
    Failure::Decode(format!("`{name}`: {error}"))
}
