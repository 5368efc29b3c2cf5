//! Large results: offered by the target, pulled by the origin.

use std::{
    sync::Arc,
    task::{Poll, Waker, ready},
};

use hg_bulk::TransferError;
use hg_core::{
    error::{Failure, Started},
    header::{Header, Kind},
    operations::BulkAnswer,
};

use crate::{
    Peer,
    large::{Bound, Claim, check_len, no_memory},
    pending::PortRef,
    port::Port,
    view::Fetch,
};

/// A large result on its way here.
pub(crate) struct Arriving {
    /// Ends first: the target frees the memory as soon as it is told.
    fetch: Fetch<'static>,
    claim: Claim,
    offer: Offer,
}

/// What a target keeps for this side. Dropped, it tells the target that it was taken, or is not wanted.
struct Offer {
    port: Arc<Port>,
    answer: Box<BulkAnswer>,
}

/// The bytes of a result, and whether they are the handler's own error.
pub(crate) type Arrived = Result<(Vec<u8>, bool), Failure>;

impl Arriving {
    /// `waits`: this thread waits for the result, rather than polls it.
    pub(crate) fn new(
        port: Arc<Port>,
        answer: Box<BulkAnswer>,
        waits: bool,
    ) -> Result<Self, Failure> {
        let offer = Offer { port, answer };
        let Offer { port, answer } = &offer;
        let claim = Claim::read(&answer.message.as_slice()[answer.payload..])
            .map_err(|error| Failure::Decode(format!("where the result is: {error}")))?;
        let (settings, len) = (&port.shared.settings, claim.descriptor.len());
        check_len(settings, "the result, for this engine", len, Bound::Each)
            .map_err(Failure::Rejected)?;
        let peer = Peer { na: answer.peer, port: port.id };
        let remote = ((&claim.descriptor).into(), waits && answer.deadline.is_none());
        let owned = PortRef::Owned(Arc::clone(port));
        let mut fetch = Fetch::new(owned, peer, remote, Vec::new());
        if let Some(at) = answer.deadline {
            fetch = fetch.within(at.saturating_duration_since(port.now()));
        }
        Ok(Self { fetch, claim, offer })
    }

    pub(crate) fn wait(self) -> Arrived {
        let Self { fetch, claim, offer } = self;
        finish(fetch.wait(), &claim, &offer.answer)
    }

    pub(crate) fn poll(&mut self, waker: Option<&Waker>, is_awaited: bool) -> Poll<Arrived> {
        let pulled = ready!(self.fetch.poll_by(waker, is_awaited));
        Poll::Ready(finish(pulled, &self.claim, &self.offer.answer))
    }

    /// Ends with [`Failure::Cancelled`] unless it has ended already.
    pub(crate) fn cancel(&self) {
        self.fetch.cancel();
    }
}

fn finish(pulled: Result<Vec<u8>, TransferError>, claim: &Claim, answer: &BulkAnswer) -> Arrived {
    let bytes = pulled.map_err(failure)?;
    let header = Header::decode(answer.message.as_slice());
    let has_checksum = header.is_ok_and(|(header, _)| header.checksum);
    let checked = claim.check(&bytes, has_checksum);
    checked.map_err(|why| Failure::Decode(format!("the result: {why}")))?;
    Ok((bytes, answer.handler_error))
}

impl Drop for Offer {
    #[cold]
    fn drop(&mut self) {
        if let Some(mut state) = self.port.enter_state() {
            state.protocol.tell(self.answer.peer, Kind::ResultTaken, self.answer.id);
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
