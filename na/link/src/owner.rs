//! Puts and gets that this side serves for one peer, as the owner of the memory: it checks everything first, and asks its
//! table again at every piece, so that memory can be unregistered at any time.
//!
//! ```text
//!  put: asked -> data ... -> last byte: word Ok        refused: word at once, data is passed over
//!  get: asked -> pieces ... -> last one                refused, or without a byte: word
//!  withdrawn: word Cancelled, unless the last word was said
//! ```
//! Words wait until the transport takes them ([`Owner::next_word`]); after the last piece of a get the transport says `Ok`
//! itself, or the piece is the last word ([`crate::initiator`]).

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use hg_na::{Error, Rights};
use hg_na_parts::regions::{Entry, Regions};

use crate::{initiator::Piece, transfer::Access, verdict::Verdict};

/// A put that is being served.
#[derive(Debug)]
struct Incoming {
    /// `None`: refused, or its memory was unregistered; its data is passed over.
    entry: Option<Arc<Entry>>,
    offset: u64,
    left: u64,
}

/// A get that is being served.
#[derive(Debug)]
struct Outgoing {
    serial: u64,
    entry: Arc<Entry>,
    offset: u64,
    left: u64,
}

/// All transfers that are served for one peer.
#[derive(Debug, Default)]
pub struct Owner {
    puts: BTreeMap<u64, Incoming>,
    gets: VecDeque<Outgoing>,
    words: VecDeque<(u64, Verdict)>,
}

impl Owner {
    /// Whether data of a put is coming.
    #[must_use]
    pub fn has_puts(&self) -> bool {
        !self.puts.is_empty()
    }

    /// Whether there is something to be sent: a word, or data of a get.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.words.is_empty() || !self.gets.is_empty()
    }

    /// What is kept for the peer at most, in numbers: transfers, and words.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        (self.puts.len() + self.gets.len(), self.words.len())
    }

    /// The peer announces a put, or asks for a get: one more than it has under way, which shall be `most` at most. Those that the
    /// transport serves in another way are `others`.
    ///
    /// # Errors
    /// What the peer has done wrong.
    pub fn asked(
        &mut self,
        regions: &Regions,
        (is_put, serial): (bool, u64),
        access: Access,
        (others, most): (usize, usize),
    ) -> Result<(), &'static str> {
        self.may_ask(others, most)?;
        if self.puts.contains_key(&serial) || self.gets.iter().any(|get| get.serial == serial) {
            return Err("two transfers of one serial");
        }
        let Access { offset, len, .. } = access;
        let entry = match find(regions, is_put, &access) {
            Ok(entry) => Some(entry),
            Err(error) => {
                self.words.push_back((serial, Verdict::of(&error)));
                None
            }
        };
        match entry {
            Some(_) if len == 0 => self.words.push_back((serial, Verdict::Ok)),
            entry if is_put && len > 0 => {
                // Where a refused one would have gone was not checked, and does not matter.
                let offset = if entry.is_some() { offset } else { 0 };
                self.puts.insert(serial, Incoming { entry, offset, left: len });
            }
            Some(entry) => self.gets.push_back(Outgoing { serial, entry, offset, left: len }),
            None => {}
        }
        Ok(())
    }

    /// Whether the peer may have one more under way.
    ///
    /// # Errors
    /// What it has done wrong.
    pub fn may_ask(&self, others: usize, most: usize) -> Result<(), &'static str> {
        let (transfers, words) = self.held();
        let is_within = transfers + others < most && words < most;
        if is_within { Ok(()) } else { Err("more transfers than are allowed") }
    }

    /// Where the next `len` bytes of a put belong; `None`: nowhere, they are passed over.
    ///
    /// # Errors
    /// What the peer has done wrong.
    pub fn sink(&self, serial: u64, len: u64) -> Result<Option<(Arc<Entry>, u64)>, &'static str> {
        // After a withdrawal, or the last byte, its sender sends no more of it.
        let put = self.puts.get(&serial).ok_or("data of a put that was not announced")?;
        if len > put.left {
            return Err("more data than announced");
        }
        Ok(put.entry.as_ref().map(|entry| (Arc::clone(entry), put.offset)))
    }

    /// `len` bytes of a put have come; [`Owner::sink`] has allowed them.
    pub fn arrived(&mut self, serial: u64, len: u64) {
        let Some(put) = self.puts.get_mut(&serial) else { return };
        put.offset += len;
        put.left -= len;
        if put.left == 0
            && let Some(put) = self.puts.remove(&serial)
            && put.entry.is_some()
        {
            self.words.push_back((serial, Verdict::Ok));
        }
    }

    /// The memory of a put was unregistered: the rest of it is passed over.
    pub fn lost_sink(&mut self, serial: u64) {
        if let Some(put) = self.puts.get_mut(&serial)
            && put.entry.take().is_some()
        {
            self.words.push_back((serial, Verdict::Stale));
        }
    }

    /// The next bytes of a get, `max` at most; [`Owner::sent`] says that they have left.
    pub fn next_piece(&mut self, max: u64) -> Option<Piece> {
        loop {
            let Outgoing { serial, entry, offset, left } = self.gets.front()?;
            if entry.with(|_| ()).is_none() {
                self.lost_source();
                continue;
            }
            let (len, entry) = ((*left).min(max), Arc::clone(entry));
            let is_last = len == *left;
            return Some(Piece { serial: *serial, entry, offset: *offset, len, is_last });
        }
    }

    /// `len` bytes of the get that is served have left.
    pub fn sent(&mut self, len: u64) {
        let Some(get) = self.gets.front_mut() else { return };
        get.offset += len;
        get.left -= len;
        if get.left == 0 {
            self.gets.pop_front();
        }
    }

    /// The memory of the get that is served was unregistered.
    pub fn lost_source(&mut self) {
        if let Some(get) = self.gets.pop_front() {
            self.words.push_back((get.serial, Verdict::Stale));
        }
    }

    /// The peer has lost interest; says whether it was served here.
    pub fn withdrawn(&mut self, serial: u64) -> bool {
        let was_served = match self.puts.remove(&serial) {
            Some(put) => put.entry.is_some(),
            None => match self.gets.iter().position(|get| get.serial == serial) {
                Some(at) => self.gets.remove(at).is_some(),
                // It has ended, and the word about it is on its way.
                None => false,
            },
        };
        if was_served {
            self.words.push_back((serial, Verdict::Cancelled));
        }
        was_served
    }

    /// A word of the transport's own, on what it serves in another way.
    pub fn say(&mut self, serial: u64, verdict: Verdict) {
        self.words.push_back((serial, verdict));
    }

    /// The next word, which stays until [`Owner::said`].
    #[must_use]
    pub fn next_word(&self) -> Option<(u64, Verdict)> {
        self.words.front().copied()
    }

    /// The next word has left.
    pub fn said(&mut self) {
        self.words.pop_front();
    }
}

/// Token, rights and bounds, before anything is touched.
///
/// # Errors
/// What the initiator is told ([`Verdict::of`]).
pub fn find(regions: &Regions, is_put: bool, access: &Access) -> Result<Arc<Entry>, Error> {
    let needed = if is_put { Rights::WRITE } else { Rights::READ };
    let entry = regions.find(&access.claim)?;
    entry.check(needed, access.offset, access.len)?;
    Ok(entry)
}
