//! A put or a get that is under way, whichever way its bytes go.

use hg_na::{
    Completion, Error, LocalSlice, OpId, Reached, RegionState, RemoteSlice, Returned, Rights, Token,
};

use crate::{
    completion::{done, failed},
    descriptor::RegionClaim,
    region::{cma::Direction, state::SmRegion},
};

/// Transfers with one peer that wait.
pub(crate) const TRANSFERS_MAX: usize = 1024;

/// A put or a get under way.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) id: OpId,
    pub(crate) token: Token,
    pub(crate) direction: Direction,
    pub(crate) claim: RegionClaim,
    pub(crate) local: LocalSlice,
    pub(crate) remote: RemoteSlice,
    pub(crate) moved: u64,
    /// Some bytes may have been moved.
    pub(crate) is_begun: bool,
}

impl Transfer {
    pub(crate) fn failed(self, error: Error) -> Completion {
        let reached = if self.is_begun { Reached::Unknown } else { Reached::Never };
        failed(self.id, self.token, error, reached, Returned::Slice(self.local))
    }

    /// Bytes that are still to be moved.
    pub(crate) fn left(&self) -> u64 {
        self.remote.len() - self.moved
    }

    pub(crate) fn succeeded(self) -> Completion {
        done(self.id, self.token, Returned::Slice(self.local))
    }
}

/// The right that a transfer needs at the peer.
#[inline(always)]
pub(crate) fn needed_for(direction: Direction) -> Rights {
    match direction {
        Direction::Get => Rights::READ,
        Direction::Put => Rights::WRITE,
    }
}

#[inline(always)]
pub(crate) fn region_of(state: &dyn RegionState) -> Result<&SmRegion, Error> {
    let any: &dyn std::any::Any = state;
    match any.downcast_ref() {
        Some(region) => Ok(region),
        None => Err(Error::Unsupported("local memory of another plugin")),
    }
}
