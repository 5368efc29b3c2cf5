//! Frames out: messages and transfers, as credits and libfabric allow.

use std::time::{Duration, Instant};

use hg_na::{Completion, Error};

use crate::{
    context::{Flight, OfiContext},
    fabric::{Fault, Handed},
    link::Link,
    transfer::{ACTIVE_MAX, Move, PREFACE, STATUS, Serve, Status},
    wire::{HEADER, Header, Kind, Record},
};

/// Lanes by priority, with the kind of their frames.
const MESSAGES: [(usize, Kind); 3] =
    [(0, Kind::Control), (1, Kind::Expected), (2, Kind::Unexpected)];
/// The lane of transfers.
const TRANSFERS: usize = 3;
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
    pub(crate) fn mark_busy(&mut self, place: u32) {
        if let Some(link) = self.link(place).filter(|link| !link.is_busy && link.is_open()) {
            link.is_busy = true;
            self.busy.push(place);
        }
    }

    /// Gives every connection on the list its turn; says whether a frame has left.
    pub(crate) fn send_all(&mut self, now: Instant) -> bool {
        let mut moved = self.retry_at.take().is_some_and(|when| when <= now);
        for place in std::mem::take(&mut self.busy) {
            if let Some(link) = self.link(place) {
                link.is_busy = false;
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
        self.mark_busy(place);
        moved
    }

    fn flows(&mut self, place: u32) {
        let Some(link) = self.link(place) else { return };
        link.stalled = None;
        if link.refusals.any() {
            self.tell_room(place);
        }
    }

    /// Tells once that queues which were full have room.
    pub(crate) fn tell_room(&mut self, place: u32) {
        let Some(link) = self.link(place).filter(|link| link.usable().is_ok()) else { return };
        let peer = link.peer;
        if link.take_room() {
            self.finished.push(Completion::Room { peer });
            self.nudge();
        }
    }

    /// libfabric takes nothing: tried again in every round, and after a while without one.
    fn stalled(&mut self, place: u32, now: Option<Instant>) {
        let now = now.unwrap_or_else(Instant::now);
        let bound = self.shared.settings.retry_bound;
        self.mark_busy(place);
        let Some(link) = self.link(place) else { return };
        let (since, has_answered) = *link.stalled.get_or_insert_with(|| {
            if let Some(lifeline) = &mut link.lifeline {
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
        let Some(link) = self.link(place).filter(|link| link.is_open()) else { return Step::Idle };
        for (lane, kind) in MESSAGES {
            if !link.waiting[lane].is_empty() && link.has_credit(lane) {
                return self.send_message(place, lane, kind);
            }
        }
        if link.work.is_waiting()
            && link.has_credit(TRANSFERS)
            && let Some(step) = self.send_transfer(place)
        {
            return step;
        }
        let owes = self.link(place).is_some_and(|link| link.owes_credits());
        if owes { self.send_plain(place, Kind::Credit, 0) } else { Step::Idle }
    }

    fn send_message(&mut self, place: u32, lane: usize, kind: Kind) -> Step {
        let Some(link) = self.link(place) else { return Step::Idle };
        let Some(mut sending) = link.waiting[lane].pop_front() else { return Step::Idle };
        let left = sending.message.len() - sending.offset;
        let len = left.min(link.room());
        let more = len < left;
        let Some(header) = link.header(kind, sending.tag, more) else { return Step::Idle };
        let range = sending.offset..sending.offset + len;
        let content = &sending.message.as_slice()[range];
        let handed = self.hand(place, &header, len, |into| {
            into.copy_from_slice(content);
            true
        });
        match handed {
            Ok(flight) if more => {
                sending.offset += len;
                if let Some(link) = self.link(place) {
                    link.waiting[lane].push_front(sending);
                }
                let _: Option<usize> = flight;
                Step::Left
            }
            Ok(None) => {
                self.sent(place, sending);
                Step::Left
            }
            Ok(Some(flight)) => {
                if let Some(Some(flight)) = self.flights.get_mut(flight) {
                    flight.sending = Some(sending);
                }
                Step::Left
            }
            Err(fault) => {
                if let Some(link) = self.link(place) {
                    link.waiting[lane].push_front(sending);
                }
                refused(fault)
            }
        }
    }

    /// A frame whose header is all.
    fn send_plain(&mut self, place: u32, kind: Kind, tag: u64) -> Step {
        let Some(header) = self.link(place).and_then(|link| link.header(kind, tag, false)) else {
            return Step::Idle;
        };
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
        let Some(link) = self.link(place) else { return Ok(None) };
        let Some(address) = link.remote.as_ref().map(|remote| remote.address) else {
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
        if let Some(link) = self.link(place) {
            link.left(header);
            link.frames_sent += u64::from(handed == Handed::Injected);
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
        let place = flight.peer.index();
        let Some(link) = self.find(flight.peer) else { return };
        match fault {
            None => {
                link.frames_sent += 1;
                if let Some(sending) = flight.sending {
                    self.sent(place, sending);
                }
            }
            Some(fault) => {
                if let Some(sending) = flight.sending {
                    let id = hg_na::OpId { scope: place, serial: sending.serial };
                    let token = sending.token;
                    let reason = crate::chores::unreachable(fault);
                    let error = Some((Error::PeerGone(reason), hg_na::Reached::Unknown));
                    self.finish(id, token, error, crate::post::handed_back(sending));
                }
                self.way_broke(place, fault);
            }
        }
    }

    /// The next frame of a transfer, when there is one that may leave.
    fn send_transfer(&mut self, place: u32) -> Option<Step> {
        let link = self.link(place)?;
        if let Some(id) = link.work.aborts.pop_front() {
            let step = self.send_plain(place, Kind::Abort, id);
            if !matches!(step, Step::Left)
                && let Some(link) = self.link(place)
            {
                link.work.aborts.push_front(id);
            }
            return Some(step);
        }
        if let Some(serve) = link.work.serves.pop_front() {
            return Some(match serve {
                Serve::Move(it) => self.serve_move(place, it),
                other => self.send_serve(place, other),
            });
        }
        self.send_ask(place)
    }

    fn send_serve(&mut self, place: u32, serve: Serve) -> Step {
        let Some(room) = self.link(place).map(|link| link.room()) else { return Step::Idle };
        let (kind, id) = match &serve {
            Serve::Data { id, .. } => (Kind::GetData, *id),
            Serve::Ended { id, .. } | Serve::Move(Move { id, .. }) => (Kind::Ended, *id),
        };
        let Some(header) = self.link(place).and_then(|link| link.header(kind, id, false)) else {
            return Step::Idle;
        };
        let (handed, rest) = match serve {
            Serve::Move(it) => (Ok(None), Some(Serve::Move(it))),
            Serve::Ended { id, status, is_awaited } => {
                let handed = self.hand(place, &header, STATUS, |into| {
                    status.encode(into);
                    true
                });
                let again = Serve::Ended { id, status, is_awaited };
                (handed, Some(again).filter(|_| handed.is_err()))
            }
            Serve::Data { id, entry, offset, left } => {
                let len = room.min(usize::try_from(left).unwrap_or(usize::MAX));
                let mut is_there = true;
                let handed = self.hand(place, &header, len, |into| {
                    let copied = entry.with(|memory| hg_na_memory::copy_out(memory, offset, into));
                    is_there = matches!(copied, Some(Ok(())));
                    is_there
                });
                let moved = if handed.is_ok() { len as u64 } else { 0 };
                let (offset, left) = (offset + moved, left - moved);
                if is_there {
                    let rest = Serve::Data { id, entry, offset, left };
                    (handed, Some(rest).filter(|_| left > 0))
                } else {
                    // Unregistered meanwhile: the initiator is told instead.
                    (Ok(None), Some(Serve::Ended { id, status: Status::STALE, is_awaited: false }))
                }
            }
        };
        if let (Some(rest), Some(link)) = (rest, self.link(place)) {
            // Data of several gets take turns.
            if handed.is_ok() {
                link.work.serves.push_back(rest);
            } else {
                link.work.serves.push_front(rest);
            }
        }
        match handed {
            Ok(_) => Step::Left,
            Err(fault) => refused(fault),
        }
    }

    /// Announces the next own transfer, or sends further bytes of a put.
    fn send_ask(&mut self, place: u32) -> Option<Step> {
        let link = self.link(place)?;
        let (serial, room, active) = (*link.work.asks.front()?, link.room(), link.work.active);
        let transfer = self.transfers.get(&serial)?;
        if !transfer.is_announced && active >= ACTIVE_MAX {
            return None;
        }
        if let Some(step) = self.send_lent(place, serial) {
            return Some(step);
        }
        let transfer = self.transfers.get(&serial)?;
        let (preface, kind) = match (transfer.is_announced, transfer.is_put) {
            (false, true) => (PREFACE, Kind::Put),
            (false, false) => (PREFACE, Kind::Get),
            (true, _) => (0, Kind::PutData),
        };
        let left = if transfer.is_put { transfer.len - transfer.moved } else { 0 };
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(room.saturating_sub(preface));
        let header = self.link(place)?.header(kind, serial, false)?;
        let transfer = self.transfers.remove(&serial)?;
        let handed = self.hand(place, &header, preface + len, |into| {
            let (front, bytes) = into.split_at_mut(preface);
            if preface > 0 {
                transfer.preface(front);
            }
            let offset = transfer.slice.offset() + transfer.moved;
            // In range: the slice lies in its region, which stays registered while the slice is held.
            let copied =
                transfer.entry.with(|memory| hg_na_memory::copy_out(memory, offset, bytes));
            matches!(copied, Some(Ok(())))
        });
        Some(self.ask_left(place, serial, transfer, len, handed))
    }

    fn ask_left(
        &mut self,
        place: u32,
        serial: u64,
        mut transfer: crate::transfer::Transfer,
        len: usize,
        handed: Result<Option<usize>, Fault>,
    ) -> Step {
        let step = match handed {
            Ok(_) => {
                let is_new = !std::mem::replace(&mut transfer.is_announced, true);
                if transfer.is_put {
                    transfer.moved += len as u64;
                }
                let is_over = !transfer.is_put || transfer.moved == transfer.len;
                if let Some(link) = self.link(place) {
                    link.work.active += usize::from(is_new);
                    next_ask(link, is_over);
                }
                Step::Left
            }
            Err(fault) => refused(fault),
        };
        self.transfers.insert(serial, transfer);
        step
    }
}

/// The first ask has had its turn; it leaves the list when nothing of it is left to send.
fn next_ask(link: &mut Link, is_over: bool) {
    if is_over {
        link.work.asks.pop_front();
    }
}

pub(crate) fn refused(fault: Fault) -> Step {
    if fault.is_again() { Step::Stalled } else { Step::Broken(fault) }
}
