//! What starts and ends operations: post, cancel, and how they get under way.

use std::sync::Arc;

use hg_core::{error::Status, header::Header};
use hg_na::{
    Begun, Descriptor, Direction, Error, Exchange, Exchanged, Failure, GoneReason, Message, Op,
    OpId, Peer, Reached, RegionState, Rejected, Returned, Rights, SharedBytes, Tag, Token, Transit,
};
use hg_na_parts::receives::Receive;

use super::{
    hub::{Clock, Event, Net},
    planted::Planted,
    region::Regions,
    side::{Lane, Link, Outgoing, Side, TRANSFERS, Transfer, Way, finished, is_loud, length},
};
use crate::world;

/// Bytes that an endpoint moves at once between two rounds, before those of the last transfer.
const AT_ONCE_MAX: u64 = 1 << 20;

impl Net {
    pub(super) fn post(&mut self, at: usize, token: Token, op: Op) -> Result<OpId, Rejected> {
        if let Err(error) = self.check(at, &op) {
            let counts = &mut self.endpoints[at].counts;
            counts.refused += u64::from(matches!(error, Error::Again));
            return Err(Rejected { op, error });
        }
        let peer = op.peer();
        let endpoint = &mut self.endpoints[at];
        endpoint.counts.accepted += 1;
        endpoint.last_serial += 1;
        let id = OpId { scope: peer.index(), serial: endpoint.last_serial };
        let side = endpoint.side(peer).expect("checked above");
        match op {
            Op::SendUnexpected { message, .. } => {
                let out = Outgoing { id, token, tag: 0, message };
                side.out[Lane::Unexpected as usize].queue.push_back(out);
            }
            Op::SendControl { message, .. } => {
                let out = Outgoing { id, token, tag: 0, message };
                side.out[Lane::Control as usize].queue.push_back(out);
            }
            Op::SendExpected { tag, message, .. } => {
                let is_panic = is_panic(&message);
                let out = Outgoing { id, token, tag, message };
                side.out[Lane::Expected as usize].queue.push_back(out);
                let is_twice = is_panic && self.is_planted(Planted::AnsweredTwice);
                (0..=u8::from(is_twice)).for_each(|_| self.count_answer(at, peer, tag));
            }
            Op::RecvExpected { tag, .. } => {
                // Its tag is free: checked above.
                side.receives.post(tag, Receive { serial: id.serial, token });
            }
            Op::Put { local, remote, .. } => side.add_transfer(id, token, Way::Put(local), remote),
            Op::Get { local, remote, .. } => side.add_transfer(id, token, Way::Get(local), remote),
            Op::View { remote, .. } => side.add_transfer(id, token, Way::View, remote),
            _ => {}
        }
        self.set_off(at, peer);
        Ok(id)
    }

    fn check(&mut self, at: usize, op: &Op) -> Result<(), Error> {
        let depth = self.rules.queue_depth;
        let max = self.rules.message_max;
        let endpoint = &mut self.endpoints[at];
        if endpoint.is_cut {
            return Err(Error::PeerGone(GoneReason::Exited));
        }
        let Some(side) = endpoint.side(op.peer()) else { return Err(Error::UnknownPeer) };
        if let Link::Broken { reason, .. } = &side.link {
            return Err(Error::PeerGone(reason.clone()));
        }
        let check_room = |side: &mut Side, kind: usize, waiting: usize| {
            if waiting < depth {
                return Ok(());
            }
            side.refusals.add(kind);
            Err(Error::Again)
        };
        let check_send = |side: &mut Side, lane: Lane, len: usize, max: usize| {
            if len > max {
                return Err(Error::TooLong { len, max });
            }
            let waiting = side.out[lane as usize].queue.len();
            check_room(side, lane as usize, waiting)
        };
        match op {
            Op::SendUnexpected { message, .. } => {
                check_send(side, Lane::Unexpected, message.len(), max)
            }
            Op::SendControl { message, .. } => check_send(side, Lane::Control, message.len(), 64),
            Op::SendExpected { message, .. } => {
                check_send(side, Lane::Expected, message.len(), max)
            }
            Op::RecvExpected { tag, .. } if side.receives.contains(*tag) => {
                Err(Error::TagInUse(*tag))
            }
            Op::RecvExpected { .. } => Ok(()),
            Op::Put { local, remote, .. } | Op::Get { local, remote, .. } => {
                if local.len() != remote.len() {
                    let (offset, len) = (remote.offset(), remote.len());
                    return Err(Error::OutOfRange { offset, len, size: local.len() });
                }
                let waiting = side.transfers.len();
                check_room(side, TRANSFERS, waiting)
            }
            Op::View { .. } if self.rules.views => {
                let waiting = side.transfers.len();
                check_room(side, TRANSFERS, waiting)
            }
            _ => Err(Error::Unsupported("views over this simulated transport")),
        }
    }

    fn count_answer(&mut self, at: usize, peer: Peer, tag: Tag) {
        let count = self.answers.entry((at, peer, tag)).or_default();
        *count += 1;
        if *count > 1 && self.clock == Clock::Story {
            world::fail(|| format!("answered twice: {tag:x} of {peer:?}"));
        }
    }

    /// Both halves of a call in one step.
    pub(super) fn exchange(
        &mut self,
        at: usize,
        exchange: &Exchange,
        message: &Message,
    ) -> Option<Exchanged> {
        let Exchange { to, tag, send, receive } = *exchange;
        let rules = &self.rules;
        let (is_on, max) = (rules.short_cuts, rules.message_max);
        let side = self.endpoints[at].side(to)?;
        let is_open = matches!(side.link, Link::Open { .. });
        let has_room = side.out[Lane::Unexpected as usize].is_free(message.len());
        if !is_on || !is_open || !has_room || side.receives.contains(tag) || message.len() > max {
            return None;
        }
        let message = Message::copied(message.as_slice());
        let send = self.post(at, send, Op::SendUnexpected { to, message }).ok()?;
        let receive = self.post(at, receive, Op::RecvExpected { from: to, tag }).ok()?;
        Some(Exchanged { send, receive })
    }

    /// An answer without being asked twice.
    pub(super) fn reply(
        &mut self,
        at: usize,
        (to, tag): (Peer, Tag),
        token: Token,
        message: &Message,
    ) -> Option<OpId> {
        let is_on = self.rules.short_cuts;
        let side = self.endpoints[at].side(to)?;
        let is_open = matches!(side.link, Link::Open { .. });
        let has_room = side.out[Lane::Expected as usize].is_free(message.len());
        if !is_on || !is_open || !has_room || message.slot().is_none() {
            return None;
        }
        let message = Message::copied(message.as_slice());
        self.post(at, token, Op::SendExpected { to, tag, message }).ok()
    }

    /// Whose memory that of a transfer is which needs neither the owner nor a later round, if it is granted; otherwise what is said
    /// instead.
    ///
    /// # Errors
    /// [`Begun::Later`] or [`Begun::No`].
    pub(super) fn begin(
        &mut self,
        at: usize,
        transit: &Transit<'_, '_>,
    ) -> Result<(u64, usize), Begun<'static>> {
        if !self.moves(at, transit.peer) || self.rules.waits && !transit.may_wait {
            return Err(Begun::No);
        }
        let Some(owner) = self.owner_at_once(at, transit.peer, transit.len) else {
            if let Some(side) = self.endpoints[at].side(transit.peer) {
                side.refusals.add(TRANSFERS);
            }
            self.endpoints[at].slots[transit.peer.index() as usize].was_touched = true;
            self.set_off(at, transit.peer);
            return Err(Begun::Later);
        };
        let (needed, range) = (needed_for(transit.direction), (transit.remote_offset, transit.len));
        let found = self.regions.find(owner.0, transit.remote, needed, range);
        found.map(|_| owner).map_err(|_| Begun::No)
    }

    /// Whether transfers with a peer are begun.
    pub(super) fn moves(&mut self, at: usize, peer: Peer) -> bool {
        let may = self.rules.at_once && !self.rules.owner_moves && !self.endpoints[at].is_cut;
        may && self.endpoints[at].side(peer).is_some_and(|it| !it.is_broken())
    }

    /// What was begun is moved, unless this process was killed since.
    pub(super) fn move_begun(
        &mut self,
        at: usize,
        owner: u64,
        (direction, near): (Direction, (&dyn RegionState, u64)),
        remote: (&Descriptor, u64, u64),
    ) -> Result<(), Error> {
        if self.endpoints[at].is_cut {
            return Err(Error::UnknownPeer);
        }
        move_between(&self.regions, owner, direction == Direction::Put, near, remote)
    }

    /// Gets bytes into memory of the caller's, if that needs neither the owner nor a later round; says whether it did.
    pub(super) fn fetch(
        &mut self,
        at: usize,
        peer: Peer,
        (remote, offset): (&Descriptor, u64),
        into: &mut [u8],
    ) -> bool {
        let len = into.len() as u64;
        if self.rules.waits {
            return false;
        }
        let Some((owner, _)) = self.owner_at_once(at, peer, len) else { return false };
        let range = (offset, len);
        let far = self.regions.find(owner, remote, Rights::READ, range);
        far.is_ok_and(|far| RegionState::read(far.as_ref(), offset, into).is_ok())
    }

    /// Until when a process's memory is not there.
    pub(super) fn away_until(&self, process: usize) -> u64 {
        if self.rules.waits { self.away.get(&process).copied().unwrap_or(0) } else { 0 }
    }

    /// Whose memory a peer's is, where so much of it can be reached at once; a round has its turn before more is.
    fn owner_at_once(&mut self, at: usize, peer: Peer, len: u64) -> Option<(u64, usize)> {
        let is_put_off = self.is_put_off();
        let moved = &mut self.endpoints[at].moved_at_once;
        if is_put_off || *moved > AT_ONCE_MAX {
            return None;
        }
        *moved += len.max(1);
        let may = self.rules.at_once && !self.rules.owner_moves && !self.endpoints[at].is_cut;
        let side = self.endpoints[at].side(peer).filter(|_| may)?;
        let Link::Open { endpoint, .. } = side.link else { return None };
        let owner = &self.endpoints[endpoint];
        Some((owner.domain, owner.process))
    }

    /// Something was posted for a peer: gets it under way.
    fn set_off(&mut self, at: usize, peer: Peer) {
        let Some(side) = self.endpoints[at].side(peer) else { return };
        match side.link {
            Link::Idle => {
                side.link = Link::Connecting;
                let due = self.now() + self.delay();
                self.schedule(due, Event::Connect { endpoint: at, peer });
            }
            Link::Open { .. } => {
                self.flush(at, peer);
            }
            Link::Connecting | Link::Broken { .. } => {}
        }
    }

    /// Sends what there is room for; says whether there was anything.
    pub(super) fn flush(&mut self, at: usize, peer: Peer) -> bool {
        let mut moved = false;
        for lane in [Lane::Control, Lane::Expected, Lane::Unexpected] {
            while self.send_one(at, peer, lane) {
                moved = true;
            }
        }
        while self.begin_transfer(at, peer) {
            moved = true;
        }
        moved
    }

    fn send_one(&mut self, at: usize, peer: Peer, lane: Lane) -> bool {
        let now = self.now();
        let endpoint = &mut self.endpoints[at];
        let Some(side) = endpoint.side(peer) else { return false };
        let Link::Open { endpoint: to, peer: back } = side.link else { return false };
        let out = &mut side.out[lane as usize];
        if !out.can_send() {
            return false;
        }
        let Some(Outgoing { id, token, tag, mut message }) = out.queue.pop_front() else {
            return false;
        };
        let len = length(message.len());
        out.credits.spend(len);
        if is_loud(token) {
            let copy = Message::copied(message.as_slice());
            let own = std::mem::replace(&mut message, copy);
            endpoint.ready.push_back(finished(id, token, Ok(()), Returned::Message(own)));
        }
        let delay = self.delay();
        let Some(side) = self.endpoints[at].side(peer) else { return false };
        let out = &mut side.out[lane as usize];
        let due = out.last_at.max(now + delay);
        out.last_at = due;
        let target = &mut self.endpoints[to];
        if !target.is_cut
            && let Some(side) = target.side(back).filter(|side| !side.is_broken())
        {
            let received = side.out[lane as usize].credits.receive(len);
            side.arriving[lane as usize].push_back((due, tag, message));
            self.check_credits(received);
            self.schedule(due, Event::Ring { endpoint: to, peer: back });
        }
        true
    }

    fn begin_transfer(&mut self, at: usize, peer: Peer) -> bool {
        let owner_moves = self.rules.owner_moves;
        let Some(side) = self.endpoints[at].side(peer) else { return false };
        let Link::Open { endpoint: owner, peer: by } = side.link else { return false };
        let Some(transfer) = side.transfers.iter_mut().find(|it| !it.has_begun) else {
            return false;
        };
        transfer.has_begun = true;
        let serial = transfer.id.serial;
        let due = self.now() + self.delay();
        if owner_moves {
            self.last_ask += 1;
            let name = self.last_ask;
            self.asks.insert(name, (at, peer, serial));
            self.schedule(due, Event::Ask { owner, by, name });
        } else {
            self.schedule(due, Event::Move { endpoint: at, peer, serial });
        }
        true
    }

    /// The owner makes a transfer that it was asked for.
    pub(super) fn serve_ask(&mut self, name: u64) {
        if let Some((endpoint, peer, serial)) = self.asks.remove(&name) {
            let due = self.now() + self.delay();
            self.schedule(due, Event::Move { endpoint, peer, serial });
        }
    }

    pub(super) fn move_bytes(&mut self, at: usize, peer: Peer, serial: u64) {
        let regions = Arc::clone(&self.regions);
        let endpoint = &mut self.endpoints[at];
        let Some(side) = endpoint.side(peer) else { return };
        let Link::Open { endpoint: owner, .. } = side.link else { return };
        let owner = self.endpoints[owner].domain;
        let endpoint = &mut self.endpoints[at];
        let Some(side) = endpoint.side(peer) else { return };
        let Some(place) = side.transfers.iter().position(|it| it.id.serial == serial) else {
            return;
        };
        let Some(transfer) = side.transfers.remove(place) else { return };
        let copied = copy(&regions, owner, &transfer);
        let Transfer { id, token, way, .. } = transfer;
        let (result, returned) = match copied {
            Ok(Some(view)) => (Ok(()), Returned::View(view)),
            Ok(None) => (Ok(()), way.returned()),
            Err(error) => {
                let failure = Failure { error, reached: Reached::Unknown };
                (Err(Box::new(failure)), way.returned())
            }
        };
        endpoint.ready.push_back(finished(id, token, result, returned));
        endpoint.sleeper.ring();
    }

    pub(super) fn cancel(&mut self, at: usize, id: OpId) {
        let endpoint = &mut self.endpoints[at];
        let Some(slot) = endpoint.slots.get_mut(id.scope as usize) else { return };
        slot.was_touched = true;
        let Some(side) = slot.side.as_deref_mut() else { return };
        let failure = |reached| Err(Box::new(Failure { error: Error::Cancelled, reached }));
        for out in &mut side.out {
            let place = out.queue.iter().position(|it| it.id == id);
            if let Some(it) = place.and_then(|place| out.queue.remove(place)) {
                let returned = Returned::Message(it.message);
                let done = finished(id, it.token, failure(Reached::Never), returned);
                return endpoint.ready.push_back(done);
            }
        }
        let place = side.transfers.iter().position(|it| it.id == id);
        if let Some(it) = place.and_then(|place| side.transfers.remove(place)) {
            let returned = it.way.returned();
            let reached = if it.has_begun { Reached::Unknown } else { Reached::Never };
            let done = finished(id, it.token, failure(reached), returned);
            return endpoint.ready.push_back(done);
        }
        if let Some(Receive { token, .. }) = side.receives.cancel(id.serial) {
            let done = finished(id, token, failure(Reached::Unknown), Returned::Nothing);
            endpoint.ready.push_back(done);
        }
    }
}

/// Moves the bytes; gives what is to be seen.
fn copy(
    regions: &Arc<Regions>,
    owner: u64,
    transfer: &Transfer,
) -> Result<Option<SharedBytes>, Error> {
    let Transfer { way, remote, .. } = transfer;
    let (descriptor, offset, len) = (remote.descriptor(), remote.offset(), remote.len());
    let is_put = matches!(way, Way::Put(_));
    match way {
        Way::Put(local) | Way::Get(local) => {
            let (near, far) =
                ((local.region().as_ref(), local.offset()), (descriptor, offset, len));
            move_between(regions, owner, is_put, near, far).map(|()| None)
        }
        Way::View => {
            let far = regions.find(owner, descriptor, Rights::READ, (offset, len))?;
            if !far.is_shareable() {
                return Err(Error::Unsupported("a view of memory that cannot be shared"));
            }
            let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
            RegionState::read(far.as_ref(), offset, &mut bytes)?;
            Ok(Some(SharedBytes::from(bytes)))
        }
    }
}

fn move_between(
    regions: &Arc<Regions>,
    owner: u64,
    is_put: bool,
    (near, near_offset): (&dyn RegionState, u64),
    (remote, offset, len): (&Descriptor, u64, u64),
) -> Result<(), Error> {
    let direction = if is_put { Direction::Put } else { Direction::Get };
    let far = regions.find(owner, remote, needed_for(direction), (offset, len))?;
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
    if is_put {
        near.read(near_offset, &mut bytes)?;
        RegionState::write(far.as_ref(), offset, &bytes)
    } else {
        RegionState::read(far.as_ref(), offset, &mut bytes)?;
        near.write(near_offset, &bytes)
    }
}

fn needed_for(direction: Direction) -> Rights {
    match direction {
        Direction::Get => Rights::READ,
        Direction::Put => Rights::WRITE,
    }
}

/// Whether an answer says that its handler has panicked.
fn is_panic(answer: &Message) -> bool {
    Header::decode(answer.as_slice()).is_ok_and(|(header, _)| header.code == Status::Panicked as u8)
}
