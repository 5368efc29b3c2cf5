//! Frames in: each is checked, its bytes are copied out, and libfabric has its memory back.

use std::mem;

use hg_na::{Completion, Error, GoneReason, OpId, Peer, Reached, Returned};

use crate::{
    context::OfiContext,
    fabric::Arrival,
    link::{Phase, Whole},
    transfer::{Status, Transfer},
    wire::{Header, Kind},
};

/// The lanes of messages.
const CONTROL: usize = 0;
const EXPECTED: usize = 1;
const UNEXPECTED: usize = 2;
const TRANSFERS: usize = 3;

/// Where a frame lies.
pub(crate) enum Frame {
    /// In libfabric's memory.
    Lent(Arrival),
    /// In this process's.
    Near(Vec<u8>),
}

/// What a frame came to.
enum Came {
    /// Nothing that anybody waits for.
    Nothing,
    Message(Whole),
    /// This side serves a transfer.
    Asked,
    /// A transfer of this side's has ended.
    Ended(Transfer, u64, Option<Error>),
    /// The owner cannot reach memory that was lent to it.
    InFrames(u64),
    /// It needs memory no more whose transfer was given up.
    Returned(usize),
    Wrong(&'static str),
}

impl OfiContext {
    /// Takes a frame. One that names no connection, or has the wrong key, is nobody's: a stranger's, or late.
    #[inline]
    pub(crate) fn frame_came(&mut self, frame: &Frame) {
        let Some(endpoint) = &self.endpoint else { return };
        let bytes = match frame {
            Frame::Lent(arrival) => endpoint.arrived(*arrival),
            Frame::Near(bytes) => bytes,
        };
        let found = Header::decode(bytes);
        let came = found.and_then(|(header, content)| {
            let place = usize::try_from(header.link).ok()?;
            let link = self.links.get_mut(place)?.as_deref_mut()?;
            let listens = matches!(link.phase, Phase::Open | Phase::Draining { .. });
            if link.key != header.key || !listens {
                return None;
            }
            if let Err(why) = link.came(&header) {
                return Some((header, Came::Wrong(why)));
            }
            let came = match header.kind {
                Kind::Credit => Came::Nothing,
                Kind::Control | Kind::Expected | Kind::Unexpected => {
                    match link.assemble(&header, content) {
                        Ok(whole) => whole.map_or(Came::Nothing, Came::Message),
                        Err(why) => Came::Wrong(why),
                    }
                }
                Kind::Get
                | Kind::Put
                | Kind::PutData
                | Kind::Abort
                | Kind::GetLent
                | Kind::PutLent => {
                    link.took(TRANSFERS);
                    let regions = &self.shared.regions;
                    match link.work.asked(regions, header.kind, header.tag, content) {
                        Ok(()) => Came::Asked,
                        Err(why) => Came::Wrong(why),
                    }
                }
                Kind::GetData | Kind::Ended => {
                    link.took(TRANSFERS);
                    let peer = link.peer;
                    let abandoned = self.abandoned.get(&header.tag);
                    match abandoned.filter(|it| it.0 == peer) {
                        Some((_, number)) => Came::Returned(*number),
                        None => take_answer(&mut self.transfers, peer, &header, content),
                    }
                }
            };
            Some((header, came))
        });
        if let Frame::Lent(arrival) = frame {
            self.endpoint().was_seen(*arrival);
        }
        let Some((header, came)) = came else { return };
        let place = header.link;
        match came {
            Came::Nothing | Came::Asked => {}
            Came::Message(whole) => self.deliver(place, whole),
            Came::Ended(transfer, serial, error) => {
                self.transfer_ended(place, transfer, serial, error)
            }
            Came::InFrames(serial) => self.lend_no_more(place, serial),
            Came::Returned(number) => self.returned(place, header.tag, number),
            Came::Wrong(why) => return self.misbehaved(place, why),
        }
        // Credits have come, or are owed, or something is to be served.
        let Some(link) = self.link(place) else { return };
        let can_send = link.waiting.iter().any(|queue| !queue.is_empty()) || link.work.is_waiting();
        if !link.is_busy && (can_send || link.owes_credits()) {
            self.mark_busy(place);
        }
    }

    fn deliver(&mut self, place: u32, whole: Whole) {
        let admission = self.admission;
        let Some(link) = self.link(place) else { return };
        let from = link.peer;
        match whole {
            Whole::Control(message) => {
                link.took(CONTROL);
                self.finished.push(Completion::Control { from, message });
            }
            Whole::Unexpected(message)
                if admission && link.is_admitted && link.withheld.is_empty() =>
            {
                link.took(UNEXPECTED);
                self.finished.push(Completion::Unexpected { from, message });
            }
            Whole::Unexpected(message) => {
                link.withheld.push_back(message);
                self.await_admission(place);
            }
            Whole::Expected(tag, message) => {
                link.took(EXPECTED);
                // One without a receive is late.
                if let Some(receive) = link.receives.take(tag) {
                    let id = OpId { scope: place, serial: receive.serial };
                    self.finish(id, receive.token, None, Returned::Message(message));
                }
            }
        }
    }

    /// Whether there may be messages to be admitted.
    pub(crate) fn has_admissible(&self) -> bool {
        self.admission && !self.withholding.is_empty()
    }

    /// Lists a connection with withheld messages. One to which admission is closed is not listed: nobody looks at it.
    pub(crate) fn await_admission(&mut self, place: u32) {
        let Some(link) = self.link(place) else { return };
        if link.is_admitted && !link.withheld.is_empty() && !link.is_withholding {
            link.is_withholding = true;
            self.withholding.push(place);
        }
    }

    /// Hands out what waited for admission; says whether there was any.
    pub(crate) fn admit(&mut self) -> bool {
        if !self.has_admissible() {
            return false;
        }
        for place in mem::take(&mut self.withholding) {
            let Some(link) = self.link(place) else { continue };
            link.is_withholding = false;
            if !link.is_admitted {
                continue;
            }
            let (from, requests) = (link.peer, mem::take(&mut link.withheld));
            requests.iter().for_each(|_| link.took(UNEXPECTED));
            let (owes, ended) = (link.owes_credits(), matches!(link.phase, Phase::Ended { .. }));
            let unexpected = |message| Completion::Unexpected { from, message };
            self.finished.extend(requests.into_iter().map(unexpected));
            if ended {
                self.bury(place);
            } else if owes {
                self.mark_busy(place);
            }
        }
        true
    }

    fn transfer_ended(
        &mut self,
        place: u32,
        transfer: Transfer,
        serial: u64,
        error: Option<Error>,
    ) {
        if let Some(number) = transfer.lent {
            self.endpoint().revoke(number);
        }
        if let Some(link) = self.link(place) {
            link.work.active -= 1;
            // A put that failed early has not sent everything.
            link.work.asks.retain(|ask| *ask != serial);
        }
        self.tell_room(place);
        let id = OpId { scope: place, serial };
        let error = error.map(|error| (error, Reached::Unknown));
        self.finish(id, transfer.token, error, Returned::Slice(transfer.slice));
    }

    /// Bad input costs its sender the connection.
    pub(crate) fn misbehaved(&mut self, place: u32, why: &'static str) {
        tracing::warn!(place, why, "a peer broke the protocol");
        self.refuse(place, why);
        self.end_now(place, GoneReason::Misbehaved(why.into()));
    }
}

/// An owner's answer. One to a transfer that was given up is nobody's.
fn take_answer(
    transfers: &mut rustc_hash::FxHashMap<u64, Transfer>,
    peer: Peer,
    header: &Header,
    content: &[u8],
) -> Came {
    let serial = header.tag;
    let of_peer = |transfer: &&mut Transfer| transfer.peer == peer && transfer.is_announced;
    let Some(transfer) = transfers.get_mut(&serial).filter(of_peer) else { return Came::Nothing };
    if header.kind == Kind::Ended {
        let Some(status) = Status::decode(content) else {
            return Came::Wrong("a status that is none");
        };
        if status == Status::IN_FRAMES && transfer.lent.is_some() {
            return Came::InFrames(serial);
        }
        let error = status.error((transfer.offset, transfer.len));
        let is_whole = transfer.moved == transfer.len || transfer.lent.is_some();
        if error.is_none() && !is_whole {
            return Came::Wrong("an end before the last byte");
        }
        let ended = transfers.remove(&serial);
        return ended.map_or(Came::Nothing, |transfer| Came::Ended(transfer, serial, error));
    }
    let len = content.len() as u64;
    if transfer.is_put || transfer.lent.is_some() || len == 0 || len > transfer.len - transfer.moved
    {
        return Came::Wrong("bytes that were not asked for");
    }
    let offset = transfer.slice.offset() + transfer.moved;
    let copied = transfer.entry.with(|memory| hg_na_memory::copy_in(memory, offset, content));
    let error = copied.unwrap_or(Err(Error::StaleDescriptor)).err();
    transfer.moved += len;
    if transfer.moved < transfer.len && error.is_none() {
        return Came::Nothing;
    }
    let ended = transfers.remove(&serial);
    ended.map_or(Came::Nothing, |transfer| Came::Ended(transfer, serial, error))
}
