//! Transfers over memory that a peer has lent: what this side, as the owner, writes to it and reads from it. No I/O.
//!
//! Put and get are served by the owner's progress ([`hg_na_link::owner`]): it checks everything, and bytes travel in frames.
//!
//! | frame | from | content |
//! |---|---|---|
//! | `Get` | initiator | [`hg_na_link::Access`] |
//! | `GetData` | owner | bytes in order, until all are there: the last one ends it |
//! | `Put` | initiator | the same, first bytes |
//! | `PutData` | initiator | further bytes in order |
//! | `Ended` | owner | [`hg_na_link::Verdict`]: of every put, of a get that failed or had no byte |
//! | `Abort` | initiator | nothing: forget this operation |
//! | `GetLent`, `PutLent` | initiator | `Access`, then address (8) and key (4) of its own memory |
//!
//! A long transfer of one run of memory is lent: the owner checks as ever, then writes to the initiator's memory, or reads from it, and says
//! `Ended`. The verdict `InFrames` asks for the same in frames. So nobody but the owner ever touches the owner's memory, and a
//! descriptor holds no key.
//!
//! One queue pair carries all of it in order: what is said behind a write arrives behind its bytes, so that only reads are waited for.
//!
//! The tag is the initiator's number of the operation, never used twice. An initiator has at most [`ACTIVE_MAX`]
//! under way with one owner, and an owner serves no more.

use std::{collections::VecDeque, sync::Arc};

use hg_na_link::{ACCESS_LEN, Access, Owner, Verdict, owner::find};
use hg_na_parts::regions::{Entry, Regions};
use rustc_hash::FxHashMap;

use crate::wire::Reader;

/// Operations that one initiator has under way with one owner.
pub(crate) const ACTIVE_MAX: usize = 32;

/// What a peer's memory is reached by, as that peer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) address: u64,
    pub(crate) key: u32,
}

/// What is left to be moved to lent memory, or from it.
#[derive(Debug)]
pub(crate) struct Move {
    pub(crate) id: u64,
    pub(crate) entry: Arc<Entry>,
    /// Own memory is read: the initiator gets.
    pub(crate) is_get: bool,
    pub(crate) offset: u64,
    pub(crate) left: u64,
    pub(crate) grant: Grant,
}

/// Reads of one transfer that are under way.
#[derive(Debug, Default)]
struct Moving {
    pending: usize,
    /// Nothing is left to be handed over.
    is_handed: bool,
    /// What its end is, where it is not a good one.
    early: Option<Verdict>,
}

/// All transfers over memory that one peer has lent.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    pub(crate) queue: VecDeque<Move>,
    moving: FxHashMap<u64, Moving>,
}

impl Moves {
    /// Transfers under way.
    pub(crate) fn len(&self) -> usize {
        self.queue.len() + self.moving.values().filter(|moving| moving.is_handed).count()
    }

    /// The peer lends memory and asks for a transfer.
    ///
    /// # Errors
    /// What the other side has done wrong.
    pub(crate) fn asked(
        &mut self,
        regions: &Regions,
        (is_put, id): (bool, u64),
        content: &[u8],
        owner: &mut Owner,
    ) -> Result<(), &'static str> {
        owner.may_ask(self.len(), ACTIVE_MAX)?;
        if self.moving.contains_key(&id) || self.queue.iter().any(|it| it.id == id) {
            return Err("a number of a transfer that is under way");
        }
        let (access, numbers) =
            content.split_at_checked(ACCESS_LEN).ok_or("a transfer that is cut short")?;
        let mut reader = Reader(numbers);
        let (Some(access), Some(address), Some(key), []) =
            (Access::decode(access), reader.u64(), reader.u32(), reader.0)
        else {
            return Err("a transfer that is cut short, or too long");
        };
        match find(regions, is_put, &access) {
            Ok(_) if access.len == 0 => owner.say(id, Verdict::Ok),
            Ok(entry) => {
                let (grant, Access { offset, len: left, .. }) = (Grant { address, key }, access);
                self.queue.push_back(Move { id, entry, is_get: !is_put, offset, left, grant });
            }
            Err(error) => owner.say(id, Verdict::of(&error)),
        }
        Ok(())
    }

    /// A write was handed over: with the last one the transfer has ended.
    pub(crate) fn written(id: u64, is_last: bool, owner: &mut Owner) {
        if is_last {
            owner.say(id, Verdict::Ok);
        }
    }

    /// A read was handed over.
    pub(crate) fn reads(&mut self, id: u64, is_last: bool) {
        let moving = self.moving.entry(id).or_default();
        moving.pending += 1;
        moving.is_handed = is_last;
    }

    /// The initiator has given a transfer up.
    pub(crate) fn withdrawn(&mut self, id: u64, owner: &mut Owner) {
        let before = self.queue.len();
        self.queue.retain(|it| it.id != id);
        if self.queue.len() < before || self.moving.contains_key(&id) {
            self.end(id, Verdict::Cancelled, owner);
        }
    }

    /// No further move of a transfer is made: its end is told when the last one is over.
    pub(crate) fn end(&mut self, id: u64, verdict: Verdict, owner: &mut Owner) {
        match self.moving.get_mut(&id) {
            Some(moving) if moving.pending > 0 => {
                (moving.is_handed, moving.early) = (true, Some(verdict));
            }
            _ => {
                self.moving.remove(&id);
                owner.say(id, verdict);
            }
        }
    }

    /// One read is over; with the last of its transfer its end is told.
    pub(crate) fn was_read(&mut self, id: u64, owner: &mut Owner) {
        let Some(moving) = self.moving.get_mut(&id) else { return };
        moving.pending -= 1;
        if moving.pending == 0 && moving.is_handed {
            let verdict = moving.early.unwrap_or(Verdict::Ok);
            self.moving.remove(&id);
            owner.say(id, verdict);
        }
    }
}

#[cfg(test)]
mod tests {
    use hg_na::{Memory, RegionState as _, Rights};
    use hg_na_memory::ForkGuard;
    use hg_na_parts::regions::ServedRegion;

    use super::*;

    fn lent(claim: &[u8], offset: u64, len: u64) -> Vec<u8> {
        [claim, &offset.to_le_bytes(), &len.to_le_bytes(), &[0; 12]].concat()
    }

    fn region(rights: Rights) -> (Arc<Regions>, Arc<ServedRegion>) {
        let regions = Regions::new(Arc::new(ForkGuard::new().unwrap())).unwrap();
        let region = ServedRegion::register(&regions, Memory::from(vec![7; 8]), rights).unwrap();
        (regions, region)
    }

    fn said(owner: &mut Owner) -> Option<(u64, Verdict)> {
        let word = owner.next_word();
        owner.said();
        word
    }

    #[test]
    fn the_end_of_a_lent_transfer_is_told_when_it_was_given_up_meanwhile() {
        let (regions, region) = region(Rights::all());
        let lent = lent(region.descriptor().opaque(), 0, 4);
        let (mut moves, mut owner) = (Moves::default(), Owner::default());
        // Before its first move, between its moves, and under its last one.
        moves.asked(&regions, (false, 1), &lent, &mut owner).unwrap();
        moves.withdrawn(1, &mut owner);
        assert_eq!(said(&mut owner), Some((1, Verdict::Cancelled)));
        for (id, is_last) in [(2, false), (3, true)] {
            moves.asked(&regions, (true, id), &lent, &mut owner).unwrap();
            let it = moves.queue.pop_front().unwrap();
            moves.reads(id, is_last);
            if !is_last {
                moves.queue.push_front(it);
            }
            moves.withdrawn(id, &mut owner);
            assert_eq!(owner.next_word(), None, "the card is at it");
            moves.was_read(id, &mut owner);
            assert_eq!(said(&mut owner), Some((id, Verdict::Cancelled)));
        }
        assert!(moves.len() == 0 && owner.next_word().is_none());
        moves.withdrawn(3, &mut owner);
        assert_eq!(owner.next_word(), None, "it was told already");
    }

    #[test]
    fn forged_and_forbidden_transfers_end_with_their_reason_and_those_that_break_the_rules_are_caught()
     {
        let (regions, region) = region(Rights::READ);
        let claim = region.descriptor().opaque().to_vec();
        let mut forged = claim.clone();
        forged[30] ^= 1;
        let (mut moves, mut owner) = (Moves::default(), Owner::default());
        let cases: [(bool, &[u8], u64, Verdict); 4] = [
            (true, &claim, 0, Verdict::Denied(Rights::READ)),
            (false, &forged, 0, Verdict::Stale),
            (false, &claim, 5, Verdict::OutOfRange(8)),
            (false, &claim, u64::MAX, Verdict::OutOfRange(8)),
        ];
        for (is_put, claim, offset, verdict) in cases {
            moves.asked(&regions, (is_put, 9), &lent(claim, offset, 4), &mut owner).unwrap();
            assert_eq!(said(&mut owner), Some((9, verdict)));
        }
        let good = lent(&claim, 0, 4);
        assert!(moves.asked(&regions, (false, 1), &good[1..], &mut owner).is_err());
        for id in 1..=ACTIVE_MAX as u64 {
            moves.asked(&regions, (false, id), &good, &mut owner).unwrap();
            assert!(moves.asked(&regions, (false, id), &good, &mut owner).is_err(), "used already");
        }
        assert!(moves.asked(&regions, (false, 99), &good, &mut owner).is_err());
        moves.withdrawn(2, &mut owner);
        assert!(moves.asked(&regions, (false, 99), &good, &mut owner).is_ok());
    }
}
