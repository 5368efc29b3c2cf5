//! Transfers that wait for others of their round: the transport moves several short ones for less than one after the other.
//!
//! ```text
//!        started in a handler's poll                         the transport does it at once
//!  (none) -------------------------> waiting ---- end of the round's handlers ----> moved: forgotten
//!                                       |    or so many wait, or somebody else asks    |
//!                                       |                                              +-- does not, or it is stopped:
//!                                       +-- abandoned: forgotten                           open, as any other
//! ```
//! None waits beyond the round whose handler has started it. Whoever asks for it by another way than its task's first poll
//! (another waker, another thread, a deadline) has it moved at once. That poll leaves no waker: its task is polled again
//! when the transfers were moved, and one that the transport did not do after all is given its task's waker then.

use std::{slice, task::Waker};

use hg_bulk::{AsRange as _, Limits, Plan, Range, RangeRef, RemoteRange};
use hg_na::{Direction, Peer, Transit};

use super::{Entry, Near, Slot, Tools, TransferId, Transfers};
use crate::{gather, port::State};

/// Transfers that wait at most: half of them are answered while the other half is moved.
pub(crate) const NOTES_MAX: usize = 8;

/// A transfer that waits, between one region and one region, which the transport would move at once. Dropped outside of the
/// lock, since it may be the last to hold its memory.
#[derive(Debug)]
pub(crate) struct Noted {
    id: TransferId,
    peer: Peer,
    direction: Direction,
    local: Range,
    far: RemoteRange,
    /// The start of the handler that has begun it.
    start: u64,
}

/// Starts of handlers, near each other: those of one round.
#[derive(Debug, Default)]
pub(super) struct Noting {
    first: u64,
    /// One for each from the first on.
    bits: u64,
}

impl Noting {
    /// `None`: it is too far from the others.
    #[inline]
    fn bit(&self, start: u64) -> Option<u64> {
        let from_first = if self.bits == 0 { 0 } else { start.wrapping_sub(self.first) };
        (from_first < u64::from(u64::BITS)).then(|| 1 << from_first)
    }

    #[inline]
    fn add(&mut self, start: u64) {
        if self.bits == 0 {
            self.first = start;
        }
        self.bits |= self.bit(start).unwrap_or(0);
    }
}

impl Noted {
    /// Drops it after its transfer.
    #[inline]
    pub(crate) fn give_back(self) {
        self.far.give_back();
    }

    #[inline(always)]
    fn transit(&self) -> Transit<'_> {
        let (local, remote) = (self.local.as_range(), self.far.descriptor());
        let asked = "it has a region on either side, about which the transport was asked";
        let (local, remote) = (local.regions().first(), remote.regions().first());
        let (local, remote) = (local.expect(asked), remote.expect(asked));
        Transit {
            direction: self.direction,
            peer: self.peer,
            local: local.state(),
            local_offset: self.local.offset(),
            remote,
            remote_offset: self.far.offset(),
            len: self.far.len(),
        }
    }
}

impl Transfers {
    /// Whether one more may wait, of this handler.
    #[inline]
    pub(crate) fn has_room_for_note(&self, start: u64) -> bool {
        self.notes.len() < NOTES_MAX && self.noting.bit(start).is_some()
    }

    /// Whether it would wait for one of its kind: of the same peer and direction, and no shorter.
    #[inline]
    pub(super) fn is_like_noted(&self, transit: &Transit<'_>) -> bool {
        let Transit { peer, direction, len, .. } = *transit;
        !self.notes.is_empty()
            && self
                .kind
                .is_some_and(|(of, way, longest)| peer == of && direction == way && len <= longest)
    }

    /// Lets a transfer wait that the transport would rather do with others.
    #[inline]
    pub(crate) fn note(
        &mut self,
        peer: Peer,
        (direction, local, far): (Direction, RangeRef<'_>, RemoteRange),
        start: u64,
    ) -> TransferId {
        if self.notes.is_empty() {
            self.kind = Some((peer, direction, far.len()));
        }
        let id = self.table.insert(Slot::Noted(peer));
        let local = local.to_range();
        self.notes.push(Noted { id, peer, direction, local, far, start });
        self.noting.add(start);
        gather::count();
        id
    }

    /// Whether this handler has left transfers to wait, and its round goes on.
    pub(crate) fn is_noting(&self, start: u64) -> bool {
        self.noting.bits != 0
            && self.noting.bit(start).is_some_and(|bit| self.noting.bits & bit != 0)
    }

    /// The handler has ended, or goes on beyond its round.
    #[inline]
    pub(crate) fn end_noting(&mut self, start: u64) {
        if let Some(bit) = self.noting.bit(start) {
            self.noting.bits &= !bit;
        }
    }

    /// One that waits does so no more: nobody wants it, or its end otherwise than at the end of its round.
    fn take_out(&mut self, id: TransferId) -> Option<Noted> {
        let at = self.notes.iter().position(|noted| noted.id == id)?;
        self.is_any_out = true;
        Some(self.notes.remove(at))
    }

    /// Forgets one that waits.
    pub(super) fn remove_noted(&mut self, id: TransferId) -> Option<Noted> {
        let noted = self.take_out(id)?;
        self.table.discard(id);
        Some(noted)
    }

    /// One that waits is a transfer like any other from now on, of which nothing is posted yet.
    pub(super) fn open(&mut self, id: TransferId) {
        if let Some(noted) = self.take_out(id) {
            self.open_noted(&noted);
        }
    }

    fn open_noted(&mut self, noted: &Noted) {
        let Some(slot) = self.table.get_mut(noted.id) else { return };
        let (near, far) = (Near::of(noted.direction, noted.local.clone()), noted.far.clone());
        // The transport would do all of it at once.
        let plan = Plan::new(near, far, Limits::whole());
        *slot = Slot::Open(Box::new(Entry::new(noted.peer, plan)));
    }

    /// Has the transport do at most [`NOTES_MAX`] that have waited, and forgets those; what it does not do is posted, and
    /// wakes its handler then. Says whether it has done all.
    fn end_notes(
        &mut self,
        notes: &[Noted],
        tools: &mut Tools<'_>,
        waker_of: impl Fn(u64) -> Option<Waker>,
    ) -> bool {
        let mut done = [false; NOTES_MAX];
        if let Some(context) = &mut tools.context {
            let transits: Vec<_> = notes.iter().map(Noted::transit).collect();
            context.transfer_all(&transits, u64::MAX, &mut done);
        }
        let mut is_all = true;
        for (noted, is_done) in notes.iter().zip(done) {
            if is_done {
                self.table.discard(noted.id);
                self.moved_at_once += noted.far.len();
                continue;
            }
            is_all = false;
            self.open_noted(noted);
            if let Some(entry) = self.entry(noted.id) {
                entry.waker = waker_of(noted.start);
            }
            self.run(noted.id, tools);
        }
        is_all
    }
}

impl State {
    /// Has the transport do those that wait; says whether it has done all that have waited in this round. `waker_of` gives
    /// the waker of the handler of a start; a task's, which is not its user's to clone. `over`, which is empty, has those
    /// that have waited then.
    pub(crate) fn flush_notes(
        &mut self,
        waker_of: impl Fn(u64) -> Option<Waker>,
        over: &mut Vec<Noted>,
    ) -> bool {
        self.with_transfers(|transfers, tools| {
            std::mem::swap(&mut transfers.notes, over);
            let is_any_out = std::mem::take(&mut transfers.is_any_out);
            transfers.end_notes(over, tools, waker_of) && !is_any_out
        })
    }

    /// Has the transport do one that waits, if it does: somebody asks for it who is not polled again, and sees to his waker
    /// himself. Says whether it is over, and well; what that gives is to be dropped without the lock.
    pub(crate) fn settle_note(&mut self, id: TransferId) -> (bool, Option<Noted>) {
        self.with_transfers(|transfers, tools| match transfers.take_out(id) {
            Some(noted) => {
                let is_over = transfers.end_notes(slice::from_ref(&noted), tools, |_| None);
                (is_over, Some(noted))
            }
            // It was done with the others, unless it was opened.
            None => (transfers.entry(id).is_none(), None),
        })
    }
}
