//! The transfers of a context: plans of `hg-bulk`, fed with the transport's completions, deadlines and room.

use std::{
    collections::{BTreeSet, VecDeque},
    task::Waker,
    time::{Duration, Instant},
};

use hg_bulk::{Limits, Piece, Place, Plan, Range, RangeRef, Regions, RemoteRange, TransferError};
use hg_na::{
    Context, Descriptor, Direction, Failure, GoneReason, Op, OpId, Peer, Returned, SharedBytes,
    Token, Transit,
};

use crate::{
    deferred::Deferred,
    protocol::Protocol,
    table::{Key, Table},
};

/// Names a transfer of this port.
pub type TransferId = Key;

/// In a token: the operation is a transfer's. Those of calls have other bits ([`crate::call::Owner`]).
const TRANSFER_BIT: Token = 1 << 62;

/// Refusals in a row after which stalled transfers wait for the next round.
const REFUSALS_MAX: usize = 64;

/// After this time whoever waits for a transfer that was stopped is told, although the transport has its memory still: a peer
/// that stands still in the middle of one, say.
const DRAIN_MAX: Duration = Duration::from_millis(1);

/// Bytes that are moved at once, by a thread that waits for each transfer, before it makes a round.
const ROUND_EVERY: u64 = 4 << 20;

/// The near side of a transfer.
#[derive(Debug)]
pub enum Near {
    /// Bytes arrive here.
    Pull(Range),
    /// Bytes come from here.
    Push(Range),
    /// Bytes are seen where they are: so many.
    View(u64),
}

impl Near {
    /// Of a get or a put.
    pub fn of(direction: Direction, range: Range) -> Self {
        match direction {
            Direction::Get => Self::Pull(range),
            Direction::Put => Self::Push(range),
        }
    }

    fn op(
        &self,
        peer: Peer,
        piece: &Piece,
        remote: &RemoteRange,
        scheme: &str,
    ) -> Result<Op, hg_na::Error> {
        let mut remote = remote.slice(piece.remote, piece.len)?;
        // Of an engine that routes: the part for this transport.
        if let Some(part) = remote.descriptor().part_for(scheme) {
            remote = part.slice(remote.offset(), remote.len())?;
        }
        Ok(match self {
            Self::Pull(range) => {
                Op::Get { from: peer, local: range.slice(piece.local, piece.len)?, remote }
            }
            Self::Push(range) => {
                Op::Put { to: peer, local: range.slice(piece.local, piece.len)?, remote }
            }
            Self::View(_) => Op::View { from: peer, remote },
        })
    }
}

impl Regions for Near {
    fn span(&self) -> (u64, u64) {
        match self {
            Self::Pull(range) | Self::Push(range) => range.span(),
            Self::View(len) => (0, *len),
        }
    }

    fn region_len(&self, region: usize) -> Option<u64> {
        match self {
            Self::Pull(range) | Self::Push(range) => range.region_len(region),
            Self::View(len) => (region == 0).then_some(*len),
        }
    }
}

/// Where a range begins that lies in the first region, as most do.
fn start_of(regions: &impl Regions) -> Option<Place> {
    let (offset, len) = regions.span();
    let fits = offset + len <= regions.region_len(0)?;
    fits.then_some(Place { region: 0, offset })
}

/// Whether a range lies in the first region.
fn fits_first(regions: &impl Regions) -> bool {
    start_of(regions).is_some()
}

/// The transport's part of a descriptor of an engine that routes.
#[inline]
fn part_of(remote: &Descriptor, context: &dyn Context) -> Option<Descriptor> {
    if remote.may_be_joint() { remote.part_for(context.address().scheme()) } else { None }
}

#[derive(Debug)]
struct Entry {
    peer: Peer,
    plan: Plan<Near, RemoteRange>,
    seen: Option<SharedBytes>,
    deadline: Option<Instant>,
    waker: Option<Waker>,
    /// Whether it stands in the queue of those that wait for room.
    stalled: bool,
    /// Nobody will take the outcome.
    abandoned: bool,
    /// It was stopped, and the transport takes its time.
    is_late: bool,
}

impl Entry {
    fn new(peer: Peer, plan: Plan<Near, RemoteRange>) -> Self {
        Self {
            peer,
            plan,
            seen: None,
            deadline: None,
            waker: None,
            stalled: false,
            abandoned: false,
            is_late: false,
        }
    }
}

/// A transfer that is over. Dropped outside of the lock, since it may be the last to hold its memory.
#[derive(Debug)]
pub struct Ended {
    /// What came of it.
    pub outcome: Result<Option<SharedBytes>, TransferError>,
    _entry: Option<Box<Entry>>,
}

/// All transfers of one context.
#[derive(Debug, Default)]
pub struct Transfers {
    /// Boxed: few, long, and moved about.
    table: Table<Box<Entry>>,
    deadlines: BTreeSet<(Instant, TransferId)>,
    /// Those that the transport had no room for.
    stalled: VecDeque<TransferId>,
    /// Bytes that were moved at once since a round was due for it.
    moved_at_once: u64,
}

/// What a transfer works with: the transport, and what to do after the round.
struct Tools<'a> {
    context: Option<&'a mut (dyn Context + 'static)>,
    deferred: &'a mut Deferred,
    /// Of the last round.
    now: Instant,
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
        let entry = Entry::new(peer, Plan::new(near, far, limits));
        let id = self.transfers.table.insert(Box::new(entry));
        self.with_transfers(|transfers, tools| {
            let has_room = first.is_none_or(|first| transfers.post_first(id, first, tools));
            if has_room {
                transfers.run(id, tools);
            }
        });
        Ok(id)
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
        if far.len() > most || !(is_one_region || fits_first(&near) && fits_first(far)) {
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
            self.transfers.moved_at_once += far.len();
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
            self.transfers.moved_at_once += far.len();
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
    pub(crate) fn handle_transfer_done(
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
        self.with_transfers(|transfers, tools| {
            if let Some(entry) = transfers.table.get_mut(id) {
                if let Returned::View(seen) = returned {
                    entry.seen = Some(seen);
                } else {
                    drop(returned);
                }
                entry.plan.handle_done(op, result.map_err(|failure| failure.error.into()));
            }
            transfers.run(id, tools);
            transfers.retry_first(tools);
        });
    }

    /// What transfers want once in a while: deadlines, and room that came without a completion.
    #[cold]
    pub(crate) fn look_after_transfers(&mut self, now: Instant) {
        self.with_transfers(|transfers, tools| {
            while let Some(&(at, id)) = transfers.deadlines.first()
                && at <= now
            {
                transfers.handle_due(at, id, tools);
            }
            transfers.retry(tools);
        });
    }

    /// Before a sleep: the same for room only; says whether any transfer got on.
    pub(crate) fn retry_transfers(&mut self) -> bool {
        self.transfers.has_stalled() && self.with_transfers(Transfers::retry)
    }

    /// The peer is gone. What the transport had accepted completes by itself.
    pub(crate) fn fail_transfers(&mut self, peer: Peer, reason: &GoneReason) {
        let of_peer = self.transfers.table.iter().filter(|(_, entry)| entry.peer == peer);
        let ids: Vec<_> = of_peer.map(|(id, _)| id).collect();
        for id in ids {
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
        let waker = self.with_transfers(|transfers, tools| {
            let waker = transfers.table.get_mut(id).and_then(|entry| {
                entry.abandoned = true;
                entry.waker.take()
            });
            transfers.stop(id, TransferError::Cancelled, tools);
            waker
        });
        (waker, self.deferred.split_off(before))
    }

    /// The transport is closed.
    pub(crate) fn close_transfers(&mut self) {
        let why = self.why_closed();
        self.with_transfers(|transfers, tools| {
            let ids: Vec<_> = transfers.table.iter().map(|(id, _)| id).collect();
            for id in ids {
                if let Some(entry) = transfers.table.get_mut(id) {
                    entry.plan.abort(why.clone());
                }
                transfers.run(id, tools);
            }
        });
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

impl Transfers {
    /// Transfers that are not freed yet.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Whether so much was moved at once that a round is due: messages would wait for it otherwise.
    pub fn is_round_due(&mut self) -> bool {
        let is_due = self.moved_at_once >= ROUND_EVERY;
        if is_due {
            self.moved_at_once = 0;
        }
        is_due
    }

    /// When [`Protocol::handle_clock`] wants to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Whether any waits for room.
    #[must_use]
    pub fn has_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Whether there is anything to look at when the clock was read.
    #[inline]
    pub fn has_chores(&self) -> bool {
        !self.stalled.is_empty() | !self.deadlines.is_empty()
    }

    /// Takes the outcome, once it is there.
    pub fn take(&mut self, id: TransferId) -> Option<Ended> {
        let entry = self.table.get_mut(id)?;
        if entry.is_late
            && let Some(why) = entry.plan.stopped()
        {
            let outcome = Err(why.clone());
            entry.abandoned = true; // Its memory is kept until the transport is through with it.
            return Some(Ended { outcome, _entry: None });
        }
        let outcome = entry.plan.take_outcome()?.map(|()| entry.seen.take());
        Some(Ended { outcome, _entry: self.table.remove(id) })
    }

    /// Whether this waker, or one that does the same, is woken when it is over.
    pub fn is_to_wake(&self, id: TransferId, waker: &Waker) -> bool {
        let present = self.table.get(id).and_then(|entry| entry.waker.as_ref());
        present.is_some_and(|present| present.will_wake(waker))
    }

    /// Whom to wake when it is over. Gives back the one before, to be dropped without the lock.
    #[must_use = "it is to be dropped where it may do anything"]
    pub fn set_waker(&mut self, id: TransferId, waker: Waker) -> Option<Waker> {
        match self.table.get_mut(id) {
            Some(entry) => entry.waker.replace(waker),
            None => Some(waker),
        }
    }

    /// Sets when the transfer ends at the latest; the earlier one counts.
    pub fn set_deadline(&mut self, id: TransferId, at: Instant) {
        let Some(entry) = self.table.get_mut(id) else { return };
        if entry.plan.is_finished() || entry.deadline.is_some_and(|before| before <= at) {
            return;
        }
        if let Some(before) = entry.deadline.replace(at) {
            self.deadlines.remove(&(before, id));
        }
        self.deadlines.insert((at, id));
    }

    /// Ends a transfer early. The transport has a moment to give its memory back; whoever waits is told then at the latest.
    fn stop(&mut self, id: TransferId, why: TransferError, tools: &mut Tools<'_>) {
        if let Some(entry) = self.table.get_mut(id) {
            entry.plan.stop(why);
            if let Some(at) = entry.deadline.replace(tools.now + DRAIN_MAX) {
                self.deadlines.remove(&(at, id));
            }
            self.deadlines.insert((tools.now + DRAIN_MAX, id));
        }
        self.run(id, tools);
    }

    /// Its deadline has come up: it ends, or, where it was stopped before, is told although the transport has its memory still.
    fn handle_due(&mut self, at: Instant, id: TransferId, tools: &mut Tools<'_>) {
        self.deadlines.remove(&(at, id));
        let Some(entry) = self.table.get_mut(id) else { return };
        entry.deadline = None;
        if entry.plan.stopped().is_none() {
            return self.stop(id, TransferError::DeadlineExceeded, tools);
        }
        entry.is_late = true;
        tools.deferred.extend(entry.waker.take());
    }

    /// Posts the first piece, as [`Transfers::run`] would; what is left of the transfer is up to that. `false`: the
    /// transport has no room for it.
    fn post_first(
        &mut self,
        id: TransferId,
        (piece, op): (Piece, Op),
        tools: &mut Tools<'_>,
    ) -> bool {
        let Some(entry) = self.table.get_mut(id) else { return true };
        let Some(context) = &mut tools.context else {
            return true;
        };
        if entry.plan.next_piece() != Some(piece) {
            return true; // It is cut into several.
        }
        match context.post(id.to_bits() | TRANSFER_BIT, op) {
            Ok(op) => entry.plan.handle_posted(&piece, op),
            Err(rejected) if matches!(rejected.error, hg_na::Error::Again) => {
                entry.stalled = true;
                self.stalled.push_back(id);
                return false;
            }
            Err(rejected) => entry.plan.handle_refused(rejected.error.into()),
        }
        true
    }

    /// Does what a transfer wants done. `false`: the transport has no room for its next piece.
    fn run(&mut self, id: TransferId, tools: &mut Tools<'_>) -> bool {
        let Some(entry) = self.table.get_mut(id) else { return true };
        let token = id.to_bits() | TRANSFER_BIT;
        let mut has_room = true;
        while let Some(context) = &mut tools.context
            && has_room
            && let Some(piece) = entry.plan.next_piece()
        {
            let scheme = context.address().scheme();
            let op = entry.plan.local().op(entry.peer, &piece, entry.plan.remote(), scheme);
            let posted = match op {
                Ok(op) => context.post(token, op).map_err(|rejected| rejected.error),
                Err(error) => Err(error),
            };
            match posted {
                Ok(op) => entry.plan.handle_posted(&piece, op),
                Err(hg_na::Error::Again) => has_room = false,
                Err(error) => entry.plan.handle_refused(error.into()),
            }
        }
        while let Some(op) = entry.plan.next_cancel() {
            if let Some(context) = &mut tools.context {
                context.cancel(op);
            }
        }
        if !has_room && !std::mem::replace(&mut entry.stalled, true) {
            self.stalled.push_back(id);
        }
        if entry.plan.is_finished() {
            self.finish(id, tools);
        }
        has_room
    }

    fn finish(&mut self, id: TransferId, tools: &mut Tools<'_>) {
        let Some(entry) = self.table.get_mut(id) else { return };
        tools.deferred.extend(entry.waker.take());
        if let Some(at) = entry.deadline.take() {
            self.deadlines.remove(&(at, id));
        }
        if entry.abandoned
            && let Some(entry) = self.table.remove(id)
        {
            tools.deferred.drop(entry); // It may be the last to hold its memory.
        }
    }

    /// Tries stalled transfers until one is refused; says whether any got on.
    fn retry_first(&mut self, tools: &mut Tools<'_>) -> bool {
        let mut moved = false;
        while let Some(id) = self.stalled.pop_front() {
            if !self.run_stalled(id, tools) {
                break;
            }
            moved = true;
        }
        moved
    }

    /// Tries stalled transfers, each once; says whether any got on.
    fn retry(&mut self, tools: &mut Tools<'_>) -> bool {
        let (mut moved, mut refusals) = (false, 0);
        for _ in 0..self.stalled.len() {
            let Some(id) = self.stalled.pop_front() else { break };
            if self.run_stalled(id, tools) {
                (moved, refusals) = (true, 0);
            } else {
                refusals += 1;
                if refusals == REFUSALS_MAX {
                    break;
                }
            }
        }
        moved
    }

    fn run_stalled(&mut self, id: TransferId, tools: &mut Tools<'_>) -> bool {
        if let Some(entry) = self.table.get_mut(id) {
            entry.stalled = false;
        }
        self.run(id, tools)
    }
}
