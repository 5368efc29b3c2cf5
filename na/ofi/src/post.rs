//! Lookup, post, cancel, forget.

use std::{mem, sync::Arc, time::Instant};

use hg_na::{
    Address, Error, GoneReason, Op, OpId, Peer, QUIET, Reached, Rejected, RemoteSlice, Returned,
    Rights, Tag, Token,
};

use crate::{
    address::target,
    context::OfiContext,
    link::{Phase, Sending},
    settings::{CONTROL_MAX, MESSAGE_MAX, QUEUE_DEPTH},
    transfer::Transfer,
};
use hg_na_parts::receives::Receive;
use hg_na_parts::regions::{CLAIM_LEN, ServedRegion};

/// Places of the lanes in `Link::waiting`.
const CONTROL: usize = 0;
const EXPECTED: usize = 1;
const UNEXPECTED: usize = 2;
/// Place of transfers beside those, of refusals.
const TRANSFERS: usize = 3;

impl OfiContext {
    /// A handle for an address.
    ///
    /// # Errors
    /// [`Error::BadAddress`].
    pub(crate) fn look_up(&mut self, address: &Address) -> Result<Peer, Error> {
        let place = target(address, &self.shared.provider)?;
        if let Some(peer) = self.by_target.get(&place) {
            return Ok(*peer);
        }
        let link = self.add(Phase::Idle)?;
        link.target = Some(place.clone());
        let peer = link.peer;
        self.by_target.insert(place, peer);
        Ok(peer)
    }

    /// Accepts an operation, or hands it back.
    ///
    /// # Errors
    /// The operation.
    pub(crate) fn post_op(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        if let Err(error) = self.check(&op) {
            return Err(Rejected { op, error });
        }
        let peer = op.peer();
        let id = OpId { scope: peer.index(), serial: self.next_serial() };
        match op {
            Op::SendUnexpected { message, .. } => {
                self.queue(
                    peer,
                    UNEXPECTED,
                    Sending { serial: id.serial, token, tag: 0, message, offset: 0 },
                );
            }
            Op::SendControl { message, .. } => {
                self.queue(
                    peer,
                    CONTROL,
                    Sending { serial: id.serial, token, tag: 0, message, offset: 0 },
                );
            }
            Op::SendExpected { tag, message, .. } => {
                self.queue(
                    peer,
                    EXPECTED,
                    Sending { serial: id.serial, token, tag, message, offset: 0 },
                );
            }
            Op::RecvExpected { tag, .. } => self.receive(peer, tag, id, token),
            Op::Put { local, remote, .. } => self.transfer(id, token, peer, (true, local, remote)),
            Op::Get { local, remote, .. } => self.transfer(id, token, peer, (false, local, remote)),
            op => {
                return Err(Rejected {
                    op,
                    error: Error::Unsupported("this operation over libfabric"),
                });
            }
        }
        self.get_under_way(peer);
        Ok(id)
    }

    fn check(&mut self, op: &Op) -> Result<(), Error> {
        self.shared.same_process()?;
        let peer = op.peer();
        let known = self.generations.get(usize::try_from(peer.index()).unwrap_or(usize::MAX));
        let was = known.is_some_and(|next| peer.generation() < *next);
        let Some(link) = self.find(peer) else {
            return Err(if was { Error::PeerGone(GoneReason::Ended) } else { Error::UnknownPeer });
        };
        link.usable().map_err(|reason| Error::PeerGone(reason.clone()))?;
        let (message, lane, max) = match op {
            Op::SendUnexpected { message, .. } => (message, UNEXPECTED, MESSAGE_MAX),
            Op::SendExpected { message, .. } => (message, EXPECTED, MESSAGE_MAX),
            Op::SendControl { message, .. } => (message, CONTROL, CONTROL_MAX),
            Op::RecvExpected { tag, .. } if link.receives.contains(*tag) => {
                return Err(Error::TagInUse(*tag));
            }
            Op::RecvExpected { .. } => return Ok(()),
            Op::Put { local, remote, .. } | Op::Get { from: _, local, remote } => {
                if link.work.asks.len() >= QUEUE_DEPTH {
                    link.refusals.add(TRANSFERS);
                    return Err(Error::Again);
                }
                let writes = matches!(op, Op::Get { .. });
                return check_transfer(local.region().as_ref(), local.len(), remote, writes);
            }
            _ => return Err(Error::Unsupported("this operation over libfabric")),
        };
        if message.len() > max {
            return Err(Error::TooLong { len: message.len(), max });
        }
        if link.waiting[lane].len() >= QUEUE_DEPTH {
            link.refusals.add(lane);
            return Err(Error::Again);
        }
        Ok(())
    }

    fn queue(&mut self, peer: Peer, lane: usize, sending: Sending) {
        if let Some(link) = self.find(peer) {
            link.waiting[lane].push_back(sending);
        }
    }

    fn receive(&mut self, peer: Peer, tag: Tag, id: OpId, token: Token) {
        let Some(link) = self.find(peer) else { return };
        let is_free = link.receives.post(tag, Receive { serial: id.serial, token });
        debug_assert!(is_free, "checked before");
    }

    fn transfer(
        &mut self,
        id: OpId,
        token: Token,
        peer: Peer,
        (is_put, local, remote): (bool, hg_na::LocalSlice, RemoteSlice),
    ) {
        let entry = own_region(local.region().as_ref()).map(|region| Arc::clone(region.entry()));
        let (Some(entry), Some(link)) = (entry, self.find(peer)) else { return };
        link.work.asks.push_back(id.serial);
        let transfer = Transfer {
            peer,
            token,
            is_put,
            slice: local,
            entry,
            claim: remote.descriptor().opaque().to_vec(),
            offset: remote.offset(),
            len: remote.len(),
            moved: 0,
            is_announced: false,
            lent: None,
            in_frames: false,
        };
        self.transfers.insert(id.serial, transfer);
    }

    /// Connects, or sends what can be sent; what cannot needs progress, which ends a sleep.
    fn get_under_way(&mut self, peer: Peer) {
        let Some(link) = self.find(peer) else { return };
        match link.phase {
            Phase::Idle => {
                self.connect(peer);
                self.nudge();
            }
            Phase::Open => {
                if !link.is_busy {
                    self.send_link(peer.index(), None);
                }
                if self.is_sleeping && (!self.busy.is_empty() || self.endpoint().lent() > 0) {
                    self.nudge();
                }
            }
            Phase::Connecting { .. }
            | Phase::Greeting
            | Phase::Draining { .. }
            | Phase::Ended { .. } => {}
        }
    }

    /// Ends an operation that has not left.
    pub(crate) fn cancel_op(&mut self, id: OpId) {
        self.end_op(id);
        self.tell_room(id.scope);
    }

    fn end_op(&mut self, id: OpId) {
        let Some(link) = self.link(id.scope) else { return };
        for queue in &mut link.waiting {
            // One of which a part has left goes on: the other side waits for the rest.
            let place =
                queue.iter().position(|sending| sending.serial == id.serial && sending.offset == 0);
            if let Some(sending) = place.and_then(|place| queue.remove(place)) {
                self.finish(
                    id,
                    sending.token,
                    Some((Error::Cancelled, Reached::Never)),
                    handed_back(sending),
                );
                return self.nudge();
            }
        }
        if let Some(receive) = link.receives.cancel(id.serial) {
            let error = Some((Error::Cancelled, Reached::Unknown));
            self.finish(id, receive.token, error, Returned::Nothing);
            return self.nudge();
        }
        if let Some(mut transfer) = self.transfers.remove(&id.serial) {
            self.abandon(id.serial, &mut transfer);
            // Of memory that is lent the owner has its moves under way, until it says that it has ended.
            let is_over = !self.abandoned.contains_key(&id.serial);
            if let Some(link) = self.find(transfer.peer) {
                link.work.asks.retain(|serial| *serial != id.serial);
                if transfer.is_announced {
                    link.work.active -= usize::from(is_over);
                    link.work.aborts.push_back(id.serial);
                    self.mark_busy(id.scope);
                }
            }
            let reached = if transfer.is_announced { Reached::Unknown } else { Reached::Never };
            let slice = Returned::Slice(transfer.slice);
            self.finish(id, transfer.token, Some((Error::Cancelled, reached)), slice);
            self.nudge();
        }
    }

    /// Closes a connection for good, with a word to the other side.
    pub(crate) fn forget_peer(&mut self, peer: Peer) {
        let Some(link) = self.find(peer) else { return };
        // What had arrived is nobody's any more.
        link.withheld.clear();
        if matches!(link.phase, Phase::Ended { .. }) {
            self.bury(peer.index());
        } else {
            self.part(peer.index());
            self.end_now(peer.index(), GoneReason::Forgotten);
        }
        self.nudge();
    }

    /// All operations of a connection end: sends, transfers, then receives.
    pub(crate) fn fail_operations(&mut self, place: u32, reason: &GoneReason) {
        let Some(link) = self.link(place) else { return };
        let peer = link.peer;
        let waiting = mem::take(&mut link.waiting);
        let receives = link.receives.take_all();
        link.work = crate::transfer::Work::default();
        let error = |reached| Some((Error::PeerGone(reason.clone()), reached));
        let mut flights = mem::take(&mut self.flights);
        for flight in flights.iter_mut().flatten().filter(|flight| flight.peer == peer) {
            if let Some(sending) = flight.sending.take() {
                let id = OpId { scope: place, serial: sending.serial };
                self.finish(id, sending.token, error(Reached::Unknown), handed_back(sending));
            }
        }
        self.flights = flights;
        for sending in waiting.into_iter().flatten() {
            let id = OpId { scope: place, serial: sending.serial };
            let reached = if sending.offset > 0 { Reached::Unknown } else { Reached::Never };
            self.finish(id, sending.token, error(reached), handed_back(sending));
        }
        let mut own: Vec<u64> = self
            .transfers
            .iter()
            .filter(|(_, transfer)| transfer.peer == peer)
            .map(|(serial, _)| *serial)
            .collect();
        own.sort_unstable();
        for serial in own {
            let Some(mut transfer) = self.transfers.remove(&serial) else { continue };
            self.abandon(serial, &mut transfer);
            let reached = if transfer.is_announced { Reached::Unknown } else { Reached::Never };
            let id = OpId { scope: place, serial };
            self.finish(id, transfer.token, error(reached), Returned::Slice(transfer.slice));
        }
        for receive in receives {
            let id = OpId { scope: place, serial: receive.serial };
            self.finish(id, receive.token, error(Reached::Unknown), Returned::Nothing);
        }
    }

    /// A message was sent.
    pub(crate) fn sent(&mut self, place: u32, sending: Sending) {
        if sending.token & QUIET == 0 {
            let id = OpId { scope: place, serial: sending.serial };
            self.finish(id, sending.token, None, handed_back(sending));
        }
    }

    /// Asks for [`crate::chores`] at a time; a connection has one timer, the earliest.
    pub(crate) fn at(&mut self, when: Instant, place: u32) {
        let Some(link) = self.link(place) else { return };
        if let Some(before) = link.timer.replace(when) {
            self.timers.remove(&(before, place));
        }
        self.timers.insert((when, place));
    }

    /// A connection needs no timer any more.
    pub(crate) fn untime(&mut self, place: u32) {
        if let Some(when) = self.link(place).and_then(|link| link.timer.take()) {
            self.timers.remove(&(when, place));
        }
    }
}

/// A message of the poster's own goes back to it.
pub(crate) fn handed_back(sending: Sending) -> Returned {
    if sending.message.slot().is_some() {
        Returned::Nothing
    } else {
        Returned::Message(sending.message)
    }
}

fn own_region(region: &dyn hg_na::RegionState) -> Option<&ServedRegion> {
    (region as &dyn std::any::Any).downcast_ref()
}

fn check_transfer(
    region: &dyn hg_na::RegionState,
    len: u64,
    remote: &RemoteSlice,
    writes: bool,
) -> Result<(), Error> {
    let Some(own) = own_region(region) else {
        return Err(Error::Unsupported("memory that another plugin has registered"));
    };
    if remote.len() != len {
        let (offset, size) = (remote.offset(), len);
        return Err(Error::OutOfRange { offset, len: remote.len(), size });
    }
    if writes && !own.is_writable() {
        return Err(Error::Denied { granted: Rights::READ, needed: Rights::WRITE });
    }
    if remote.descriptor().opaque().len() != CLAIM_LEN {
        return Err(Error::BadDescriptor("it is no descriptor of memory behind libfabric"));
    }
    Ok(())
}
