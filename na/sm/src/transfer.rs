//! A put or a get that was posted, and is copied by both sides ([`crate::ferry`]).

use hg_na::{Completion, Error, LocalSlice, OpId, Reached, RemoteSlice, Returned, Token};

use crate::{
    completion::{done, failed},
    descriptor::RegionClaim,
    region::cma::Direction,
};

/// Transfers with one peer that wait.
pub(crate) const TRANSFERS_MAX: usize = 1024;

/// One of them.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) id: OpId,
    pub(crate) token: Token,
    pub(crate) direction: Direction,
    pub(crate) claim: RegionClaim,
    pub(crate) local: LocalSlice,
    pub(crate) remote: RemoteSlice,
    /// Bytes that were moved, and those that were at least asked for.
    pub(crate) moved: u64,
    pub(crate) asked: u64,
    /// Even one without any bytes asks once: the owner checks it.
    pub(crate) has_asked: bool,
    /// Some bytes may have been moved.
    pub(crate) is_begun: bool,
}

impl Transfer {
    /// Whether there is a piece to be asked for.
    pub(crate) fn wants(&self) -> bool {
        !self.has_asked || self.asked < self.remote.len()
    }

    /// Its end.
    pub(crate) fn ended(self, result: Result<(), Error>) -> Completion {
        let reached = if self.is_begun { Reached::Unknown } else { Reached::Never };
        let (id, token, returned) = (self.id, self.token, Returned::Slice(self.local));
        match result {
            Ok(()) => done(id, token, returned),
            Err(error) => failed(id, token, error, reached, returned),
        }
    }
}
