//! Puts and gets that this side has posted to one peer.
//!
//! ```text
//!  waiting -announced-> open -last word-> ended
//!     |                  | cancelled: its poster is told at once
//!     +- cancelled       +-> open without a poster -last word-> forgotten
//! ```
//! The owner says one last word on each that was announced: a verdict, or, where the transport has it so
//! ([`Initiator::finish`]), the last byte of a get. Until then a transfer stays open, so that data which is still on its way
//! finds its place or is passed over, and that memory which was lent to the owner is kept.
//!
//! Puts stream one after the other.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use hg_na::{Completion, Error, GoneReason, Reached};
use hg_na_parts::regions::Entry;

use crate::{
    transfer::{Loan, Transfer},
    verdict::Verdict,
};

/// Bytes of a region that are next to be sent.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Names the transfer.
    pub serial: u64,
    /// Where they lie.
    pub entry: Arc<Entry>,
    /// And from where on.
    pub offset: u64,
    /// How many.
    pub len: u64,
    /// Nothing follows.
    pub is_last: bool,
}

/// One that the owner was told of.
#[derive(Debug)]
struct Open {
    /// `None`: it has ended for its poster.
    transfer: Option<Transfer>,
    is_put: bool,
    len: u64,
    /// Bytes sent (put) or received (get).
    passed: u64,
    /// The memory that the transport has lent to the owner for it.
    lent: Option<Loan>,
}

impl Open {
    fn is_whole(&self) -> bool {
        self.passed == self.len || self.lent.is_some()
    }

    /// What the owner has written is not in the region: its memory was left to another peer meanwhile, and a copy has taken its place.
    fn is_elsewhere(&self) -> bool {
        let (Some(lent), Some(it)) = (self.lent, &self.transfer) else { return false };
        !self.is_put && it.entry.times_left() != lent.times_left
    }
}

/// What is left to be done for an operation that was given up: its own memory goes back, so nothing of it may be sent from there any more.
#[derive(Debug, Default)]
pub struct Cancelled {
    /// The owner is to be told.
    pub is_told: bool,
    /// Its memory is lent, for writing: the owner may go on writing.
    pub written: Option<Arc<Entry>>,
    /// Memory that was lent for it, of which the owner was not told.
    pub lent: Option<usize>,
}

/// What an owner's last word has come to.
#[derive(Debug, Default)]
pub struct Ended {
    /// Of its operation, if that had not ended before.
    pub completion: Option<Completion>,
    /// No more of this put is sent; the owner is to be told that.
    pub is_cut: bool,
    /// Lent memory that the owner needs no more.
    pub lent: Option<usize>,
}

/// Memory that was lent for a transfer whose owner has gone, and was told of it.
#[derive(Debug)]
pub struct Lent {
    /// The transport's name of it.
    pub lent: usize,
    /// It is written by the owner, and its operation has not ended before.
    pub written: Option<Arc<Entry>>,
}

/// Leaves each of these regions to a peer that may go on writing it, once ([`Entry::abandon`]).
pub fn abandon(written: impl Iterator<Item = Arc<Entry>>) {
    let mut done: Vec<Arc<Entry>> = Vec::new();
    for entry in written {
        if !done.iter().any(|it| Arc::ptr_eq(it, &entry)) {
            entry.abandon();
            done.push(entry);
        }
    }
}

/// All transfers of this side's with one peer.
#[derive(Debug, Default)]
pub struct Initiator {
    waiting: VecDeque<Transfer>,
    open: BTreeMap<u64, Open>,
    /// Puts with data to be sent.
    streaming: VecDeque<u64>,
}

impl Initiator {
    /// How many have not had their owner's last word.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len() + self.open.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.open.is_empty()
    }

    /// Whether data may come for one.
    #[must_use]
    pub fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Adds one.
    pub fn post(&mut self, transfer: Transfer) {
        self.waiting.push_back(transfer);
    }

    /// The next one that the owner is to be told of, which then has no more than `most` of them.
    pub fn next(&mut self, most: usize) -> Option<&mut Transfer> {
        if self.open.len() < most { self.waiting.front_mut() } else { None }
    }

    /// The owner was told of the next one, together with its first `passed` bytes; or with what was lent for it ([`Transfer::lent`]).
    pub fn announced(&mut self, passed: u64) {
        let Some(mut transfer) = self.waiting.pop_front() else { return };
        let lent = transfer.lent.take();
        let (serial, len, is_put) = (transfer.id.serial, transfer.access.len, transfer.is_put);
        if is_put && passed < len && lent.is_none() {
            self.streaming.push_back(serial);
        }
        let transfer = Some(transfer);
        self.open.insert(serial, Open { transfer, is_put, len, passed, lent });
    }

    /// The next one cannot be made: it ends.
    pub fn refuse_next(&mut self, why: &'static str) -> Option<Completion> {
        let transfer = self.waiting.pop_front()?;
        let reached = transfer.reached();
        Some(transfer.end(Some((Error::Unsupported(why), reached))))
    }

    /// Whether bytes of a put are to be sent.
    #[must_use]
    pub fn is_streaming(&self) -> bool {
        !self.streaming.is_empty()
    }

    /// The next bytes of a put, `max` at most; [`Initiator::sent`] says that they have left.
    #[must_use]
    pub fn next_piece(&self, max: u64) -> Option<Piece> {
        let serial = *self.streaming.front()?;
        let Open { transfer, passed, len: all, .. } = self.open.get(&serial)?;
        let put = transfer.as_ref()?;
        let len = (all - passed).min(max);
        let (entry, offset) = (Arc::clone(&put.entry), put.slice.offset() + passed);
        Some(Piece { serial, entry, offset, len, is_last: passed + len == *all })
    }

    /// `len` bytes of the put that streams have left.
    pub fn sent(&mut self, len: u64) {
        let serial = self.streaming.front();
        let Some(open) = serial.and_then(|serial| self.open.get_mut(serial)) else { return };
        open.passed += len;
        if open.passed == open.len {
            self.streaming.pop_front();
        }
    }

    /// Ends one early.
    pub fn cancel(&mut self, serial: u64) -> Option<(Completion, Cancelled)> {
        if let Some(at) = self.waiting.iter().position(|it| it.id.serial == serial) {
            let transfer = self.waiting.remove(at)?;
            let lent = transfer.lent.map(|it| it.name);
            let reached = transfer.reached();
            let completion = transfer.end(Some((Error::Cancelled, reached)));
            return Some((completion, Cancelled { lent, ..Cancelled::default() }));
        }
        let open = self.open.get_mut(&serial)?;
        let transfer = open.transfer.take()?;
        self.streaming.retain(|streaming| *streaming != serial);
        let is_told = !(open.is_put && open.passed == open.len);
        let is_written = open.lent.is_some() && !open.is_put;
        let written = is_written.then(|| Arc::clone(&transfer.entry));
        let completion = transfer.end(Some((Error::Cancelled, Reached::Unknown)));
        Some((completion, Cancelled { is_told, written, lent: None }))
    }

    /// Where the next `len` bytes of a get belong; `None`: nowhere, they are passed over.
    ///
    /// # Errors
    /// What the peer has done wrong.
    pub fn sink(&self, serial: u64, len: u64) -> Result<Option<(Arc<Entry>, u64)>, &'static str> {
        let open = self.open.get(&serial).filter(|open| !open.is_put && open.lent.is_none());
        let open = open.ok_or("data that nobody asked for")?;
        if len > open.len - open.passed {
            return Err("more data than announced");
        }
        let place = |get: &Transfer| (Arc::clone(&get.entry), get.slice.offset() + open.passed);
        Ok(open.transfer.as_ref().map(place))
    }

    /// `len` bytes of a get have come; [`Initiator::sink`] has allowed them. Says whether they were the last.
    pub fn arrived(&mut self, serial: u64, len: u64) -> bool {
        self.open.get_mut(&serial).is_some_and(|open| {
            open.passed += len;
            open.passed == open.len
        })
    }

    /// The last byte of a get is the owner's last word on it, over this transport.
    pub fn finish(&mut self, serial: u64) -> Option<Completion> {
        self.open.remove(&serial)?.transfer.map(|transfer| transfer.end(None))
    }

    /// The owner's verdict.
    ///
    /// # Errors
    /// What the peer has done wrong. The transfer ends with its peer then.
    pub fn ended(&mut self, serial: u64, verdict: Verdict) -> Result<Ended, &'static str> {
        let open = self.open.get(&serial).ok_or("a verdict on nothing")?;
        if verdict == Verdict::InFrames && open.lent.is_none() {
            return Err("frames that were asked for once more");
        }
        if verdict == Verdict::Ok && !open.is_whole() {
            return Err("a transfer that ended before its last byte");
        }
        let is_again =
            verdict == Verdict::InFrames || (verdict == Verdict::Ok && open.is_elsewhere());
        let Some(Open { transfer, is_put, len, passed, lent, .. }) = self.open.remove(&serial)
        else {
            return Ok(Ended::default());
        };
        self.streaming.retain(|streaming| *streaming != serial);
        let is_cut = is_put && passed < len && lent.is_none() && transfer.is_some();
        let completion = match transfer {
            Some(transfer) if is_again => {
                self.waiting.push_back(Transfer { in_frames: true, has_begun: true, ..transfer });
                None
            }
            Some(transfer) => {
                let error = verdict.error(transfer.needed(), transfer.access.offset, len);
                Some(transfer.end(error.map(|error| (error, Reached::Unknown))))
            }
            None => None,
        };
        Ok(Ended { completion, is_cut, lent: lent.map(|it| it.name) })
    }

    /// Takes the names of what was lent for transfers of which the owner was not told: nobody reaches it, and it is to be revoked.
    pub fn take_untold(&mut self) -> impl Iterator<Item = usize> {
        self.waiting.iter_mut().filter_map(|it| it.lent.take()).map(|it| it.name)
    }

    /// The peer is gone: ends everything, in the order of posting as far as the owner knows of it. Gives what was lent; what
    /// it was not told of was taken before ([`Initiator::take_untold`]).
    pub fn fail(&mut self, why: &GoneReason, done: &mut Vec<Completion>) -> Vec<Lent> {
        let gone = |reached| Some((Error::PeerGone(why.clone()), reached));
        let mut all = Vec::new();
        for Open { transfer, is_put, lent, .. } in std::mem::take(&mut self.open).into_values() {
            if let Some(lent) = lent {
                let written = transfer.as_ref().filter(|_| !is_put);
                let written = written.map(|it| Arc::clone(&it.entry));
                all.push(Lent { lent: lent.name, written });
            }
            done.extend(transfer.map(|transfer| transfer.end(gone(Reached::Unknown))));
        }
        for transfer in self.waiting.drain(..) {
            let reached = transfer.reached();
            done.push(transfer.end(gone(reached)));
        }
        self.streaming.clear();
        all
    }
}
