//! Frames out: messages and transfers, as credits and the card allow.

use std::sync::Arc;

use hg_na::Peer;
use hg_na_link::{ACCESS_LEN, Lane, Piece, VERDICT_LEN};

use crate::{
    card::Fault,
    context::VerbsContext,
    moves::ACTIVE_MAX,
    settings::LIMITS,
    way::{Phase, ROOM, TRANSFERS, Way},
    wire::{HEADER, Header, Kind},
};

/// Frames that one connection sends before the next has its turn.
const TURN: usize = 64;

/// What sending one frame came to.
pub(crate) enum Step {
    Left,
    /// Nothing to send, or no credits.
    Idle,
    /// The card takes nothing now.
    Stalled,
    Broken(Fault),
}

impl VerbsContext {
    /// Puts a connection on the list of those with something to send.
    pub(crate) fn mark_busy(&mut self, peer: Peer) {
        if let Some(link) = self.links.find(peer) {
            list_busy(&mut link.way, peer.index(), &mut self.busy);
        }
    }

    /// Gives every connection on the list its turn; says whether a frame has left.
    pub(crate) fn send_all(&mut self) -> bool {
        let mut moved = false;
        for place in std::mem::take(&mut self.busy) {
            if let Some(link) = self.links.at(place) {
                link.way.is_busy = false;
                moved |= self.send_link(place);
            }
        }
        moved
    }

    /// One connection's turn; it goes on the list when it has more to send. Says whether a frame has left.
    pub(crate) fn send_link(&mut self, place: u32) -> bool {
        let mut moved = false;
        for _ in 0..TURN {
            match self.step(place) {
                Step::Left => moved = true,
                Step::Idle => {
                    self.flows(place);
                    return moved;
                }
                Step::Stalled => {
                    if moved {
                        self.flows(place);
                    }
                    self.stalled(place);
                    return moved;
                }
                Step::Broken(fault) => {
                    self.way_broke(place, fault);
                    return true;
                }
            }
        }
        // There is more: the next round goes on.
        self.flows(place);
        self.mark_busy_at(place);
        moved
    }

    fn mark_busy_at(&mut self, place: u32) {
        if let Some(link) = self.links.at(place) {
            list_busy(&mut link.way, place, &mut self.busy);
        }
    }

    fn flows(&mut self, place: u32) {
        let Some(link) = self.links.at(place) else { return };
        link.way.is_stalled = false;
        self.tell_room(place);
    }

    /// Tells once that queues which were full have room.
    pub(crate) fn tell_room(&mut self, place: u32) {
        let Some(link) = self.links.at(place) else { return };
        if link.tell_room(&LIMITS, 0, &mut self.finished) {
            self.nudge();
        }
    }

    /// It goes on with the next completion, of which there is one to come.
    fn stalled(&mut self, place: u32) {
        self.mark_busy_at(place);
        if let Some(link) = self.links.at(place) {
            link.way.is_stalled = true;
        }
    }

    /// The most important frame that can leave.
    fn step(&mut self, place: u32) -> Step {
        let Some(link) = self.links.at(place).filter(|link| link.way.is_open()) else {
            return Step::Idle;
        };
        for lane in Lane::ALL {
            if link.queues.len(lane) > 0 && link.way.has_credit(lane.place()) {
                return self.send_message(place, lane);
            }
        }
        if link.way.has_credit(TRANSFERS)
            && let Some(step) = self.send_transfer(place)
        {
            return step;
        }
        let owes = self.links.at(place).is_some_and(|link| link.way.owes_credits());
        if owes { self.send_plain(place, Kind::Credit, 0) } else { Step::Idle }
    }

    fn send_message(&mut self, place: u32, lane: Lane) -> Step {
        let kind = match lane {
            Lane::Control => Kind::Control,
            Lane::Expected => Kind::Expected,
            Lane::Unexpected => Kind::Unexpected,
        };
        let Some(link) = self.links.at(place) else { return Step::Idle };
        let Some(mut sending) = link.queues.pop(lane) else { return Step::Idle };
        let left = sending.message.len() - sending.left;
        let len = left.min(ROOM);
        let more = len < left;
        let header = link.way.header(kind, sending.tag, more);
        let content = &sending.message.as_slice()[sending.left..sending.left + len];
        let handed = self.hand(place, &header, len, |into| {
            into.copy_from_slice(content);
            true
        });
        if handed.is_ok() {
            sending.left += len;
            if !more {
                sending.sent(&mut self.finished);
                return Step::Left;
            }
        }
        if let Some(link) = self.links.at(place) {
            link.queues.put_back(lane, sending);
        }
        handed.map_or_else(refused, |()| Step::Left)
    }

    /// A frame whose header is all.
    fn send_plain(&mut self, place: u32, kind: Kind, tag: u64) -> Step {
        let header = self.links.at(place).map(|link| link.way.header(kind, tag, false));
        let Some(header) = header else { return Step::Idle };
        match self.hand(place, &header, 0, |_| true) {
            Ok(()) => Step::Left,
            Err(fault) => refused(fault),
        }
    }

    /// Hands a frame to the card, which has taken its bytes then.
    ///
    /// # Errors
    /// [`Fault::Again`], or a worse one.
    pub(crate) fn hand(
        &mut self,
        place: u32,
        header: &Header,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<(), Fault> {
        let Some(pair) = self.links.at(place).and_then(|link| link.way.pair) else {
            return Err(Fault::Again);
        };
        self.endpoint().send(pair, HEADER + len, |frame| {
            let (head, content) = frame.split_first_chunk_mut().expect("a frame holds its header");
            header.encode(head);
            fill(content)
        })?;
        if let Some(link) = self.links.at(place) {
            link.way.left(header);
        }
        Ok(())
    }

    /// The next frame of a transfer, when there is one that may leave.
    fn send_transfer(&mut self, place: u32) -> Option<Step> {
        let link = self.links.at(place)?;
        if let Some(id) = link.way.aborts.front().copied() {
            let step = self.send_plain(place, Kind::Abort, id);
            if matches!(step, Step::Left) {
                self.links.at(place)?.way.aborts.pop_front();
            }
            return Some(step);
        }
        if let Some((id, verdict)) = link.owner.next_word() {
            let header = link.way.header(Kind::Ended, id, false);
            let handed = self.hand(place, &header, VERDICT_LEN, |into| {
                into.copy_from_slice(&verdict.encode());
                true
            });
            if handed.is_ok() {
                self.links.at(place)?.owner.said();
            }
            return Some(handed.map_or_else(refused, |()| Step::Left));
        }
        if let Some(it) = link.way.moves.queue.pop_front() {
            return Some(self.serve_move(place, it));
        }
        let room = ROOM as u64;
        if let Some(piece) = link.owner.next_piece(room) {
            return self.send_piece(place, Kind::GetData, piece);
        }
        if link.initiator.next(ACTIVE_MAX).is_some() {
            return match self.send_lent(place) {
                Some(step) => Some(step),
                None => self.announce(place),
            };
        }
        let piece = link.initiator.next_piece(room)?;
        self.send_piece(place, Kind::PutData, piece)
    }

    /// Bytes of a get that is served, or of an own put.
    fn send_piece(&mut self, place: u32, kind: Kind, piece: Piece) -> Option<Step> {
        let Piece { serial, entry, offset, len, .. } = piece;
        let header = self.links.at(place)?.way.header(kind, serial, false);
        let mut is_there = true;
        let room = usize::try_from(len).expect("as long as a frame");
        let handed = self.hand(place, &header, room, |into| {
            let copied = entry.with(|memory| hg_na_memory::copy_out(memory, offset, into));
            is_there = matches!(copied, Some(Ok(())));
            is_there
        });
        let link = self.links.at(place)?;
        match (handed, kind) {
            (Ok(()), Kind::PutData) => link.initiator.sent(len),
            (Ok(()), _) => link.owner.sent(len),
            // Unregistered meanwhile: the initiator is told instead.
            (Err(_), Kind::GetData) if !is_there => {
                link.owner.lost_source();
                return Some(Step::Left);
            }
            (Err(_), _) => {}
        }
        Some(handed.map_or_else(refused, |()| Step::Left))
    }

    /// Tells the owner of the next own transfer, with the first bytes of a put.
    fn announce(&mut self, place: u32) -> Option<Step> {
        let link = self.links.at(place)?;
        let room = (ROOM - ACCESS_LEN) as u64;
        let transfer = link.initiator.next(ACTIVE_MAX)?;
        let (kind, len) = match transfer.is_put {
            true => (Kind::Put, transfer.access.len.min(room)),
            false => (Kind::Get, 0),
        };
        let (access, serial) = (transfer.access.encode(), transfer.id.serial);
        let (entry, offset) = (Arc::clone(&transfer.entry), transfer.slice.offset());
        let header = link.way.header(kind, serial, false);
        let bytes = usize::try_from(len).expect("as long as a frame");
        let handed = self.hand(place, &header, ACCESS_LEN + bytes, |into| {
            let (front, back) = into.split_at_mut(ACCESS_LEN);
            front.copy_from_slice(&access);
            // In range: the slice lies in its region, which stays registered while the slice is held.
            let copied = entry.with(|memory| hg_na_memory::copy_out(memory, offset, back));
            matches!(copied, Some(Ok(())))
        });
        if handed.is_ok() {
            self.links.at(place)?.initiator.announced(len);
        }
        Some(handed.map_or_else(refused, |()| Step::Left))
    }
}

/// Puts an open connection on the list of those with something to send.
pub(crate) fn list_busy(way: &mut Way, place: u32, busy: &mut Vec<u32>) {
    if !way.is_busy && matches!(way.phase, Phase::Open) {
        way.is_busy = true;
        busy.push(place);
    }
}

pub(crate) fn refused(fault: Fault) -> Step {
    if fault == Fault::Again { Step::Stalled } else { Step::Broken(fault) }
}
