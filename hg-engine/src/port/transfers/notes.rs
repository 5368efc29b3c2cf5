//! Transfers that wait for others of their round: the transport moves several short ones for less than one after the other.
//!
//! ```text
//!        started in a handler's poll                         the transport does it at once
//!  (none) -------------------------> waiting ---- end of the round's handlers ----> over -- taken
//!                                       |    or so many wait, or somebody else asks    |
//!                                       |                                              +-- does not, or it is stopped:
//!                                       +-- abandoned: forgotten                           open, as any other
//! ```
//! None waits beyond the round whose handler has started it. Whoever asks for it by another way than its task's first poll
//! (another waker, another thread, a deadline) has it moved at once. That poll leaves no waker: its task is polled again
//! when the transfers were moved, and one that the transport did not do after all is given its task's waker then.

use std::task::Waker;

use hg_bulk::{AsRange as _, Limits, Plan, Range, RangeRef, RemoteRange};
use hg_na::{Direction, Peer, Transit};

use super::{Entry, Near, Slot, Tools, TransferId, Transfers};
use crate::{gather, port::State};

/// Transfers that wait at most: half of them are answered while the other half is moved.
pub(crate) const NOTES_MAX: usize = 8;

/// A transfer between one region and one region, which the transport would move at once.
#[derive(Debug)]
pub(super) struct Noted {
    pub(super) peer: Peer,
    direction: Direction,
    local: Range,
    far: RemoteRange,
    /// The start of the handler that has begun it.
    start: u64,
    pub(super) is_over: bool,
}

/// One that is over. Dropped outside of the lock, since it may be the last to hold its memory.
pub(crate) struct Over(#[expect(dead_code, reason = "it is dropped")] Slot);

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
        let local = local.to_range();
        let noted = Noted { peer, direction, local, far, start, is_over: false };
        let id = self.table.insert(Slot::Noted(noted));
        self.notes.push(id);
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

    /// Takes one that has waited, and is over.
    #[inline]
    pub(crate) fn take_noted(&mut self, id: TransferId) -> Option<Over> {
        match self.table.get(id)? {
            Slot::Noted(noted) if noted.is_over => self.table.remove(id).map(Over),
            _ => None,
        }
    }

    /// One that was noted, be it over or not.
    pub(super) fn remove_noted(&mut self, id: TransferId) -> Option<Slot> {
        matches!(self.table.get(id)?, Slot::Noted(_)).then(|| self.table.remove(id))?
    }

    /// One that waits is a transfer like any other from now on, of which nothing is posted yet.
    pub(super) fn open(&mut self, id: TransferId) {
        let Some(slot) = self.table.get_mut(id) else { return };
        let Slot::Noted(noted) = slot else { return };
        if noted.is_over {
            return;
        }
        let (near, far) = (Near::of(noted.direction, noted.local.clone()), noted.far.clone());
        // The transport would do all of it at once.
        let plan = Plan::new(near, far, Limits::whole());
        *slot = Slot::Open(Box::new(Entry::new(noted.peer, plan)));
    }

    fn waiting(&self, id: TransferId) -> Option<&Noted> {
        match self.table.get(id)? {
            Slot::Noted(noted) if !noted.is_over => Some(noted),
            _ => None,
        }
    }

    /// Has the transport do at most [`NOTES_MAX`] of them; what it does not do is posted, and wakes its handler then.
    fn do_together(
        &mut self,
        ids: &[TransferId],
        tools: &mut Tools<'_>,
        waker_of: impl Fn(u64) -> Option<Waker>,
    ) {
        let mut done = [false; NOTES_MAX];
        let Some(context) = &mut tools.context else { return };
        let mut transits = Vec::with_capacity(NOTES_MAX);
        for id in ids {
            transits.extend(self.waiting(*id).map(Noted::transit));
        }
        match transits.as_slice() {
            [] => return,
            transits => context.transfer_all(transits, u64::MAX, &mut done),
        }
        drop(transits);
        let mut done = done.into_iter();
        for id in ids {
            let Some(Slot::Noted(noted)) = self.table.get_mut(*id) else { continue };
            if noted.is_over {
                continue;
            }
            if done.next() == Some(true) {
                noted.is_over = true;
                self.moved_at_once += noted.far.len();
            } else {
                let waker = waker_of(noted.start);
                self.open(*id);
                if let Some(entry) = self.entry(*id) {
                    entry.waker = waker;
                }
                self.run(*id, tools);
            }
        }
    }
}

impl State {
    /// Has the transport do those that wait. `waker_of` gives the waker of the handler of a start; a task's, which is not its
    /// user's to clone.
    pub(crate) fn flush_notes(&mut self, waker_of: impl Fn(u64) -> Option<Waker>) {
        self.with_transfers(|transfers, tools| {
            let mut notes = std::mem::take(&mut transfers.notes);
            for ids in notes.chunks(NOTES_MAX) {
                transfers.do_together(ids, tools, &waker_of);
            }
            notes.clear();
            transfers.notes = notes; // For its memory.
        });
    }

    /// Has the transport do one that waits, if it does: somebody asks for it who is not polled again, and sees to his waker
    /// himself.
    pub(crate) fn settle_note(&mut self, id: TransferId) {
        self.with_transfers(|transfers, tools| transfers.do_together(&[id], tools, |_| None));
    }
}
