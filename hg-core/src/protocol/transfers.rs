//! The protocol's part of transfers: what needs the transport, and what is deferred.

use std::{task::Waker, time::Instant};

use hg_bulk::{Limits, Plan, RangeRef, Regions as _, RemoteRange, TransferError};
use hg_na::{Begun, Context, Descriptor, Direction, Failure, OpId, Peer, Returned, Transit};

use super::Protocol;
use crate::{
    deferred::Deferred,
    operations::{Came, MOVE_MAX, Move, Near, OperationId, start_of},
};

/// The transport's part of a descriptor of an engine that routes; a transport that does so itself finds it by itself.
#[inline]
fn part_of(remote: &Descriptor, context: &dyn Context, routes: bool) -> Option<Descriptor> {
    let is_joint = !routes && remote.may_be_joint();
    if is_joint { remote.part_for(context.address().scheme()) } else { None }
}

impl Protocol {
    /// Starts a transfer of equally long sides.
    ///
    /// # Errors
    /// [`TransferError::Closed`], or what has broken the transport.
    pub fn start_transfer(
        &mut self,
        peer: Peer,
        near: Near,
        far: RemoteRange,
        limits: Limits,
    ) -> Result<OperationId, TransferError> {
        let Some(context) = self.context.as_deref_mut() else {
            return Err(super::closed(self.broken.as_ref()).into());
        };
        // A view is seen as a whole.
        let is_cut = !matches!(near, Near::View(_)) && context.moves(peer);
        let piece = if is_cut { limits.piece.min(MOVE_MAX) } else { limits.piece };
        let plan = Plan::new(near, far, Limits { piece, ..limits });
        Ok(self.operations.begin_transfer(peer, plan, context))
    }

    /// Begins it without posting anything, where this side moves the bytes by itself: nothing is counted or copied for
    /// that. What is ready is run without whatever guards this.
    #[inline]
    pub fn begin_transfer<'near>(
        &mut self,
        peer: Peer,
        direction: Direction,
        near: RangeRef<'near>,
        far: &RemoteRange,
        (most, may_wait): (u64, bool),
    ) -> Begun<'near> {
        let Some(context) = &mut self.context else { return Begun::No };
        let (locals, remotes) = (near.regions(), far.descriptor().regions());
        let (Some(local), Some(remote)) = (locals.first(), remotes.first()) else {
            return Begun::No;
        };
        // What lies in one region on either side, as most does, begins where the range does.
        let is_one_region = locals.len() == 1 && remotes.len() == 1;
        let fits = is_one_region || start_of(&near).is_some() && start_of(far).is_some();
        if far.len() > most || !fits {
            return Begun::No;
        }
        let part = part_of(remote, context.as_ref(), self.routes);
        let transit = Transit {
            direction,
            peer,
            local: local.state(),
            local_offset: near.span().0,
            remote: part.as_ref().unwrap_or(remote),
            remote_offset: far.offset(),
            len: far.len(),
            may_wait,
        };
        let begun = context.begin(&transit);
        if matches!(begun, Begun::Over | Begun::Ready(_)) {
            self.operations.count_moved(far.len());
        }
        begun
    }

    /// The next piece of the transfers that this side moves by itself.
    pub fn next_move(&mut self) -> Option<Move> {
        self.operations.next_move(self.context.as_deref_mut()?)
    }

    /// Begins to move it. What is ready is run without whatever guards this; [`Protocol::handle_moved`] is told.
    pub fn begin_move<'op>(&mut self, moving: &'op Move) -> Begun<'op> {
        match (&mut self.context, moving.op.transit()) {
            (Some(context), Some(transit)) => context.begin(&transit),
            _ => Begun::No,
        }
    }

    /// What became of a piece.
    pub fn handle_moved(&mut self, moving: Move, came: Came) {
        self.operations.handle_moved(moving, came, self.context.as_deref_mut());
        self.run_effects();
    }

    /// Begins to get bytes of one region into memory that is not registered. What is ready is run without whatever guards this.
    #[inline]
    pub fn begin_fetch<'into>(
        &mut self,
        owner: Peer,
        far: &RemoteRange,
        into: &'into mut [u8],
        may_wait: bool,
    ) -> Begun<'into> {
        let Some(context) = &mut self.context else { return Begun::No };
        let Some(place) = far.only_region() else { return Begun::No };
        let remote = &far.descriptor().regions()[place.region];
        let part = part_of(remote, context.as_ref(), self.routes);
        let remote = part.as_ref().unwrap_or(remote);
        let begun = context.fetch(owner, remote, place.offset, into, may_wait);
        if matches!(begun, Begun::Over | Begun::Ready(_)) {
            self.operations.count_moved(far.len());
        }
        begun
    }

    /// One of the transport's operations for a transfer has ended.
    #[cold]
    pub(super) fn handle_transfer_done(
        &mut self,
        operation: (OperationId, OpId),
        result: &mut Result<(), Box<Failure>>,
        returned: &mut Returned,
    ) {
        let Some(context) = self.context.as_deref_mut() else { return };
        // The slice goes now: whoever is told of the end may want the memory back.
        let returned = std::mem::replace(returned, Returned::Nothing);
        let result = std::mem::replace(result, Ok(()));
        let result = result.map_err(|failure| failure.error.into());
        self.operations.handle_piece_done(operation, result, returned, context);
    }

    /// Ends what is under way on its user's wish.
    pub fn cancel(&mut self, id: OperationId) {
        self.operations.cancel(id, self.now);
        self.run_effects();
    }

    /// Ends a call, or a wait, whose deadline has passed, between two rounds. Says whether it has settled.
    pub fn expire(&mut self, id: OperationId, now: Instant) -> bool {
        let context = &mut self.context;
        let was_connected =
            |peer| context.as_mut().is_none_or(|context| context.was_connected(peer));
        let is_settled = self.operations.expire(id, now, was_connected);
        self.is_at_rest = false;
        self.run_effects();
        is_settled
    }

    /// Nobody will take the outcome: what is open is cancelled, and its memory held until it is over. What it gives is to be
    /// dropped without the lock.
    #[must_use = "it is to be dropped where it may do anything"]
    pub fn abandon(&mut self, id: OperationId) -> (Option<Waker>, Deferred) {
        let before = self.deferred.len();
        let waker = self.operations.abandon(id, self.now);
        self.run_effects();
        (waker, self.deferred.split_off(before))
    }
}
