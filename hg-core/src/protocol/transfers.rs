//! The protocol's part of transfers: what needs the transport, and what is deferred.

use std::{task::Waker, time::Instant};

use hg_bulk::{Limits, Piece, Plan, RangeRef, Regions as _, RemoteRange, TransferError};
use hg_na::{
    Context, Descriptor, Direction, Failure, GoneReason, Op, OpId, Peer, Returned, Token, Transit,
};

use super::Protocol;
use crate::{
    deferred::Deferred,
    transfers::{Near, TRANSFER_BIT, Tools, TransferId, Transfers, start_of},
};

/// The transport's part of a descriptor of an engine that routes.
#[inline]
fn part_of(remote: &Descriptor, context: &dyn Context) -> Option<Descriptor> {
    if remote.may_be_joint() { remote.part_for(context.address().scheme()) } else { None }
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
        first: Option<(Piece, Op)>,
    ) -> Result<TransferId, TransferError> {
        if !self.is_open() {
            return Err(self.why_closed());
        }
        let plan = Plan::new(near, far, limits);
        Ok(self.with_transfers(|transfers, tools| transfers.start(peer, plan, first, tools)))
    }

    /// Has the transport do it without being posted anything, where it needs nothing of the peer: nothing is counted or
    /// copied for that. Says whether it is over.
    #[inline]
    pub fn transfer_at_once(
        &mut self,
        peer: Peer,
        direction: Direction,
        near: RangeRef<'_>,
        far: &RemoteRange,
        most: u64,
    ) -> bool {
        let Some(context) = &mut self.context else { return false };
        let (locals, remotes) = (near.regions(), far.descriptor().regions());
        let (Some(local), Some(remote)) = (locals.first(), remotes.first()) else {
            return false;
        };
        // What lies in one region on either side, as most does, begins where the range does.
        let is_one_region = locals.len() == 1 && remotes.len() == 1;
        let fits = is_one_region || start_of(&near).is_some() && start_of(far).is_some();
        if far.len() > most || !fits {
            return false;
        }
        let part = if self.routes { None } else { part_of(remote, context.as_ref()) };
        let transit = Transit {
            direction,
            peer,
            local: local.state(),
            local_offset: near.span().0,
            remote: part.as_ref().unwrap_or(remote),
            remote_offset: far.offset(),
            len: far.len(),
        };
        let is_over = context.transfer(&transit, most);
        if is_over {
            self.transfers.handle_moved(far.len());
        }
        is_over
    }

    /// Gets bytes of one region into memory that is not registered, where the transport does so within the call.
    #[inline]
    pub fn fetch_at_once(&mut self, owner: Peer, far: &RemoteRange, into: &mut [u8]) -> bool {
        let Some(context) = &mut self.context else { return false };
        let Some(place) = far.only_region() else { return false };
        let remote = &far.descriptor().regions()[place.region];
        let part = if self.routes { None } else { part_of(remote, context.as_ref()) };
        let is_over = context.fetch(owner, part.as_ref().unwrap_or(remote), place.offset, into);
        if is_over {
            self.transfers.handle_moved(far.len());
        }
        is_over
    }

    /// What is posted first of a transfer, if all of it lies in one region on either side.
    pub fn first_piece(&self, peer: Peer, near: &Near, far: &RemoteRange) -> Option<(Piece, Op)> {
        let context = self.context.as_ref()?;
        let piece = Piece { local: start_of(near)?, remote: start_of(far)?, len: far.len() };
        let op = near.op(peer, &piece, far, context.address().scheme());
        op.ok().map(|op| (piece, op)) // Posting tells what is wrong.
    }

    /// One of the transport's operations has ended; says whether it was a transfer's.
    #[cold]
    pub(super) fn handle_transfer_done(
        &mut self,
        (token, op): (Token, OpId),
        result: &mut Result<(), Box<Failure>>,
        returned: &mut Returned,
    ) {
        if token & TRANSFER_BIT == 0 {
            return;
        }
        let id = TransferId::from_bits(token);
        // The slice goes now: whoever is told of the end may want the memory back.
        let returned = std::mem::replace(returned, Returned::Nothing);
        let result = std::mem::replace(result, Ok(()));
        let result = result.map_err(|failure| failure.error.into());
        self.with_transfers(|transfers, tools| {
            transfers.handle_done(id, op, result, returned, tools);
        });
    }

    /// What transfers want once in a while: deadlines, and room that came without a completion.
    #[cold]
    pub(super) fn look_after_transfers(&mut self, now: Instant) {
        self.with_transfers(|transfers, tools| {
            transfers.handle_timeout(now, tools);
            transfers.retry(tools);
        });
    }

    /// Before a sleep: the same for room only; says whether any transfer got on.
    pub(super) fn retry_transfers(&mut self) -> bool {
        self.transfers.has_stalled() && self.with_transfers(Transfers::retry)
    }

    /// The peer is gone. What the transport had accepted completes by itself.
    pub(super) fn fail_transfers(&mut self, peer: Peer, reason: &GoneReason) {
        for id in self.transfers.of(peer) {
            let error = TransferError::PeerGone { reason: reason.clone() };
            self.stop_transfer(id, error);
        }
    }

    /// Ends a transfer early.
    pub fn stop_transfer(&mut self, id: TransferId, why: TransferError) {
        self.with_transfers(|transfers, tools| transfers.stop(id, why, tools));
    }

    /// Nobody will take the outcome: an open transfer is cancelled, and its memory held until it is over. What it gives is
    /// to be dropped without the lock.
    #[must_use = "it is to be dropped where it may do anything"]
    pub fn abandon_transfer(&mut self, id: TransferId) -> (Option<Waker>, Deferred) {
        let before = self.deferred.len();
        let waker = self.with_transfers(|transfers, tools| transfers.abandon(id, tools));
        (waker, self.deferred.split_off(before))
    }

    /// The transport is closed.
    pub(super) fn close_transfers(&mut self) {
        let why = self.why_closed();
        self.with_transfers(|transfers, tools| transfers.abort_all(&why, tools));
    }

    fn with_transfers<T>(&mut self, act: impl FnOnce(&mut Transfers, &mut Tools<'_>) -> T) -> T {
        let tools = &mut Tools {
            context: self.context.as_deref_mut(),
            deferred: &mut self.deferred,
            now: self.now,
        };
        act(&mut self.transfers, tools)
    }

    fn why_closed(&mut self) -> TransferError {
        match self.context() {
            Err(crate::error::Failure::NotMade(error)) => error.into(),
            _ => TransferError::Closed,
        }
    }
}
