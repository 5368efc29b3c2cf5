//! Transfers: how they begin, and what comes of them.

use std::{ops::ControlFlow, sync::Arc};

use hg_bulk::{Limits, RangeRef, RemoteRange, TransferError};
use hg_core::{
    error::Failure,
    operations::{Moved, Near, Outcome},
};
use hg_na::{Begun, Direction, Rights, SharedBytes};

use crate::{
    Peer,
    inside::{Inside, innermost_of, is_in_handler},
    lock::MutexGuard,
    pending::{Made, Moves, Pending, PortRef, Step, Then},
    port::{Port, State},
};

/// A transfer under way. The memory stays registered until the transport is through with it, also where it was dropped.
pub type Transfer<'e> = Pending<'e, Moving>;

/// Nothing comes of it but its end.
#[derive(Debug)]
pub struct Moving;

impl<'e> Transfer<'e> {
    #[inline]
    pub(crate) fn start(
        port: &'e Arc<Port>,
        peer: Peer,
        direction: Direction,
        local: RangeRef<'_>,
        far: RemoteRange,
    ) -> Self {
        let made = port.start_transfer(peer, direction, local, (far, true));
        Self::new(PortRef::Borrowed(port), made, Moving)
    }
}

impl Then for Moving {
    type Output = Result<(), TransferError>;

    const NAME: &'static str = "Transfer";

    #[inline]
    fn end(&mut self, _: &Arc<Port>, outcome: Outcome, _: bool) -> Step<Self::Output> {
        ControlFlow::Break(moved(outcome).map(drop))
    }
}

impl Moves for Moving {}

/// What came of a transfer: the bytes of a view.
#[inline]
pub(crate) fn moved(outcome: Outcome) -> Result<Option<SharedBytes>, TransferError> {
    match outcome {
        Outcome::Moved(moved) => moved.result,
        Outcome::Sent => Ok(None),
        Outcome::Failed(Failure::NotMade(error)) => Err(TransferError::NotMade(error)),
        Outcome::Failed(Failure::WouldDeadlock) => Err(TransferError::WouldDeadlock),
        _ => Err(TransferError::Closed),
    }
}

impl From<Result<Self, TransferError>> for Made {
    fn from(made: Result<Self, TransferError>) -> Self {
        made.unwrap_or_else(|error| Self::over(Outcome::Moved(Moved::from(Err(error)))))
    }
}

/// A view whose bytes were here already.
fn seen(bytes: SharedBytes) -> Made {
    Made::over(Outcome::Moved(Moved::from(Ok(Some(bytes)))))
}

impl Port {
    /// Whether nobody but this thread makes progress: then nobody moves bytes while it goes on. A plain handler is told
    /// that it cannot wait, whatever it asked for.
    #[inline]
    fn is_driven_here(&self, state: &State) -> bool {
        match innermost_of(self.id) {
            Inside::Async => true,
            Inside::Plain => false,
            Inside::Nothing => state.work.is_some() && !self.has_background(),
        }
    }

    /// Starts a pull or a push. Begins it under the state's lock, and moves its bytes without it, here and now; unless this thread
    /// could be held up by that, and may not (`moving.rs`).
    #[inline]
    pub(crate) fn start_transfer(
        &self,
        peer: Peer,
        direction: Direction,
        local: RangeRef<'_>,
        (far, may_wait): (RemoteRange, bool),
    ) -> Result<Made, TransferError> {
        self.check_peer(peer)?;
        if local.len() != far.len() {
            return Err(TransferError::Unequal { local: local.len(), remote: far.len() });
        }
        self.check_local(local, direction)?;
        self.check_remote(
            &far,
            if direction == Direction::Get { Rights::READ } else { Rights::WRITE },
        )?;
        if far.is_empty() {
            return Ok(Made::Done);
        }
        if let (Direction::Get, Some(bytes)) = (direction, far.eager()) {
            return local.fill(bytes).map(|()| Made::Done).map_err(TransferError::from);
        }
        let mut state = self.enter_state().ok_or(hg_na::Error::Forked)?;
        let is_driven_here = self.is_driven_here(&state);
        let at_once = if is_driven_here { u64::MAX } else { AT_ONCE };
        let how = (at_once, may_wait && !is_in_handler());
        let begun = state.protocol.begin_transfer(peer.na, direction, local, &far, how);
        if !matches!(begun, Begun::No | Begun::Later) {
            let is_due = is_driven_here && state.protocol.operations.is_round_due();
            drop(state);
            if begun.finish() {
                far.give_back();
                return Ok(if is_due { Made::Due } else { Made::Done });
            }
            state = self.enter_state().ok_or(hg_na::Error::Forked)?; // Posting tells.
        }
        let near = Near::of(direction, local.to_range());
        self.start(state, peer, (near, far, Limits::of(self.shared.caps.max_transfer)))
    }

    /// Gets bytes here and now into memory that is not registered; `None`: it was not done, and the long way tells why.
    #[inline]
    pub(crate) fn fetch_at_once(
        &self,
        owner: Peer,
        far: &RemoteRange,
        into: &mut [u8],
        may_wait: bool,
    ) -> Option<Made> {
        let is_well =
            self.check_peer(owner).is_ok() && self.check_remote(far, Rights::READ).is_ok();
        if !is_well || far.is_empty() || far.len() > AT_ONCE {
            return None;
        }
        let mut state = self.enter_state()?;
        let may_wait = may_wait && !is_in_handler();
        let begun = state.protocol.begin_fetch(owner.na, far, into, may_wait);
        let is_due = self.is_driven_here(&state) && state.protocol.operations.is_round_due();
        drop(state);
        begun.finish().then_some(if is_due { Made::Due } else { Made::Done })
    }

    /// Starts a view; [`hg_na::Error::Unsupported`] where the bytes have to be pulled instead.
    pub(crate) fn start_view(&self, peer: Peer, far: RemoteRange) -> Result<Made, TransferError> {
        self.check_peer(peer)?;
        self.check_remote(&far, Rights::READ)?;
        if far.is_empty() {
            return Ok(seen(SharedBytes::from(Vec::new())));
        }
        if let Some(bytes) = far.eager_view() {
            return Ok(seen(bytes));
        }
        if !self.shared.caps.views || far.only_region().is_none() {
            return Err(TransferError::NotMade(hg_na::Error::Unsupported("views of this memory")));
        }
        let near = Near::View(far.len());
        let state = self.enter_state();
        self.start(state.ok_or(hg_na::Error::Forked)?, peer, (near, far, Limits::whole()))
    }

    fn start(
        &self,
        mut state: MutexGuard<'_, State>,
        peer: Peer,
        (near, far, limits): (Near, RemoteRange, Limits),
    ) -> Result<Made, TransferError> {
        let id = state.protocol.start_transfer(peer.na, near, far, limits)?;
        drop(state);
        self.notify();
        Ok(Made::Open(id))
    }

    fn check_peer(&self, peer: Peer) -> Result<(), TransferError> {
        if peer.port == self.id {
            return Ok(());
        }
        Err(TransferError::NotMade(hg_na::Error::UnknownPeer))
    }

    fn check_local(&self, local: RangeRef<'_>, direction: Direction) -> Result<(), TransferError> {
        if local.memory().owner() != self.shared.id {
            let what = "local memory that another engine exposed";
            return Err(TransferError::NotMade(hg_na::Error::Unsupported(what)));
        }
        if direction == Direction::Get && !local.memory().writable() {
            return Err(TransferError::Denied { granted: Rights::READ, needed: Rights::WRITE });
        }
        Ok(())
    }

    fn check_remote(&self, far: &RemoteRange, needed: Rights) -> Result<(), TransferError> {
        let descriptor = far.descriptor();
        if !descriptor.rights().contains(needed) {
            return Err(TransferError::Denied { granted: descriptor.rights(), needed });
        }
        if descriptor.regions().is_empty() {
            return Ok(());
        }
        // An engine that routes describes memory for each of its ways, and reaches what any of them reaches.
        let fits = descriptor.is_reached_by(&self.scheme)
            || descriptor.is_reached_by(hg_na::UID)
            || self.address.part(descriptor.scheme()).is_some();
        if !fits {
            let why = "its memory is reached by another transport than this engine's";
            return Err(TransferError::NotMade(hg_na::Error::BadDescriptor(why)));
        }
        if !self.shared.caps.one_sided {
            let what = "one-sided transfers over this transport";
            return Err(TransferError::NotMade(hg_na::Error::Unsupported(what)));
        }
        Ok(())
    }
}

/// Bytes that are moved within the call that starts a transfer, although another thread could move them while the
/// caller goes on: less than it costs to tell it.
const AT_ONCE: u64 = 64 << 10;
