//! The short ways: bytes of a peer as a vector, or seen where they are.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::{Duration, Instant},
};

use hg_bulk::{Local, RangeRef, RemoteRange, TransferError};
use hg_na::{Direction, Error, Memory, Rights, SharedBytes};

use crate::{
    Peer,
    pending::{Made, Pending, PortRef},
    port::Port,
    transfer::moved,
};

/// Bytes of a peer on their way into a vector. Like [`crate::Transfer`].
#[must_use = "dropping a fetch cancels it: `wait` or await it"]
pub struct Fetch<'e> {
    pending: Pending<'e>,
    into: Into,
}

enum Into {
    Nothing,
    Bytes(Vec<u8>),
    Memory(Arc<Local>),
}

impl<'e> Fetch<'e> {
    /// Into memory that is used again. `may_wait`: whether this thread may be held up by the peer's memory.
    pub(crate) fn new(
        port: PortRef<'e>,
        owner: Peer,
        (remote, may_wait): (RemoteRange, bool),
        into: Vec<u8>,
    ) -> Self {
        let (made, into) = Self::start(&port, owner, (remote, may_wait), into)
            .unwrap_or_else(|error| (Made::from(Err(error)), Into::Nothing));
        Self { pending: Pending::new(port, made), into }
    }

    fn start(
        port: &Arc<Port>,
        owner: Peer,
        (remote, may_wait): (RemoteRange, bool),
        mut into: Vec<u8>,
    ) -> Result<(Made, Into), TransferError> {
        if let Some(bytes) = remote.eager() {
            into.clear();
            into.extend_from_slice(bytes);
            return Ok((Made::Done, Into::Bytes(into)));
        }
        resize(&mut into, remote.len())?;
        if let Some(made) = port.fetch_at_once(owner, &remote, &mut into, may_wait) {
            return Ok((made, Into::Bytes(into)));
        }
        let local = Arc::new(port.register(Memory::from(into), Rights::empty())?);
        let (local_range, far) = (RangeRef::from(&local), (remote, may_wait));
        let made = port.start_transfer(owner, Direction::Get, local_range, far)?;
        Ok((made, Into::Memory(local)))
    }

    /// Waits for the bytes, making progress in this thread. Not for plain and `async` handlers, as [`crate::Transfer::wait`].
    ///
    /// # Errors
    /// [`TransferError`]; [`TransferError::WouldDeadlock`] at once inside a plain or `async` handler of the same engine, unless they are here already.
    pub fn wait(mut self) -> Result<Vec<u8>, TransferError> {
        if !self.pending.take_moved(true) {
            moved(self.pending.wait())?;
        }
        self.finish()
    }

    /// Ends the transfer after this time, counted from now, one way or the other.
    pub fn within(self, deadline: Duration) -> Self {
        self.pending.end_within(deadline);
        self
    }

    /// Cancels the transfer; it ends with [`TransferError::Cancelled`] unless it has ended already.
    pub fn cancel(&self) {
        self.pending.cancel();
    }

    /// As [`Pending::poll`].
    pub(crate) fn poll_by(
        &mut self,
        waker: Option<&Waker>,
        is_awaited: bool,
    ) -> Poll<Result<Vec<u8>, TransferError>> {
        if !self.pending.take_moved(false) {
            moved(ready!(self.pending.poll(waker, is_awaited)))?;
        }
        Poll::Ready(self.finish())
    }

    fn finish(&mut self) -> Result<Vec<u8>, TransferError> {
        match std::mem::replace(&mut self.into, Into::Nothing) {
            Into::Bytes(bytes) => Ok(bytes),
            Into::Memory(local) => {
                let busy = TransferError::NotMade(Error::RegionBusy);
                let local = Arc::into_inner(local).ok_or(busy)?;
                let memory = local.unregister()?;
                memory.into_vec().or_else(|memory| Ok(hg_bulk::copy_of(&memory)?))
            }
            Into::Nothing => Err(TransferError::Closed),
        }
    }
}

impl Future for Fetch<'_> {
    type Output = Result<Vec<u8>, TransferError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_by(Some(context.waker()), true)
    }
}

impl fmt::Debug for Fetch<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Fetch({:?})", self.pending)
    }
}

/// A view of a peer's bytes that is asked for. Like [`crate::Transfer`].
#[must_use = "dropping it cancels it: `wait` or await it"]
pub struct View<'e> {
    port: &'e Arc<Port>,
    stage: Stage<'e>,
    owner: Peer,
    remote: RemoteRange,
    deadline: Option<Instant>,
}

enum Stage<'e> {
    /// The transport was asked to show the bytes where they are.
    Asking(Pending<'e>),
    /// It cannot: a copy stands in.
    Copying(Fetch<'e>),
}

impl<'e> View<'e> {
    pub(crate) fn new(port: &'e Arc<Port>, owner: Peer, remote: RemoteRange) -> Self {
        let made = port.start_view(owner, remote.clone());
        let stage = Stage::Asking(Pending::new(PortRef::Borrowed(port), made));
        Self { port, stage, owner, remote, deadline: None }
    }

    /// Waits for the view, making progress in this thread.
    ///
    /// # Errors
    /// [`TransferError`]; [`TransferError::WouldDeadlock`] at once inside a plain or `async` handler of the same engine.
    pub fn wait(mut self) -> Result<SharedBytes, TransferError> {
        if let Stage::Asking(pending) = &mut self.stage {
            let outcome = moved(pending.wait());
            if let Some(seen) = self.seen_or_copy(outcome) {
                return seen;
            }
        }
        match self.stage {
            Stage::Copying(fetch) => fetch.wait().map(SharedBytes::from),
            Stage::Asking(_) => Err(TransferError::Closed),
        }
    }

    fn pending(&self) -> &Pending<'e> {
        match &self.stage {
            Stage::Asking(pending) => pending,
            Stage::Copying(fetch) => &fetch.pending,
        }
    }

    /// Ends the transfer after this time, counted from now, one way or the other.
    pub fn within(mut self, deadline: Duration) -> Self {
        self.deadline = self.port.now().checked_add(deadline);
        self.pending().end_within(deadline);
        self
    }

    /// Cancels it; it ends with [`TransferError::Cancelled`] unless it has ended already.
    pub fn cancel(&self) {
        self.pending().cancel();
    }

    /// The end of the first stage; `None` when the second one has begun.
    fn seen_or_copy(
        &mut self,
        outcome: Result<Option<SharedBytes>, TransferError>,
    ) -> Option<Result<SharedBytes, TransferError>> {
        match outcome {
            Ok(Some(seen)) => Some(Ok(seen)),
            Ok(None) | Err(TransferError::NotMade(Error::Unsupported(_))) => {
                let port = PortRef::Borrowed(self.port);
                let remote = (self.remote.clone(), true);
                let fetch = Fetch::new(port, self.owner, remote, Vec::new());
                if let Some(at) = self.deadline {
                    fetch.pending.end_within(at.saturating_duration_since(self.port.now()));
                }
                self.stage = Stage::Copying(fetch);
                None
            }
            Err(error) => Some(Err(error)),
        }
    }
}

impl Future for View<'_> {
    type Output = Result<SharedBytes, TransferError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Stage::Asking(pending) = &mut self.stage {
            let outcome = moved(ready!(pending.poll(Some(context.waker()), true)));
            if let Some(seen) = self.seen_or_copy(outcome) {
                return Poll::Ready(seen);
            }
        }
        match &mut self.stage {
            Stage::Copying(fetch) => {
                Pin::new(fetch).poll(context).map(|bytes| bytes.map(SharedBytes::from))
            }
            Stage::Asking(_) => Poll::Ready(Err(TransferError::Closed)),
        }
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "View({:?})", self.pending())
    }
}

/// Makes it as long as a peer claims. None of what is new is touched before bytes arrive; a claim beyond what there is is
/// refused.
fn resize(bytes: &mut Vec<u8>, len: u64) -> Result<(), TransferError> {
    match usize::try_from(len) {
        Ok(len) if len <= bytes.capacity() => bytes.resize(len, 0),
        _ => *bytes = hg_bulk::zeroed(len)?,
    }
    Ok(())
}
