//! Put and get, served by the owner's progress: it checks everything, and bytes travel in frames.
//!
//! | frame | from | content |
//! |---|---|---|
//! | `Get` | initiator | claim (40), offset (8), length (8) |
//! | `GetData` | owner | bytes in order, until all are there |
//! | `Put` | initiator | claim (40), offset (8), length (8), first bytes |
//! | `PutData` | initiator | further bytes in order |
//! | `Ended` | owner | status (1), two numbers (16): of every put, of a get that failed or had no byte |
//! | `Abort` | initiator | nothing: forget this operation |
//! | `GetLent`, `PutLent` | initiator | claim, offset, length as above; address (8) and key (8) of its own memory |
//!
//! Where both sides' provider has one-sided operations, a long transfer of one run of memory is lent: the owner
//! checks as ever, then writes to, or reads from, the initiator's memory itself, and says `Ended`. Its status
//! [`Status::IN_FRAMES`] asks for the same in frames. So nobody but the owner ever touches the owner's memory, and
//! a descriptor holds no key.
//!
//! The tag is the initiator's number of the operation, never used twice. An initiator has at most [`ACTIVE_MAX`]
//! under way with one owner, and an owner serves no more.

use std::{collections::VecDeque, sync::Arc};

use hg_na::{Error, LocalSlice, Peer, Rights, Token};
use rustc_hash::FxHashMap;

use crate::{
    fabric::Grant,
    wire::{Kind, Reader},
};
use hg_na_parts::regions::{CLAIM_LEN, Claim, Entry, Regions};

/// Operations that one initiator has under way with one owner.
pub(crate) const ACTIVE_MAX: usize = 32;
/// Claim, offset and length.
pub(crate) const PREFACE: usize = CLAIM_LEN + 16;
/// Status and two numbers.
pub(crate) const STATUS: usize = 17;

/// A put or get of this side.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) peer: Peer,
    pub(crate) token: Token,
    pub(crate) is_put: bool,
    pub(crate) slice: LocalSlice,
    pub(crate) entry: Arc<Entry>,
    pub(crate) claim: Vec<u8>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Bytes that have left (put) or come (get).
    pub(crate) moved: u64,
    pub(crate) is_announced: bool,
    /// Its memory is lent to the owner; the endpoint's number of it.
    pub(crate) lent: Option<usize>,
    /// It cannot be lent.
    pub(crate) in_frames: bool,
}

impl Transfer {
    /// Writes claim, offset and length.
    pub(crate) fn preface(&self, into: &mut [u8]) {
        into[..CLAIM_LEN].copy_from_slice(&self.claim);
        into[CLAIM_LEN..CLAIM_LEN + 8].copy_from_slice(&self.offset.to_le_bytes());
        into[CLAIM_LEN + 8..PREFACE].copy_from_slice(&self.len.to_le_bytes());
    }
}

/// How an operation ended at its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status {
    code: u8,
    numbers: [u64; 2],
}

impl Status {
    pub(crate) const DONE: Self = Self { code: 0, numbers: [0; 2] };
    pub(crate) const STALE: Self = Self { code: 1, numbers: [0; 2] };
    /// Lent memory cannot be reached: the same again, in frames.
    pub(crate) const IN_FRAMES: Self = Self { code: 6, numbers: [0; 2] };
    /// It was given up.
    pub(crate) const ABORTED: Self = Self { code: 5, numbers: [0; 2] };

    fn of(error: &Error) -> Self {
        let (code, numbers) = match error {
            Error::StaleDescriptor => (1, [0; 2]),
            Error::Denied { granted, needed } => {
                (2, [u64::from(granted.bits()), u64::from(needed.bits())])
            }
            Error::OutOfRange { size, .. } => (3, [*size, 0]),
            Error::BadDescriptor(_) => (4, [0; 2]),
            _ => (5, [0; 2]),
        };
        Self { code, numbers }
    }

    /// What the initiator is told.
    pub(crate) fn error(self, (offset, len): (u64, u64)) -> Option<Error> {
        let rights = |bits: u64| Rights::from_bits_truncate(u8::try_from(bits).unwrap_or(0));
        match self.code {
            0 => None,
            1 => Some(Error::StaleDescriptor),
            2 => Some(Error::Denied {
                granted: rights(self.numbers[0]),
                needed: rights(self.numbers[1]),
            }),
            3 => Some(Error::OutOfRange { offset, len, size: self.numbers[0] }),
            4 => Some(Error::BadDescriptor("its owner cannot read it")),
            _ => Some(Error::Unsupported("a transfer that its owner refuses")),
        }
    }

    pub(crate) fn encode(self, into: &mut [u8]) {
        into[0] = self.code;
        into[1..9].copy_from_slice(&self.numbers[0].to_le_bytes());
        into[9..STATUS].copy_from_slice(&self.numbers[1].to_le_bytes());
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let [code] = reader.array()?;
        let numbers = [reader.u64()?, reader.u64()?];
        (reader.0.is_empty() && code <= 6).then_some(Self { code, numbers })
    }
}

/// Something that this side sends as an owner.
#[derive(Debug)]
pub(crate) enum Serve {
    /// Bytes of a get.
    Data { id: u64, entry: Arc<Entry>, offset: u64, left: u64 },
    /// Bytes to or from memory that the initiator has lent.
    Move(Move),
    /// The end of an operation. Of memory that is lent (`is_awaited`) it is told although the operation was given up.
    Ended { id: u64, status: Status, is_awaited: bool },
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

/// Moves of one transfer that libfabric has.
#[derive(Debug, Default)]
pub(crate) struct Moving {
    pub(crate) pending: usize,
    /// Nothing is left to be handed over.
    pub(crate) is_handed: bool,
    pub(crate) has_failed: bool,
}

impl Serve {
    fn id(&self) -> u64 {
        match self {
            Self::Data { id, .. } | Self::Ended { id, .. } | Self::Move(Move { id, .. }) => *id,
        }
    }
}

/// A put that is coming in.
#[derive(Debug)]
struct Incoming {
    entry: Option<Arc<Entry>>,
    offset: u64,
    left: u64,
    status: Status,
}

/// Transfers of one connection.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Own transfers that have something to send, in order.
    pub(crate) asks: VecDeque<u64>,
    /// Own transfers that the owner knows of.
    pub(crate) active: usize,
    /// Own transfers that were given up.
    pub(crate) aborts: VecDeque<u64>,
    pub(crate) serves: VecDeque<Serve>,
    incoming: FxHashMap<u64, Incoming>,
    pub(crate) moving: FxHashMap<u64, Moving>,
}

impl Work {
    /// Whether there is something to send, credits aside.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.aborts.is_empty() || !self.serves.is_empty() || !self.asks.is_empty()
    }

    /// A frame that asks something of this side as an owner.
    ///
    /// # Errors
    /// What the other side has done wrong.
    pub(crate) fn asked(
        &mut self,
        regions: &Regions,
        kind: Kind,
        id: u64,
        content: &[u8],
    ) -> Result<(), &'static str> {
        match kind {
            Kind::GetLent | Kind::PutLent => {
                self.check_active(id)?;
                self.move_lent(regions, kind == Kind::GetLent, id, content)
            }
            Kind::Get | Kind::Put => {
                self.check_active(id)?;
                if self.incoming.contains_key(&id) {
                    return Err("a number of a transfer that is under way");
                }
                let (preface, bytes) =
                    content.split_at_checked(PREFACE).ok_or("a transfer that is cut short")?;
                let mut reader = Reader(&preface[CLAIM_LEN..]);
                let (Some(offset), Some(len)) = (reader.u64(), reader.u64()) else {
                    return Err("a transfer that is cut short");
                };
                let claim = &preface[..CLAIM_LEN];
                if kind == Kind::Get {
                    self.get(regions, id, claim, (offset, len));
                    return if bytes.is_empty() { Ok(()) } else { Err("a get with bytes") };
                }
                let found = check(regions, claim, Rights::WRITE, (offset, len));
                let (entry, status) = match found {
                    Ok(entry) => (Some(entry), Status::DONE),
                    Err(error) => (None, Status::of(&error)),
                };
                self.incoming.insert(id, Incoming { entry, offset, left: len, status });
                self.take_bytes(id, bytes)
            }
            Kind::PutData if content.is_empty() => Err("a part of a put without bytes"),
            Kind::PutData => self.take_bytes(id, content),
            Kind::Abort => {
                self.incoming.remove(&id);
                let was_lent =
                    self.serves.iter().any(|it| matches!(it, Serve::Move(it) if it.id == id));
                self.serves.retain(|serve| {
                    serve.id() != id || matches!(serve, Serve::Ended { is_awaited: true, .. })
                });
                if was_lent || self.moving.contains_key(&id) {
                    self.end_moves(id, Status::ABORTED);
                }
                Ok(())
            }
            _ => Err("a frame that asks nothing"),
        }
    }

    fn check_active(&self, id: u64) -> Result<(), &'static str> {
        let handed = self.moving.values().filter(|moving| moving.is_handed).count();
        if self.serves.len() + self.incoming.len() + handed >= ACTIVE_MAX {
            return Err("more transfers than it may have under way");
        }
        if self.moving.contains_key(&id) {
            return Err("a number of a transfer that is under way");
        }
        Ok(())
    }

    fn move_lent(
        &mut self,
        regions: &Regions,
        is_get: bool,
        id: u64,
        content: &[u8],
    ) -> Result<(), &'static str> {
        let (claim, numbers) =
            content.split_first_chunk::<CLAIM_LEN>().ok_or("a transfer that is cut short")?;
        let mut reader = Reader(numbers);
        let (Some(offset), Some(len), Some(address), Some(key), []) =
            (reader.u64(), reader.u64(), reader.u64(), reader.u64(), reader.0)
        else {
            return Err("a transfer that is cut short, or too long");
        };
        let needed = if is_get { Rights::READ } else { Rights::WRITE };
        self.serves.push_back(match check(regions, claim, needed, (offset, len)) {
            Ok(_) if len == 0 => Serve::Ended { id, status: Status::DONE, is_awaited: true },
            Ok(entry) => {
                let grant = Grant { address, key };
                Serve::Move(Move { id, entry, is_get, offset, left: len, grant })
            }
            Err(error) => Serve::Ended { id, status: Status::of(&error), is_awaited: true },
        });
        Ok(())
    }

    /// No further move of a transfer is made: its end is told when the last one is over.
    pub(crate) fn end_moves(&mut self, id: u64, status: Status) {
        match self.moving.get_mut(&id) {
            Some(moving) if moving.pending > 0 => {
                (moving.is_handed, moving.has_failed) = (true, true);
            }
            _ => {
                self.moving.remove(&id);
                self.serves.push_back(Serve::Ended { id, status, is_awaited: true });
            }
        }
    }

    /// One move is over. `Some`: it was the last of its transfer.
    pub(crate) fn moved(&mut self, id: u64, is_failed: bool) -> Option<Status> {
        let moving = self.moving.get_mut(&id)?;
        moving.pending -= 1;
        moving.has_failed |= is_failed;
        if moving.pending > 0 || !moving.is_handed {
            return None;
        }
        let has_failed = moving.has_failed;
        self.moving.remove(&id);
        Some(if has_failed { Status::IN_FRAMES } else { Status::DONE })
    }

    fn get(&mut self, regions: &Regions, id: u64, claim: &[u8], (offset, len): (u64, u64)) {
        let serve = match check(regions, claim, Rights::READ, (offset, len)) {
            Ok(_) if len == 0 => Serve::Ended { id, status: Status::DONE, is_awaited: false },
            Ok(entry) => Serve::Data { id, entry, offset, left: len },
            Err(error) => Serve::Ended { id, status: Status::of(&error), is_awaited: false },
        };
        self.serves.push_back(serve);
    }

    /// Bytes of a put. Those of one that was given up are nobody's.
    fn take_bytes(&mut self, id: u64, bytes: &[u8]) -> Result<(), &'static str> {
        let Some(put) = self.incoming.get_mut(&id) else { return Ok(()) };
        let len = bytes.len() as u64;
        if len > put.left {
            return Err("more bytes of a put than announced");
        }
        if let Some(entry) = &put.entry {
            let copied = entry.with(|memory| hg_na_memory::copy_in(memory, put.offset, bytes));
            if let Err(error) = copied.unwrap_or(Err(Error::StaleDescriptor)) {
                (put.entry, put.status) = (None, Status::of(&error));
            }
        }
        put.offset += len;
        put.left -= len;
        if put.left == 0 {
            let status = put.status;
            self.incoming.remove(&id);
            self.serves.push_back(Serve::Ended { id, status, is_awaited: false });
        }
        Ok(())
    }
}

/// Token, rights and bounds, before anything is touched.
fn check(
    regions: &Regions,
    claim: &[u8],
    needed: Rights,
    (offset, len): (u64, u64),
) -> Result<Arc<Entry>, Error> {
    let entry = regions.find(&Claim::decode(claim)?)?;
    entry.check(needed, offset, len)?;
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use hg_na::{Memory, RegionState as _};

    use hg_na_memory::ForkGuard;
    use hg_na_parts::regions::ServedRegion;

    use super::*;

    fn preface(claim: &[u8], offset: u64, len: u64) -> Vec<u8> {
        [claim, &offset.to_le_bytes(), &len.to_le_bytes()].concat()
    }

    #[test]
    fn a_put_lands_in_order_and_ends_with_its_last_byte() {
        let regions = Regions::new(Arc::new(ForkGuard::new().unwrap())).unwrap();
        let region =
            ServedRegion::register(&regions, Memory::from(vec![0; 8]), Rights::WRITE).unwrap();
        let claim = region.descriptor().opaque().to_vec();
        let mut work = Work::default();
        let first = [preface(&claim, 2, 5), b"ab".to_vec()].concat();
        work.asked(&regions, Kind::Put, 1, &first).unwrap();
        assert!(work.serves.is_empty());
        work.asked(&regions, Kind::PutData, 1, b"cde").unwrap();
        assert!(matches!(
            work.serves.pop_front(),
            Some(Serve::Ended { id: 1, status: Status::DONE, .. })
        ));
        assert_eq!(region.unregister().unwrap().into_vec().unwrap(), b"\0\0abcde\0");
    }

    #[test]
    fn forged_and_forbidden_transfers_end_with_their_reason_and_touch_nothing() {
        let regions = Regions::new(Arc::new(ForkGuard::new().unwrap())).unwrap();
        let region =
            ServedRegion::register(&regions, Memory::from(vec![7; 8]), Rights::READ).unwrap();
        let claim = region.descriptor().opaque().to_vec();
        let mut forged = claim.clone();
        forged[30] ^= 1;
        let mut work = Work::default();
        let cases: [(Kind, &[u8], u64, u8); 4] = [
            (Kind::Put, &claim, 0, 2),
            (Kind::Get, &forged, 0, 1),
            (Kind::Get, &claim, 5, 3),
            (Kind::Get, &claim, u64::MAX, 3),
        ];
        for (kind, claim, offset, code) in cases {
            work.asked(&regions, kind, 9, &preface(claim, offset, 4)).unwrap();
            if kind == Kind::Put {
                work.asked(&regions, Kind::PutData, 9, b"abcd").unwrap();
            }
            let Some(Serve::Ended { status, .. }) = work.serves.pop_front() else { panic!() };
            assert_eq!(status.code, code);
        }
        assert_eq!(region.unregister().unwrap().into_vec().unwrap(), [7; 8]);
    }

    #[test]
    fn the_end_of_a_lent_transfer_is_told_when_it_was_given_up_meanwhile() {
        let regions = Regions::new(Arc::new(ForkGuard::new().unwrap())).unwrap();
        let region =
            ServedRegion::register(&regions, Memory::from(vec![0; 8]), Rights::all()).unwrap();
        let claim = region.descriptor().opaque().to_vec();
        let mut work = Work::default();
        let lent = [preface(&claim, 0, 4), vec![0; 16]].concat();
        let told = |work: &mut Work, id| {
            work.asked(&regions, Kind::Abort, id, b"").unwrap();
            let end = work.serves.pop_front();
            matches!(end, Some(Serve::Ended { id: of, .. }) if of == id) && work.serves.is_empty()
        };
        // Before its first move, between its moves, and after them.
        work.asked(&regions, Kind::GetLent, 1, &lent).unwrap();
        assert!(told(&mut work, 1));
        work.asked(&regions, Kind::PutLent, 2, &lent).unwrap();
        work.moving.insert(2, Moving::default());
        assert!(told(&mut work, 2));
        work.end_moves(3, Status::DONE);
        assert!(told(&mut work, 3));
        // In frames its initiator waits for nothing.
        work.asked(&regions, Kind::Get, 4, &preface(&claim, 0, 0)).unwrap();
        assert!(!told(&mut work, 4));
    }

    #[test]
    fn initiators_that_break_the_rules_are_caught() {
        let regions = Regions::new(Arc::new(ForkGuard::new().unwrap())).unwrap();
        let region =
            ServedRegion::register(&regions, Memory::from(vec![0; 8]), Rights::all()).unwrap();
        let claim = region.descriptor().opaque().to_vec();
        let mut work = Work::default();
        assert!(work.asked(&regions, Kind::Get, 1, &preface(&claim, 0, 4)[1..]).is_err());
        work.asked(&regions, Kind::Put, 1, &preface(&claim, 0, 4)).unwrap();
        assert!(work.asked(&regions, Kind::Put, 1, &preface(&claim, 0, 4)).is_err());
        assert!(work.asked(&regions, Kind::PutData, 1, b"abcde").is_err());
        assert!(work.asked(&regions, Kind::PutData, 1, b"").is_err());
        for id in 2..=ACTIVE_MAX as u64 {
            work.asked(&regions, Kind::Get, id, &preface(&claim, 0, 4)).unwrap();
        }
        assert!(work.asked(&regions, Kind::Get, 99, &preface(&claim, 0, 4)).is_err());
        work.asked(&regions, Kind::Abort, 2, b"").unwrap();
        work.asked(&regions, Kind::Get, 99, &preface(&claim, 0, 4)).unwrap();
    }

    #[test]
    fn a_status_survives_its_wire_form() {
        let status = Status::of(&Error::Denied { granted: Rights::READ, needed: Rights::WRITE });
        let mut bytes = [0; STATUS];
        status.encode(&mut bytes);
        assert_eq!(Status::decode(&bytes), Some(status));
        assert!(matches!(status.error((0, 0)), Some(Error::Denied { .. })));
        bytes[0] = 7;
        assert_eq!(Status::decode(&bytes), None);
    }
}
