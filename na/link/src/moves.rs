//! Transfers over memory that a peer has lent: what this side, as the owner, moves to it and from it.
//!
//! A long transfer of one run of memory is lent, where both sides' transport can: the owner checks as ever ([`crate::owner`]), then writes
//! to the initiator's memory, or reads from it, and says `Ended`. The verdict `InFrames` asks for the same in frames. So nobody but the
//! owner ever touches the owner's memory, and a descriptor holds no key.
//!
//! ```text
//!  asked -> queue -handed...-> moving -the last one is over-> word
//!             |                  | withdrawn, or failed
//!             +- withdrawn: word +-> moving -> word, once nothing is moved any more
//! ```
//! Where a transport keeps what it moves and what it says in order, a move needs no waiting for: its last word may follow at once.

use std::{collections::VecDeque, sync::Arc};

use hg_na_parts::regions::{Entry, Regions};
use rustc_hash::FxHashMap;

use crate::{
    frame::Reader,
    grant::Grant,
    owner::{Owner, find},
    transfer::{ACCESS_LEN, Access},
    verdict::Verdict,
};

/// Transfers that one initiator has under way with one owner.
pub const ACTIVE_MAX: usize = 32;

/// What is left to be moved to lent memory, or from it.
#[derive(Debug)]
pub struct Move {
    /// The initiator's number of the transfer.
    pub id: u64,
    /// The owner's memory.
    pub entry: Arc<Entry>,
    /// It is read: the initiator gets.
    pub is_get: bool,
    /// Where the rest starts in it.
    pub offset: u64,
    /// Bytes of the rest.
    pub left: u64,
    /// Where they go, or come from.
    pub grant: Grant,
    /// How often the owner's memory had been abandoned before.
    pub times_left: u64,
}

impl Move {
    /// What was read of the peer is not in the region: its memory was left to another peer meanwhile, and a copy has taken its place.
    fn is_elsewhere(&self) -> bool {
        !self.is_get && self.entry.times_left() != self.times_left
    }
}

/// Moves of one transfer that the transport has.
#[derive(Debug, Default)]
struct Moving {
    pending: usize,
    /// Nothing is left to be handed over.
    is_handed: bool,
    /// What its end is, where it is not a good one.
    early: Option<Verdict>,
    /// What is read goes there, which had been abandoned so often before.
    into: Option<(Arc<Entry>, u64)>,
}

impl Moving {
    /// As it ends, now that all has come: what has gone elsewhere is asked for again.
    fn verdict(&self) -> Verdict {
        let is_other = |(entry, before): &(Arc<Entry>, u64)| entry.times_left() != *before;
        let good =
            if self.into.as_ref().is_some_and(is_other) { Verdict::InFrames } else { Verdict::Ok };
        self.early.unwrap_or(good)
    }
}

/// All transfers over memory that one peer has lent.
#[derive(Debug, Default)]
pub struct Moves {
    /// Those of which something is to be handed over.
    pub queue: VecDeque<Move>,
    moving: FxHashMap<u64, Moving>,
}

impl Moves {
    /// Transfers under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len() + self.moving.values().filter(|moving| moving.is_handed).count()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.moving.is_empty()
    }

    /// The peer lends memory and asks for a transfer.
    ///
    /// # Errors
    /// What the other side has done wrong.
    pub fn asked(
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
            (Access::decode(access), reader.u64(), reader.u64(), reader.0)
        else {
            return Err("a transfer that is cut short, or too long");
        };
        match find(regions, is_put, &access) {
            Ok(_) if access.len == 0 => owner.say(id, Verdict::Ok),
            Ok(entry) => {
                let (grant, Access { offset, len: left, .. }) = (Grant { address, key }, access);
                let (is_get, times_left) = (!is_put, entry.times_left());
                self.queue.push_back(Move { id, entry, is_get, offset, left, grant, times_left });
            }
            Err(error) => owner.say(id, Verdict::of(&error)),
        }
        Ok(())
    }

    /// A move was handed over. `is_awaited`: its end is told; else whatever is said behind it arrives behind it.
    pub fn handed(&mut self, it: &Move, is_awaited: bool, owner: &mut Owner) {
        let is_last = it.left == 0;
        if is_awaited {
            let moving = self.moving.entry(it.id).or_default();
            moving.pending += 1;
            moving.is_handed = is_last;
            if !it.is_get {
                moving.into.get_or_insert_with(|| (Arc::clone(&it.entry), it.times_left));
            }
        } else if is_last {
            owner.say(it.id, if it.is_elsewhere() { Verdict::InFrames } else { Verdict::Ok });
        }
    }

    /// The initiator has given a transfer up.
    pub fn withdrawn(&mut self, id: u64, owner: &mut Owner) {
        let before = self.queue.len();
        self.queue.retain(|it| it.id != id);
        if self.queue.len() < before || self.moving.contains_key(&id) {
            self.end(id, Verdict::Cancelled, owner);
        }
    }

    /// No further move of a transfer is made: its end is told when the last one is over.
    pub fn end(&mut self, id: u64, verdict: Verdict, owner: &mut Owner) {
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

    /// One move is over, and has failed perhaps; with the last of its transfer its end is told.
    pub fn moved(&mut self, id: u64, is_failed: bool, owner: &mut Owner) {
        let Some(moving) = self.moving.get_mut(&id) else { return };
        moving.pending -= 1;
        if is_failed {
            moving.early.get_or_insert(Verdict::InFrames);
        }
        if moving.pending == 0 && moving.is_handed {
            let verdict = moving.verdict();
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
        [claim, &offset.to_le_bytes(), &len.to_le_bytes(), &[0; 16]].concat()
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
            let mut it = moves.queue.pop_front().unwrap();
            it.left = if is_last { 0 } else { 4 };
            moves.handed(&it, true, &mut owner);
            if !is_last {
                moves.queue.push_front(it);
            }
            moves.withdrawn(id, &mut owner);
            assert_eq!(owner.next_word(), None, "it is being moved");
            moves.moved(id, false, &mut owner);
            assert_eq!(said(&mut owner), Some((id, Verdict::Cancelled)));
        }
        assert!(moves.is_empty() && owner.next_word().is_none());
        moves.withdrawn(3, &mut owner);
        assert_eq!(owner.next_word(), None, "it was told already");
    }

    #[test]
    fn a_failed_move_asks_for_frames_and_one_that_keeps_its_order_is_told_at_once() {
        let (regions, region) = region(Rights::all());
        let lent = lent(region.descriptor().opaque(), 0, 4);
        let (mut moves, mut owner) = (Moves::default(), Owner::default());
        for (id, failing) in [(1, [true, false]), (2, [false, true]), (3, [false, false])] {
            moves.asked(&regions, (true, id), &lent, &mut owner).unwrap();
            let mut it = moves.queue.pop_front().unwrap();
            moves.handed(&it, true, &mut owner);
            it.left = 0;
            moves.handed(&it, true, &mut owner);
            moves.moved(id, failing[0], &mut owner);
            assert_eq!(owner.next_word(), None, "one is under way");
            moves.moved(id, failing[1], &mut owner);
            let verdict = if id < 3 { Verdict::InFrames } else { Verdict::Ok };
            assert_eq!(said(&mut owner), Some((id, verdict)));
        }
        moves.asked(&regions, (true, 4), &lent, &mut owner).unwrap();
        let mut it = moves.queue.pop_front().unwrap();
        moves.handed(&it, false, &mut owner);
        assert_eq!(owner.next_word(), None);
        it.left = 0;
        moves.handed(&it, false, &mut owner);
        assert_eq!(said(&mut owner), Some((4, Verdict::Ok)));
        assert!(moves.is_empty());
    }

    #[test]
    fn what_was_read_into_memory_that_was_left_to_another_peer_meanwhile_is_asked_for_again() {
        let (regions, region) = region(Rights::all());
        let lent = lent(region.descriptor().opaque(), 0, 4);
        let (mut moves, mut owner) = (Moves::default(), Owner::default());
        for (is_put, is_awaited, verdict) in [
            (true, true, Verdict::InFrames),
            (true, false, Verdict::InFrames),
            (false, true, Verdict::Ok),
            (false, false, Verdict::Ok),
        ] {
            moves.asked(&regions, (is_put, 1), &lent, &mut owner).unwrap();
            let mut it = moves.queue.pop_front().unwrap();
            moves.handed(&it, is_awaited, &mut owner);
            region.entry().abandon();
            it.left = 0;
            moves.handed(&it, is_awaited, &mut owner);
            moves.moved(1, false, &mut owner);
            moves.moved(1, false, &mut owner);
            assert_eq!(said(&mut owner), Some((1, verdict)), "{is_put} {is_awaited}");
        }
        assert!(moves.is_empty());
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
