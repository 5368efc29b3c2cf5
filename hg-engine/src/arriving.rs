//! Large results: offered by the target, pulled by the origin.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
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

/// A large result on its way here. The target is told when it was taken, or is not wanted.
pub(crate) struct Arriving {
    port: Arc<Port>,
    answer: Box<BulkAnswer>,
    claim: Claim,
    has_checksum: bool,
    fetch: Option<Fetch<'static>>,
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
        let message = answer.message.as_slice();
        let has_checksum = Header::decode(message).is_ok_and(|(header, _)| header.checksum);
        let read = Claim::read(&message[answer.payload..]);
        let claim = match read {
            Ok(claim) => claim,
            Err(error) => {
                port.result_taken(&answer);
                return Err(Failure::Decode(format!("where the result is: {error}")));
            }
        };
        let mut arriving = Self { port, answer, claim, has_checksum, fetch: None };
        let port = &arriving.port;
        let (settings, len) = (&port.shared.settings, arriving.claim.descriptor.len());
        check_len(settings, "the result, for this engine", len, Bound::Each)
            .map_err(Failure::Rejected)?;
        let peer = Peer { na: arriving.answer.peer, port: port.id };
        let owned = PortRef::Owned(Arc::clone(port));
        let may_wait = waits && arriving.answer.deadline.is_none();
        let mut fetch = Fetch::new(owned, peer, (&arriving.claim.descriptor).into(), may_wait);
        if let Some(at) = arriving.answer.deadline {
            fetch = fetch.within(at.saturating_duration_since(port.now()));
        }
        arriving.fetch = Some(fetch);
        Ok(arriving)
    }

    pub(crate) fn wait(&mut self) -> Arrived {
        let fetch = self.fetch.take().ok_or(Failure::Closed)?;
        let pulled = fetch.wait();
        self.finish(pulled)
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Arrived> {
        let Some(fetch) = &mut self.fetch else { return Poll::Ready(Err(Failure::Closed)) };
        let pulled = ready!(Pin::new(fetch).poll(context));
        self.fetch = None;
        Poll::Ready(self.finish(pulled))
    }

    /// Ends with [`Failure::Cancelled`] unless it has ended already.
    pub(crate) fn cancel(&self) {
        if let Some(fetch) = &self.fetch {
            fetch.cancel();
        }
    }

    fn finish(&self, pulled: Result<Vec<u8>, TransferError>) -> Arrived {
        let bytes = pulled.map_err(failure)?;
        self.claim
            .check(&bytes, self.has_checksum)
            .map_err(|why| Failure::Decode(format!("the result: {why}")))?;
        Ok((bytes, self.answer.handler_error))
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        // The transfer first: the target frees the memory as soon as it is told.
        self.fetch = None;
        self.port.result_taken(&self.answer);
    }
}

impl Port {
    /// Tells the target that its result may go.
    #[cold]
    pub(crate) fn result_taken(&self, answer: &BulkAnswer) {
        if let Some(mut state) = self.enter_state() {
            state.protocol.tell(answer.peer, Kind::ResultTaken, answer.id);
            drop(state);
            self.notify();
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
