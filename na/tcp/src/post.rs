//! What starts and ends operations: post, cancel, forget, message.

use hg_na::{
    Error, GoneReason, LocalSlice, Message, Op, OpId, Peer, Reached, Rejected, RemoteSlice,
    Returned, Token,
};

use crate::{
    context::TcpContext,
    frame::{CONTROL_MAX, Kind, MESSAGE_MAX},
    link::{CONTROL, EXPECTED, Link, State, TRANSFERS, UNEXPECTED},
    outbound::{Sending, ended},
    settings::QUEUE_DEPTH,
    transfers::{Access, Transfer},
    wire::WireKey,
};
use hg_na_parts::receives::Receive;
use hg_na_parts::regions::{Claim, ServedRegion};

impl TcpContext {
    /// Memory for a message: inside itself, or a vector, which is sent from where it lies.
    pub(crate) fn new_message(len: usize) -> Result<Message, Error> {
        match len {
            _ if len > MESSAGE_MAX => Err(Error::TooLong { len, max: MESSAGE_MAX }),
            _ if len <= hg_na::INLINE_MAX => Ok(Message::inline(len)),
            _ => Ok(Message::from(vec![0; len])),
        }
    }

    pub(crate) fn post_op(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        if let Err(error) = self.check(&op) {
            return Err(Rejected { op, error });
        }
        self.serial += 1;
        let peer = op.peer();
        let id = OpId { scope: peer.index(), serial: self.serial };
        let Some(link) = self.links.find(peer) else {
            return Err(Rejected { op, error: Error::UnknownPeer });
        };
        match op {
            Op::SendControl { message, .. } => {
                link.controls.push_back(Sending { id, token, message });
            }
            Op::SendExpected { tag, message, .. } => {
                link.lanes[EXPECTED].waiting.push_back((tag, Sending { id, token, message }));
            }
            Op::SendUnexpected { message, .. } => {
                link.lanes[UNEXPECTED].waiting.push_back((0, Sending { id, token, message }));
            }
            Op::RecvExpected { tag, .. } => {
                let is_free = link.receives.post(tag, Receive { serial: id.serial, token });
                debug_assert!(is_free, "checked before");
                if matches!(link.state, State::Open { .. }) {
                    return Ok(id); // Nothing leaves for it.
                }
            }
            Op::Put { local, remote, .. } => {
                link.transfers.post(transfer(id, token, true, local, &remote));
            }
            Op::Get { local, remote, .. } => {
                link.transfers.post(transfer(id, token, false, local, &remote));
            }
            op => return Err(Rejected { op, error: Error::Unsupported("this operation of tcp") }),
        }
        self.get_under_way(peer);
        Ok(id)
    }

    fn check(&mut self, op: &Op) -> Result<(), Error> {
        if self.shared.guard.is_child() {
            return Err(Error::Forked);
        }
        let link = self.links.find(op.peer()).ok_or(Error::UnknownPeer)?;
        if let Some(reason) = link.gone() {
            return Err(Error::PeerGone(reason.clone()));
        }
        let (fits, kind) = match op {
            Op::SendUnexpected { message, .. } => {
                (fits(message, MESSAGE_MAX, link.lanes[UNEXPECTED].waiting.len()), UNEXPECTED)
            }
            Op::SendExpected { message, .. } => {
                (fits(message, MESSAGE_MAX, link.lanes[EXPECTED].waiting.len()), EXPECTED)
            }
            Op::SendControl { message, .. } => {
                let mut waiting = link.controls.len();
                if let State::Open { wire, .. } = link.state {
                    waiting += self.wires.find(wire).map_or(0, |wire| wire.outbound.controls());
                }
                (fits(message, CONTROL_MAX, waiting), CONTROL)
            }
            Op::RecvExpected { tag, .. } if link.receives.contains(*tag) => {
                return Err(Error::TagInUse(*tag));
            }
            Op::RecvExpected { .. } => return Ok(()),
            Op::Put { local, remote, .. } => (check_transfer(link, local, remote, true), TRANSFERS),
            Op::Get { local, remote, .. } => {
                (check_transfer(link, local, remote, false), TRANSFERS)
            }
            _ => return Err(Error::Unsupported("this operation of tcp")),
        };
        if matches!(fits, Err(Error::Again)) {
            link.refusals.add(kind);
        }
        fits
    }

    /// Moves what was posted into its connection, or sees to it that there will be one.
    fn get_under_way(&mut self, peer: Peer) {
        let Self { links, wires, finished, .. } = self;
        let Some(link) = links.find(peer) else { return };
        match link.state {
            State::Open { wire, side } => {
                let Some(wire) = wires.find(wire) else { return };
                link.pump(wire, side, finished);
                let key = wire.key;
                self.soil_posted(key);
            }
            State::Idle => {
                link.state = State::Starting;
                self.starting.push(peer);
                self.wake();
            }
            State::Starting
            | State::Resolving
            | State::Dialling(_)
            | State::Awaiting { .. }
            | State::Ended(_) => {}
        }
    }

    /// A connection was given something: it leaves with the next round, or now where somebody sleeps.
    #[inline]
    pub(crate) fn soil_posted(&mut self, key: WireKey) {
        let Some(wire) = self.wires.find(key) else { return };
        if !wire.is_dirty && !wire.is_blocked {
            wire.is_dirty = true;
            self.dirty.push(key);
        }
        if self.is_sleeping {
            self.flush_posted();
        }
    }

    #[inline(never)]
    fn flush_posted(&mut self) {
        self.flush_dirty();
        if !self.dirty.is_empty() || !self.listed.is_empty() {
            self.wake();
        }
    }

    fn soil_wire_of(&mut self, peer: Peer) {
        let Some(link) = self.links.find(peer) else { return };
        let State::Open { wire, .. } = link.state else { return };
        if let Some(wire) = self.wires.find(wire)
            && wire.outbound.has_frames()
            && !wire.is_dirty
        {
            wire.is_dirty = true;
            self.dirty.push(wire.key);
        }
    }

    pub(crate) fn cancel_op(&mut self, id: OpId) {
        let Self { links, wires, .. } = self;
        let Some(link) = links.at(id.scope) else { return };
        let peer = link.peer;
        let ended = link.cancel_send(id.serial).or_else(|| {
            let open = match link.state {
                State::Open { wire, side } => wires.find(wire).map(|wire| (wire, side)),
                _ => None,
            };
            link.transfers.cancel(peer, id.serial, open)
        });
        let ended = ended.or_else(|| {
            let receive = link.receives.cancel(id.serial)?;
            let failure = Some((Error::Cancelled, Reached::Unknown));
            Some(ended_receive(id, receive.token, failure))
        });
        let Some(ended) = ended else { return };
        self.finished.push(ended);
        let controls = match link.state {
            State::Open { wire, .. } => wires.find(wire).map_or(0, |it| it.outbound.controls()),
            _ => 0,
        };
        link.tell_room(controls, &mut self.finished);
        self.soil_wire_of(peer);
        self.wake();
    }

    pub(crate) fn forget_peer(&mut self, peer: Peer) {
        let Some(link) = self.links.find(peer) else { return };
        link.withheld.clear();
        if link.gone().is_some() {
            // Only what it had sent kept its last word from being told.
            self.bury(peer);
            return self.wake();
        }
        let (state, why) = (link.state.clone(), GoneReason::Forgotten);
        let key = match state {
            State::Open { wire, .. } | State::Dialling(wire) => Some(wire),
            _ => None,
        };
        match key.and_then(|key| self.wires.take(key)) {
            Some(wire) if matches!(state, State::Dialling(_)) => self.lose(wire, &why),
            Some(mut wire) => {
                let side = usize::from(wire.slots[1].peer == Some(peer));
                self.close_link(&mut wire, side, why);
                wire.send(Kind::Close, side, 0, &[]);
                self.soil(&mut wire);
                if !wire.is_used() {
                    // The other end closes it, or opens a link of its own on it.
                    wire.is_retiring = true;
                    self.unmap(&wire);
                    let at = std::time::Instant::now() + self.shared.settings.connect_timeout;
                    self.time(&mut wire, at);
                }
                self.wires.put(wire);
            }
            None => self.end_link(peer, why, None),
        }
        self.wake();
    }

    /// Ends one link of a connection that goes on.
    pub(crate) fn close_link(
        &mut self,
        wire: &mut crate::wire::Wire,
        side: usize,
        why: GoneReason,
    ) {
        let Some(peer) = wire.slots[side].peer.take() else { return };
        wire.outbound.abandon(peer, &why, &mut self.finished);
        if let Some(serial) = wire.outbound.piece.as_ref().map(|piece| piece.header.word) {
            wire.outbound.detach(peer, serial);
        }
        self.end_link(peer, why, None);
    }
}

fn ended_receive(id: OpId, token: Token, failure: Option<(Error, Reached)>) -> hg_na::Completion {
    ended(id, token, failure, Returned::Nothing)
}

fn fits(message: &Message, max: usize, waiting: usize) -> Result<(), Error> {
    match message.len() {
        len if len > max => Err(Error::TooLong { len, max }),
        _ if waiting >= QUEUE_DEPTH => Err(Error::Again),
        _ => Ok(()),
    }
}

fn check_transfer(
    link: &Link,
    local: &LocalSlice,
    remote: &RemoteSlice,
    is_put: bool,
) -> Result<(), Error> {
    let (offset, len) = (remote.offset(), remote.len());
    if local.len() != len {
        return Err(Error::OutOfRange { offset, len, size: local.len() });
    }
    Claim::decode(remote.descriptor().opaque())?;
    let region: &dyn std::any::Any = local.region().as_ref();
    let Some(region) = region.downcast_ref::<ServedRegion>() else {
        return Err(Error::Unsupported("memory that was registered with another transport"));
    };
    if !is_put && !region.is_writable() {
        let (granted, needed) = (hg_na::Rights::READ, hg_na::Rights::WRITE);
        return Err(Error::Denied { granted, needed });
    }
    if link.transfers.is_full() { Err(Error::Again) } else { Ok(()) }
}

/// A transfer that `check_transfer` has allowed.
fn transfer(
    id: OpId,
    token: Token,
    is_put: bool,
    slice: LocalSlice,
    remote: &RemoteSlice,
) -> Transfer {
    let claim = Claim::decode(remote.descriptor().opaque()).expect("checked before");
    let region: &dyn std::any::Any = slice.region().as_ref();
    let region = region.downcast_ref::<ServedRegion>().expect("checked before");
    let entry = std::sync::Arc::clone(region.entry());
    let access = Access { claim, offset: remote.offset(), len: remote.len() };
    Transfer { id, token, is_put, slice, entry, access }
}
