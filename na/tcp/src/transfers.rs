//! Puts and gets of one link: those of this side's, and those that it serves for its peer.
//!
//! ```text
//! initiator                                   owner
//!  Put, PutData, PutData ...  ------------->   checks, then writes each piece where it belongs
//!       completes             <-------------   End, once all bytes are in place (or a verdict, early)
//!  Get                        ------------->   checks, queues
//!       into place            <-------------   GetData, GetData ..., End
//!  Cancel                     ------------->   forgets it; End, unless that was said already
//! ```
//! Puts stream one after the other, gets are served one after the other, in pieces between which
//! messages pass. Nothing is held for a transfer but its entry here: data goes from memory to socket and
//! from socket to memory. A serving region is asked for at every piece, so its owner can unregister it
//! at any time.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use hg_na::{
    Completion, Error, GoneReason, LocalSlice, OpId, Peer, Reached, Returned, Rights, Token,
};

use crate::{
    frame::{ACCESS_LEN, Header, Kind, LinkId, PIECE_MAX, TRANSFERS_MAX},
    outbound::{Piece, Source, ended},
    tables::Links,
    verdict::Verdict,
    wire::Wire,
};
use hg_na_parts::regions::{CLAIM_LEN, Claim, Entry, Regions};

/// What a put or get names, as it travels: claim, offset, length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) claim: Claim,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Access {
    fn encode(&self) -> [u8; ACCESS_LEN] {
        let mut bytes = [0; ACCESS_LEN];
        bytes[..CLAIM_LEN].copy_from_slice(&self.claim.encode());
        bytes[CLAIM_LEN..CLAIM_LEN + 8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[CLAIM_LEN + 8..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (claim, rest) = bytes.split_at_checked(CLAIM_LEN)?;
        let (offset, len) = rest.split_first_chunk::<8>()?;
        let (offset, len) = (u64::from_le_bytes(*offset), u64::from_le_bytes(len.try_into().ok()?));
        Some(Self { claim: Claim::decode(claim).ok()?, offset, len })
    }
}

/// A put or get of this side's.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) id: OpId,
    pub(crate) token: Token,
    pub(crate) is_put: bool,
    pub(crate) slice: LocalSlice,
    pub(crate) entry: Arc<Entry>,
    pub(crate) access: Access,
}

impl Transfer {
    fn needed(&self) -> Rights {
        if self.is_put { Rights::WRITE } else { Rights::READ }
    }

    fn end(self, failure: Option<(Error, Reached)>) -> Completion {
        ended(self.id, self.token, failure, Returned::Slice(self.slice))
    }
}

/// One that the owner was told of.
#[derive(Debug)]
struct Open {
    /// `None`: it has ended for its poster, and waits for the owner's last word.
    transfer: Option<Transfer>,
    is_put: bool,
    len: u64,
    /// Bytes sent (put) or received (get).
    passed: u64,
}

/// A put that is being served.
#[derive(Debug)]
struct Incoming {
    /// `None`: refused; its data is passed over.
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

/// All transfers of a link.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    unannounced: VecDeque<Transfer>,
    open: BTreeMap<u64, Open>,
    /// Puts with data to be sent.
    streaming: VecDeque<u64>,
    puts: BTreeMap<u64, Incoming>,
    gets: VecDeque<Outgoing>,
}

impl Transfers {
    /// Whether another one can be posted.
    pub(crate) fn is_full(&self) -> bool {
        self.unannounced.len() + self.open.len() >= TRANSFERS_MAX
    }

    /// Whether half of them are free.
    pub(crate) fn has_room(&self) -> bool {
        self.unannounced.len() + self.open.len() <= TRANSFERS_MAX / 2
    }

    /// Whether data is coming, so that it pays to read frame by frame.
    pub(crate) fn expects_data(&self) -> bool {
        !self.puts.is_empty() || !self.open.is_empty()
    }

    pub(crate) fn post(&mut self, transfer: Transfer) {
        self.unannounced.push_back(transfer);
    }

    /// Tells the owner of what was posted.
    pub(crate) fn announce(&mut self, wire: &mut Wire, side: usize) {
        while let Some(transfer) = self.unannounced.pop_front() {
            let (serial, len, is_put) = (transfer.id.serial, transfer.access.len, transfer.is_put);
            let kind = if is_put { Kind::Put } else { Kind::Get };
            wire.send(kind, side, serial, &transfer.access.encode());
            if is_put && len > 0 {
                self.streaming.push_back(serial);
            }
            self.open.insert(serial, Open { transfer: Some(transfer), is_put, len, passed: 0 });
        }
    }

    /// Ends one early.
    pub(crate) fn cancel(
        &mut self,
        peer: Peer,
        serial: u64,
        wire: Option<(&mut Wire, usize)>,
    ) -> Option<Completion> {
        if let Some(at) = self.unannounced.iter().position(|it| it.id.serial == serial) {
            let transfer = self.unannounced.remove(at)?;
            return Some(transfer.end(Some((Error::Cancelled, Reached::Never))));
        }
        let open = self.open.get_mut(&serial)?;
        let transfer = open.transfer.take()?;
        let is_through = open.is_put && open.passed == open.len;
        if let Some((wire, side)) = wire {
            // Its memory goes back, so what is on its way from there is copied: also the last piece.
            self.stop_streaming(peer, serial, wire);
            if !is_through {
                wire.send(Kind::Cancel, side, serial, &[]);
            }
        }
        Some(transfer.end(Some((Error::Cancelled, Reached::Unknown))))
    }

    /// No more of a put's data is sent than its frame has promised.
    fn stop_streaming(&mut self, peer: Peer, serial: u64, wire: &mut Wire) {
        self.streaming.retain(|streaming| *streaming != serial);
        wire.outbound.detach(peer, serial);
    }

    /// The owner's last word.
    pub(crate) fn ended(
        &mut self,
        peer: Peer,
        serial: u64,
        body: &[u8],
        (wire, side): (&mut Wire, usize),
    ) -> Result<Option<Completion>, &'static str> {
        let verdict = Verdict::decode(body).ok_or("a verdict that makes no sense")?;
        let open = self.open.get(&serial).ok_or("a verdict on nothing")?;
        let is_whole = open.passed == open.len;
        if verdict == Verdict::Ok && !is_whole {
            // It stays, and ends with its peer.
            return Err("a transfer that ended before its last byte");
        }
        let Some(open) = self.open.remove(&serial) else { return Ok(None) };
        let Some(transfer) = open.transfer else { return Ok(None) };
        if open.is_put {
            self.stop_streaming(peer, serial, wire);
            if !is_whole {
                wire.send(Kind::Cancel, side, serial, &[]);
            }
        }
        let Access { offset, len, .. } = transfer.access;
        let error = verdict.error(transfer.needed(), offset, len);
        Ok(Some(transfer.end(error.map(|error| (error, Reached::Unknown)))))
    }

    /// The peer announces a put, or asks for a get.
    pub(crate) fn asked(
        &mut self,
        regions: &Regions,
        header: Header,
        body: &[u8],
        (wire, side): (&mut Wire, usize),
    ) -> Result<(), &'static str> {
        let access = Access::decode(body).ok_or("a transfer that makes no sense")?;
        let (serial, Access { offset, len, .. }) = (header.word, access);
        let is_put = header.kind == Kind::Put;
        if self.puts.len().max(self.gets.len()) >= TRANSFERS_MAX {
            return Err("more transfers than are allowed");
        }
        if is_put && self.puts.contains_key(&serial) {
            return Err("two puts of one serial");
        }
        let needed = if is_put { Rights::WRITE } else { Rights::READ };
        let found = regions.find(&access.claim).and_then(|entry| {
            entry.check(needed, offset, len)?;
            Ok(entry)
        });
        let entry = match found {
            Ok(entry) => Some(entry),
            Err(error) => {
                wire.send(Kind::End, side, serial, &Verdict::of(&error).encode());
                None
            }
        };
        match entry {
            Some(_) if len == 0 => wire.send(Kind::End, side, serial, &Verdict::Ok.encode()),
            entry if is_put && len > 0 => {
                // Where a refused one would have gone was not checked, and does not matter.
                let offset = if entry.is_some() { offset } else { 0 };
                self.puts.insert(serial, Incoming { entry, offset, left: len });
            }
            Some(entry) => {
                self.gets.push_back(Outgoing { serial, entry, offset, left: len });
                wire.has_pieces = true;
            }
            None => {}
        }
        Ok(())
    }

    /// The peer has lost interest.
    pub(crate) fn withdrawn(&mut self, serial: u64, wire: &mut Wire, side: usize) {
        let was_served = match self.puts.remove(&serial) {
            Some(put) => put.entry.is_some(),
            None => match self.gets.iter().position(|get| get.serial == serial) {
                Some(at) => self.gets.remove(at).is_some(),
                // It has ended, and the word about it is on its way.
                None => false,
            },
        };
        if was_served {
            wire.send(Kind::End, side, serial, &Verdict::Cancelled.encode());
        }
    }

    /// Where the next `len` bytes of a transfer belong; `None`: nowhere, they are passed over.
    pub(crate) fn sink(
        &self,
        header: Header,
        len: usize,
    ) -> Result<Option<(Arc<Entry>, u64)>, &'static str> {
        let (left, place) = if header.kind == Kind::PutData {
            let put = self.puts.get(&header.word);
            // After a Cancel, or the last byte, its sender sends no more of it.
            let put = put.ok_or("data of a put that was not announced")?;
            (put.left, put.entry.as_ref().map(|entry| (Arc::clone(entry), put.offset)))
        } else {
            let open = self.open.get(&header.word).filter(|open| !open.is_put);
            let open = open.ok_or("data that nobody asked for")?;
            let place = open
                .transfer
                .as_ref()
                .map(|get| (Arc::clone(&get.entry), get.slice.offset() + open.passed));
            (open.len - open.passed, place)
        };
        if len as u64 > left { Err("more data than announced") } else { Ok(place) }
    }

    /// `len` bytes have come; `sink` has allowed them.
    pub(crate) fn arrived(&mut self, header: Header, len: usize, wire: &mut Wire, side: usize) {
        if header.kind == Kind::GetData {
            if let Some(open) = self.open.get_mut(&header.word) {
                open.passed += len as u64;
            }
            return;
        }
        let Some(put) = self.puts.get_mut(&header.word) else { return };
        put.offset += len as u64;
        put.left -= len as u64;
        if put.left > 0 {
            return;
        }
        if let Some(put) = self.puts.remove(&header.word)
            && put.entry.is_some()
        {
            wire.send(Kind::End, side, header.word, &Verdict::Ok.encode());
        }
    }

    /// The memory of a put was unregistered: the rest of it is passed over.
    pub(crate) fn lost_sink(&mut self, header: Header, wire: &mut Wire, side: usize) {
        if let Some(put) = self.puts.get_mut(&header.word)
            && put.entry.take().is_some()
        {
            wire.send(Kind::End, side, header.word, &Verdict::Stale.encode());
        }
    }

    /// The next piece of a put of this side's.
    pub(crate) fn next_put(&mut self, peer: Peer, link: LinkId) -> Option<Piece> {
        loop {
            let serial = *self.streaming.front()?;
            let Some(open) = self.open.get_mut(&serial).filter(|open| open.transfer.is_some())
            else {
                self.streaming.pop_front();
                continue;
            };
            let put = open.transfer.as_ref()?;
            let len = (open.len - open.passed).min(PIECE_MAX as u64);
            let offset = put.slice.offset() + open.passed;
            let source = Source::Memory { entry: Arc::clone(&put.entry), offset };
            open.passed += len;
            let is_last = open.passed == open.len;
            if is_last {
                self.streaming.pop_front();
            }
            let len = u32::try_from(len).expect("PIECE_MAX fits");
            let header = Header { len, kind: Kind::PutData, link, word: serial };
            return Some(Piece { header, peer, source, is_last, gone: 0 });
        }
    }

    /// The next piece of a get that is served.
    pub(crate) fn next_get(&mut self, peer: Peer, side: usize, wire: &mut Wire) -> Option<Piece> {
        loop {
            let get = self.gets.front_mut()?;
            if get.entry.with(|_| ()).is_none() {
                wire.send(Kind::End, side, get.serial, &Verdict::Stale.encode());
                self.gets.pop_front();
                continue;
            }
            let len = get.left.min(PIECE_MAX as u64);
            let source = Source::Memory { entry: Arc::clone(&get.entry), offset: get.offset };
            get.offset += len;
            get.left -= len;
            let (is_last, serial) = (get.left == 0, get.serial);
            if is_last {
                self.gets.pop_front();
            }
            let len = u32::try_from(len).expect("PIECE_MAX fits");
            let link = wire.link_id(side);
            let header = Header { len, kind: Kind::GetData, link, word: serial };
            return Some(Piece { header, peer, source, is_last, gone: 0 });
        }
    }

    /// The peer is gone: ends everything, oldest first.
    pub(crate) fn fail(&mut self, why: &GoneReason, done: &mut Vec<Completion>) {
        let gone = |reached| Some((Error::PeerGone(why.clone()), reached));
        for open in std::mem::take(&mut self.open).into_values() {
            done.extend(open.transfer.map(|transfer| transfer.end(gone(Reached::Unknown))));
        }
        for transfer in self.unannounced.drain(..) {
            done.push(transfer.end(gone(Reached::Never)));
        }
        *self = Self::default();
    }
}

/// The next piece that a connection may send: this side's puts and the gets that it serves, of both
/// links, in turn.
pub(crate) fn next_piece(links: &mut Links, wire: &mut Wire) -> Option<Piece> {
    const TURNS: usize = 4;
    for _ in 0..TURNS {
        let (side, is_put) = (wire.turn / 2, wire.turn.is_multiple_of(2));
        wire.turn = (wire.turn + 1) % TURNS;
        let Some(peer) = wire.slots[side].peer else { continue };
        let Some(link) = links.find(peer) else { continue };
        let piece = if is_put {
            link.transfers.next_put(peer, wire.link_id(side))
        } else {
            link.transfers.next_get(peer, side, wire)
        };
        if piece.is_some() {
            return piece;
        }
    }
    None
}
