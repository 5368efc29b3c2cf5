//! The transfers of a context: plans of `hg-bulk`, fed with the transport's completions, deadlines and room.

use std::{
    collections::{BTreeSet, VecDeque},
    task::Waker,
    time::{Duration, Instant},
};

use hg_bulk::{Piece, Place, Plan, Range, Regions, RemoteRange, TransferError};
use hg_na::{Context, Direction, Op, OpId, Peer, Returned, SharedBytes, Token};

use crate::{
    deferred::Deferred,
    table::{Key, Table},
};

/// Names a transfer of this port.
pub type TransferId = Key;

/// In a token: the operation is a transfer's. Those of calls have other bits ([`crate::call::Owner`]).
pub(crate) const TRANSFER_BIT: Token = 1 << 62;

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

    pub(crate) fn op(
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
pub(crate) fn start_of(regions: &impl Regions) -> Option<Place> {
    let (offset, len) = regions.span();
    let fits = offset + len <= regions.region_len(0)?;
    fits.then_some(Place { region: 0, offset })
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
pub(crate) struct Tools<'a> {
    pub(crate) context: Option<&'a mut (dyn Context + 'static)>,
    pub(crate) deferred: &'a mut Deferred,
    /// Of the last round.
    pub(crate) now: Instant,
}

impl Transfers {
    /// Starts one; `first` is what is posted first of it, where that is known.
    pub(crate) fn start(
        &mut self,
        peer: Peer,
        plan: Plan<Near, RemoteRange>,
        first: Option<(Piece, Op)>,
        tools: &mut Tools<'_>,
    ) -> TransferId {
        let id = self.table.insert(Box::new(Entry::new(peer, plan)));
        if first.is_none_or(|first| self.post_first(id, first, tools)) {
            self.run(id, tools);
        }
        id
    }

    /// So many bytes were moved at once.
    #[inline]
    pub(crate) fn handle_moved(&mut self, len: u64) {
        self.moved_at_once += len;
    }

    /// An operation of the transport's has ended.
    pub(crate) fn handle_done(
        &mut self,
        id: TransferId,
        op: OpId,
        result: Result<(), TransferError>,
        returned: Returned,
        tools: &mut Tools<'_>,
    ) {
        if let Some(entry) = self.table.get_mut(id) {
            if let Returned::View(seen) = returned {
                entry.seen = Some(seen);
            } else {
                drop(returned);
            }
            entry.plan.handle_done(op, result);
        }
        self.run(id, tools);
        self.retry_first(tools);
    }

    /// Ends those whose deadlines have passed.
    pub(crate) fn handle_timeout(&mut self, now: Instant, tools: &mut Tools<'_>) {
        while let Some(&(at, id)) = self.deadlines.first()
            && at <= now
        {
            self.handle_due(at, id, tools);
        }
    }

    /// Those with this peer.
    pub(crate) fn of(&self, peer: Peer) -> Vec<TransferId> {
        let of_peer = self.table.iter().filter(|(_, entry)| entry.peer == peer);
        of_peer.map(|(id, _)| id).collect()
    }

    /// Nobody will take the outcome: one that is open is cancelled. Gives the waker, which is a user's.
    pub(crate) fn abandon(&mut self, id: TransferId, tools: &mut Tools<'_>) -> Option<Waker> {
        let waker = self.table.get_mut(id).and_then(|entry| {
            entry.abandoned = true;
            entry.waker.take()
        });
        self.stop(id, TransferError::Cancelled, tools);
        waker
    }

    /// The transport is closed, and has dropped what was open.
    pub(crate) fn abort_all(&mut self, why: &TransferError, tools: &mut Tools<'_>) {
        let ids: Vec<_> = self.table.iter().map(|(id, _)| id).collect();
        for id in ids {
            if let Some(entry) = self.table.get_mut(id) {
                entry.plan.abort(why.clone());
            }
            self.run(id, tools);
        }
    }

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

    /// When the clock is to be read for them.
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
    pub(crate) fn stop(&mut self, id: TransferId, why: TransferError, tools: &mut Tools<'_>) {
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
    pub(crate) fn retry(&mut self, tools: &mut Tools<'_>) -> bool {
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
