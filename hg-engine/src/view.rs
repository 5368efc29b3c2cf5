//! The short ways: bytes of a peer as a vector, or seen where they are.

use std::{ops::ControlFlow, sync::Arc, time::Instant};

use hg_bulk::{Local, RangeRef, RemoteRange, TransferError};
use hg_core::operations::Outcome;
use hg_na::{Direction, Error, Memory, Rights, SharedBytes};

use crate::{
    Peer,
    pending::{Made, Moves, Pending, PortRef, Step, Then},
    port::Port,
    transfer::moved,
};

/// Bytes of a peer on their way into a vector.
pub type Fetch<'e> = Pending<'e, Fetching>;

/// Where they go.
#[derive(Debug)]
pub struct Fetching(Into);

#[derive(Debug)]
enum Into {
    Nothing,
    Bytes(Vec<u8>),
    Memory(Arc<Local>),
}

impl<'e> Fetch<'e> {
    /// Into memory that is used again. `may_wait`: whether this thread may be held up by the peer's memory.
    pub(crate) fn start(
        port: &'e Arc<Port>,
        owner: Peer,
        (remote, may_wait): (RemoteRange, bool),
        into: Vec<u8>,
    ) -> Self {
        let (made, then) = Fetching::begin(port, owner, (remote, may_wait), into);
        Self::new(PortRef::Borrowed(port), made, then)
    }
}

impl Fetching {
    /// As [`Fetch::start`].
    pub(crate) fn begin(
        port: &Port,
        owner: Peer,
        (remote, may_wait): (RemoteRange, bool),
        into: Vec<u8>,
    ) -> (Made, Self) {
        let begun = Self::try_begin(port, owner, (remote, may_wait), into);
        let (made, into) = begun.unwrap_or_else(|error| (Made::from(Err(error)), Into::Nothing));
        (made, Self(into))
    }

    fn try_begin(
        port: &Port,
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

    /// The bytes, which are there where the outcome says so.
    pub(crate) fn finish(&mut self, outcome: Outcome) -> Result<Vec<u8>, TransferError> {
        moved(outcome)?;
        match std::mem::replace(&mut self.0, Into::Nothing) {
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

impl Then for Fetching {
    type Output = Result<Vec<u8>, TransferError>;

    const NAME: &'static str = "Fetch";

    fn end(&mut self, _: &Arc<Port>, outcome: Outcome, _: bool) -> Step<Self::Output> {
        ControlFlow::Break(self.finish(outcome))
    }
}

impl Moves for Fetching {}

/// A view of a peer's bytes that is asked for.
pub type View<'e> = Pending<'e, Viewing>;

/// First the transport is asked to show the bytes where they are. Where it cannot, a copy stands in.
#[derive(Debug)]
pub struct Viewing {
    owner: Peer,
    remote: RemoteRange,
    deadline: Option<Instant>,
    copy: Option<Fetching>,
}

impl<'e> View<'e> {
    pub(crate) fn start(port: &'e Arc<Port>, owner: Peer, remote: RemoteRange) -> Self {
        let made = port.start_view(owner, remote.clone());
        let then = Viewing { owner, remote, deadline: None, copy: None };
        Self::new(PortRef::Borrowed(port), made, then)
    }
}

impl Then for Viewing {
    type Output = Result<SharedBytes, TransferError>;

    const NAME: &'static str = "View";

    fn end(&mut self, port: &Arc<Port>, outcome: Outcome, _: bool) -> Step<Self::Output> {
        if let Some(copy) = &mut self.copy {
            return ControlFlow::Break(copy.finish(outcome).map(SharedBytes::from));
        }
        match moved(outcome) {
            Ok(Some(seen)) => ControlFlow::Break(Ok(seen)),
            Ok(None) | Err(TransferError::NotMade(Error::Unsupported(_))) => {
                let remote = (self.remote.clone(), true);
                let (made, copy) = Fetching::begin(port, self.owner, remote, Vec::new());
                self.copy = Some(copy);
                ControlFlow::Continue((made, self.deadline))
            }
            Err(error) => ControlFlow::Break(Err(error)),
        }
    }
}

impl Moves for Viewing {
    fn ends_at(&mut self, at: Instant) {
        self.deadline = Some(at);
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
