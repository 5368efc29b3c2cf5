//! Large results: offered by the target, pulled by the origin.

use std::{sync::Arc, time::Instant};

use hg_bulk::TransferError;
use hg_core::{
    error::{Failure, Started},
    header::{Header, Kind},
    operations::{BulkAnswer, Outcome},
};

use crate::{
    Peer,
    large::{Bound, Claim, check_len, no_memory},
    pending::Made,
    port::Port,
    view::Fetching,
};

/// A large result on its way here.
pub(crate) struct Arriving {
    fetching: Fetching,
    claim: Claim,
    answer: Box<BulkAnswer>,
    _lender: Lender,
}

/// A peer that keeps memory for this side, under the id of a call. Dropped, it is told that this was taken, or is not wanted.
pub(crate) struct Lender {
    pub(crate) port: Arc<Port>,
    pub(crate) peer: hg_na::Peer,
    pub(crate) id: u64,
    pub(crate) what: Kind,
}

/// The bytes of a result, and whether they are the handler's own error.
pub(crate) type Arrived = Result<(Vec<u8>, bool), Failure>;

impl Arriving {
    /// What is to be waited for first, and until when at the latest. `waits`: this thread waits for the result, rather than polls it.
    pub(crate) fn new(
        port: &Arc<Port>,
        answer: Box<BulkAnswer>,
        waits: bool,
    ) -> Result<(Self, (Made, Option<Instant>)), Failure> {
        let (peer, id, what) = (answer.peer, answer.id, Kind::ResultTaken);
        let lender = Lender { port: Arc::clone(port), peer, id, what };
        let claim = Claim::read(&answer.message.as_slice()[answer.payload..])
            .map_err(|error| Failure::Decode(format!("where the result is: {error}")))?;
        let (settings, len) = (&port.shared.settings, claim.descriptor.len());
        check_len(settings, "the result, for this engine", len, Bound::Each)
            .map_err(Failure::Rejected)?;
        let (peer, deadline) = (Peer { na: peer, port: port.id }, answer.deadline);
        let remote = ((&claim.descriptor).into(), waits && deadline.is_none());
        let (made, fetching) = Fetching::begin(port, peer, remote, Vec::new());
        Ok((Self { fetching, claim, answer, _lender: lender }, (made, deadline)))
    }

    /// It was pulled, or not.
    pub(crate) fn finish(mut self, outcome: Outcome) -> Arrived {
        let bytes = self.fetching.finish(outcome).map_err(failure)?;
        let header = Header::decode(self.answer.message.as_slice());
        let has_checksum = header.is_ok_and(|(header, _)| header.checksum);
        let checked = self.claim.check(&bytes, has_checksum);
        checked.map_err(|why| Failure::Decode(format!("the result: {why}")))?;
        Ok((bytes, self.answer.handler_error))
    }
}

impl Drop for Lender {
    #[cold]
    fn drop(&mut self) {
        if let Some(mut state) = self.port.enter_state() {
            state.protocol.tell(self.peer, self.what, self.id);
            drop(state);
            self.port.notify();
        }
    }
}

/// The handler has run in every case.
fn failure(error: TransferError) -> Failure {
    match error {
        TransferError::PeerGone { reason } => {
            Failure::PeerGone { reason, started: Started::Unknown }
        }
        TransferError::DeadlineExceeded => Failure::DeadlineExceeded(Started::Unknown),
        TransferError::Cancelled => Failure::Cancelled,
        TransferError::Closed => Failure::Closed,
        TransferError::WouldDeadlock => Failure::WouldDeadlock,
        TransferError::NotMade(error @ hg_na::Error::NoMemory { .. }) => {
            Failure::Rejected(no_memory(&error))
        }
        other => Failure::Rejected(format!("its result could not be pulled from here: {other}")),
    }
}
