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
    /// Bytes that were moved, and those that were at least asked for: even one without any bytes asks once, since the owner
    /// checks it.
    pub(crate) moved: u64,
    pub(crate) asked: Option<u64>,
}

impl Transfer {
    /// Whether there is a piece to be asked for.
    pub(crate) fn wants(&self) -> bool {
        self.asked.is_none_or(|asked| asked < self.remote.len())
    }

    /// Its end.
    pub(crate) fn ended(self, result: Result<(), Error>) -> Completion {
        // The owner takes the bytes of a put by itself, this side those of a get.
        let may_have_moved = match self.direction {
            Direction::Get => self.moved > 0,
            Direction::Put => self.asked.is_some(),
        };
        let reached = if may_have_moved { Reached::Unknown } else { Reached::Never };
        let (id, token, returned) = (self.id, self.token, Returned::Slice(self.local));
        match result {
            Ok(()) => done(id, token, returned),
            Err(error) => failed(id, token, error, reached, returned),
        }
    }
}
