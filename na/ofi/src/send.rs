//! Frames out: messages and transfers, as credits and libfabric allow.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hg_na::{Error, GoneReason, Peer, Reached};
use hg_na_link::{ACCESS_LEN, Lane, Piece, VERDICT_LEN};

use crate::{
    context::{Flight, OfiContext},
    fabric::{Fault, Handed},
    link::{Phase, TRANSFERS, Way},
    moves::ACTIVE_MAX,
    settings::LIMITS,
    wire::{HEADER, Header, Kind, Record},
};

/// Time after which a frame that libfabric did not take is tried again while nobody makes progress.
const RETRY_AFTER: Duration = Duration::from_millis(1);
/// The same for one that was not taken for long.
const RETRY_AFTER_MAX: Duration = Duration::from_millis(16);
/// Frames that one connection sends before the next has its turn.
const TURN: usize = 64;

/// What sending one frame came to.
pub(crate) enum Step {
    Left,
    /// Nothing to send, or no credits.
    Idle,
    /// libfabric takes nothing now.
    Stalled,
    Broken(Fault),
}

impl OfiContext {
    /// Puts a connection on the list of those with something to send.
    pub(crate) fn mark_busy(&mut self, peer: Peer) {
        if let Some(link) = self.links.find(peer) {
            list_busy(&mut link.way, peer.index(), &mut self.busy);
        }
    }

    /// Gives every connection on the list its turn; says whether a frame has left.
    pub(crate) fn send_all(&mut self, now: Instant) -> bool {
        let mut moved = self.retry_at.take().is_some_and(|when| when <= now);
        for place in std::mem::take(&mut self.busy) {
            if let Some(link) = self.links.at(place) {
                link.way.is_busy = false;
                moved |= self.send_link(place, Some(now));
            }
        }
        moved
    }

    /// One connection's turn; it goes on the list when it has more to send. Says whether a frame has left.
    pub(crate) fn send_link(&mut self, place: u32, now: Option<Instant>) -> bool {
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
                    self.stalled(place, now);
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
        link.way.stalled = None;
        self.tell_room(place);
    }

    /// Tells once that queues which were full have room.
    pub(crate) fn tell_room(&mut self, place: u32) {
        let Some(link) = self.links.at(place) else { return };
        if link.tell_room(&LIMITS, 0, &mut self.finished) {
            self.nudge();
        }
    }

    /// libfabric takes nothing: tried again in every round, and after a while without one.
    fn stalled(&mut self, place: u32, now: Option<Instant>) {
        let now = now.unwrap_or_else(Instant::now);
        let bound = self.shared.settings.retry_bound;
        self.mark_busy_at(place);
        let Some(link) = self.links.at(place) else { return };
        let way = &mut link.way;
        let (since, has_answered) = *way.stalled.get_or_insert_with(|| {
            if let Some(lifeline) = &mut way.lifeline {
                lifeline.say(&Record::Ping);
            }
            (now, false)
        });
        let lasted = now.saturating_duration_since(since);
        // One that makes no progress itself has not answered: it is waited for, as for credits.
        if has_answered && lasted > bound {
            return self.way_broke(place, Fault::new("fi_send", nix::libc::ETIMEDOUT));
        }
        let again = now + (lasted / 4).clamp(RETRY_AFTER, RETRY_AFTER_MAX);
        self.retry_at = Some(self.retry_at.map_or(again, |when| when.min(again)));
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
        let len = left.min(link.way.room());
        let more = len < left;
        let Some(header) = link.way.header(kind, sending.tag, more) else { return Step::Idle };
        let content = &sending.message.as_slice()[sending.left..sending.left + len];
        let handed = self.hand(place, &header, len, |into| {
            into.copy_from_slice(content);
            true
        });
        match handed {
            Ok(flight) if !more => match flight.and_then(|flight| self.flights.get_mut(flight)) {
                Some(Some(flight)) => flight.sending = Some(sending),
                _ => sending.sent(&mut self.finished),
            },
            handed => {
                if handed.is_ok() {
                    sending.left += len;
                }
                if let Some(link) = self.links.at(place) {
                    link.queues.put_back(lane, sending);
                }
                return handed.map_or_else(refused, |_| Step::Left);
            }
        }
        Step::Left
    }

    /// A frame whose header is all.
    fn send_plain(&mut self, place: u32, kind: Kind, tag: u64) -> Step {
        let header = self.links.at(place).and_then(|link| link.way.header(kind, tag, false));
        let Some(header) = header else { return Step::Idle };
        match self.hand(place, &header, 0, |_| true) {
            Ok(_) => Step::Left,
            Err(fault) => refused(fault),
        }
    }

    /// Hands a frame to libfabric. `Some`: the number of its flight, of which is told.
    pub(crate) fn hand(
        &mut self,
        place: u32,
        header: &Header,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> Result<Option<usize>, Fault> {
        let Some(link) = self.links.at(place) else { return Ok(None) };
        let Some(address) = link.way.remote.as_ref().map(|remote| remote.address) else {
            return Ok(None);
        };
        let peer = link.peer;
        let flight = self.free_flights.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        let handed = self.endpoint().send(address, HEADER + len, flight as u64, |frame| {
            let (head, content) = frame.split_first_chunk_mut().expect("a frame holds its header");
            header.encode(head);
            fill(content)
        });
        if handed == Ok(Handed::Lent) {
            self.flights[flight] = Some(Flight { peer, address, sending: None });
        } else {
            self.free_flights.push(flight);
        }
        let handed = handed?;
        if let Some(link) = self.links.at(place) {
            link.way.left(header);
            link.way.frames_sent += u64::from(handed == Handed::Injected);
        }
        Ok((handed == Handed::Lent).then_some(flight))
    }

    /// A flight has landed: its message was sent, or its connection is broken.
    pub(crate) fn flight_landed(&mut self, note: u64, fault: Option<Fault>) {
        let Ok(number) = usize::try_from(note) else { return };
        let Some(flight) = self.flights.get_mut(number).and_then(Option::take) else { return };
        self.free_flights.push(number);
        if !self.retiring.is_empty() {
            self.retire(None);
        }
        let Some(link) = self.links.find(flight.peer) else { return };
        match fault {
            None => {
                link.way.frames_sent += 1;
                if let Some(sending) = flight.sending {
                    sending.sent(&mut self.finished);
                }
            }
            Some(fault) => {
                let (reason, place) = (crate::chores::unreachable(fault), flight.peer.index());
                self.finished.extend(flight.end(&reason));
                self.way_broke(place, fault);
            }
        }
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
            let header = link.way.header(Kind::Ended, id, false)?;
            let handed = self.hand(place, &header, VERDICT_LEN, |into| {
                into.copy_from_slice(&verdict.encode());
                true
            });
            if handed.is_ok() {
                self.links.at(place)?.owner.said();
            }
            return Some(handed.map_or_else(refused, |_| Step::Left));
        }
        if let Some(it) = link.way.moves.queue.pop_front() {
            return Some(self.serve_move(place, it));
        }
        let room = link.way.room() as u64;
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
        let header = self.links.at(place)?.way.header(kind, serial, false)?;
        let mut is_there = true;
        let room = usize::try_from(len).expect("as long as a frame");
        let handed = self.hand(place, &header, room, |into| {
            let copied = entry.with(|memory| hg_na_memory::copy_out(memory, offset, into));
            is_there = matches!(copied, Some(Ok(())));
            is_there
        });
        let link = self.links.at(place)?;
        match (handed, kind) {
            (Ok(_), Kind::PutData) => link.initiator.sent(len),
            (Ok(_), _) => link.owner.sent(len),
            // Unregistered meanwhile: the initiator is told instead.
            (Err(_), Kind::GetData) if !is_there => {
                link.owner.lost_source();
                return Some(Step::Left);
            }
            (Err(_), _) => {}
        }
        Some(handed.map_or_else(refused, |_| Step::Left))
    }

    /// Tells the owner of the next own transfer, with the first bytes of a put.
    fn announce(&mut self, place: u32) -> Option<Step> {
        let link = self.links.at(place)?;
        let room = link.way.room().saturating_sub(ACCESS_LEN) as u64;
        let transfer = link.initiator.next(ACTIVE_MAX)?;
        let (kind, len) = match transfer.is_put {
            true => (Kind::Put, transfer.access.len.min(room)),
            false => (Kind::Get, 0),
        };
        let (access, serial) = (transfer.access.encode(), transfer.id.serial);
        let (entry, offset) = (Arc::clone(&transfer.entry), transfer.slice.offset());
        let header = link.way.header(kind, serial, false)?;
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
        Some(handed.map_or_else(refused, |_| Step::Left))
    }
}

impl Flight {
    /// Ends its message, if it carries one.
    pub(crate) fn end(self, why: &GoneReason) -> Option<hg_na::Completion> {
        let failure = Some((Error::PeerGone(why.clone()), Reached::Unknown));
        self.sending.map(|sending| sending.end(failure))
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
    if fault.is_again() { Step::Stalled } else { Step::Broken(fault) }
}
