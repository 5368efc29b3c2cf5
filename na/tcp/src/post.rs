//! What starts and ends operations: post, cancel, forget.

use hg_na::{GoneReason, Op, OpId, Peer, Rejected, Token};
use hg_na_link::{Cancelled, Table};

use crate::{
    context::TcpContext,
    frame::Kind,
    link::{State, Way, pump},
    settings::LIMITS,
    transfers::cancelled,
    wire::{Wire, WireKey},
};

impl TcpContext {
    pub(crate) fn post_op(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        if self.shared.guard.is_child() {
            return Err(Rejected { op, error: hg_na::Error::Forked });
        }
        let (peer, is_receive) = (op.peer(), matches!(op, Op::RecvExpected { .. }));
        let Self { links, wires, .. } = self;
        let id = links.post(token, op, |way| controls(way, wires))?;
        self.get_under_way(peer, is_receive);
        Ok(id)
    }

    /// Moves what was posted into its connection, or sees to it that there will be one.
    fn get_under_way(&mut self, peer: Peer, is_receive: bool) {
        let Self { links, wires, finished, .. } = self;
        let Some(link) = links.find(peer) else { return };
        match link.way.state {
            // Nothing leaves for it.
            State::Open { .. } if is_receive => {}
            State::Open { wire, side } => {
                let Some(wire) = wires.find(wire) else { return };
                pump(link, wire, side, finished);
                let key = wire.key;
                self.soil_posted(key);
            }
            State::Idle => {
                link.way.state = State::Starting;
                self.starting.push(peer);
                self.wake();
            }
            State::Starting
            | State::Resolving
            | State::Dialling(_)
            | State::Awaiting { .. }
            | State::Ended => {}
        }
    }

    /// A connection was given something: it leaves with the next round, or now where somebody sleeps.
    #[inline]
    pub(crate) fn soil_posted(&mut self, key: WireKey) {
        let Some(wire) = self.wires.find(key) else { return };
        if !wire.is_blocked {
            wire.soil(&mut self.dirty);
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

    pub(crate) fn cancel_op(&mut self, id: OpId) {
        let Self { links, wires, finished, dirty, .. } = self;
        let Some(Cancelled { is_told, .. }) = links.cancel(id, finished) else { return };
        let Some(link) = links.at(id.scope) else { return };
        let mut held = 0;
        if let State::Open { wire, side } = link.way.state
            && let Some(wire) = wires.find(wire)
        {
            cancelled(link.peer, id.serial, is_told, (wire, side));
            held = wire.outbound.controls();
            if wire.outbound.has_frames() {
                wire.soil(dirty);
            }
        }
        link.tell_room(&LIMITS, held, finished);
        self.wake();
    }

    pub(crate) fn forget_peer(&mut self, peer: Peer) {
        let Some(link) = self.links.find(peer) else { return };
        let state = link.way.state.clone();
        if self.links.forget(peer, &mut self.finished) {
            // Only what it had sent kept its last word from being told.
            return self.wake();
        }
        let why = GoneReason::Forgotten;
        let key = match state {
            State::Open { wire, .. } | State::Dialling(wire) => Some(wire),
            _ => None,
        };
        match key.and_then(|key| self.wires.take(key)) {
            Some(wire) if matches!(state, State::Dialling(_)) => self.lose(wire, &why),
            Some(mut wire) => {
                let side = usize::from(wire.slots[1].peer == Some(peer));
                self.close_link(&mut wire, side, &why);
                wire.send(Kind::Close, side, 0, &[]);
                self.soil(&mut wire);
                if !wire.is_used() {
                    // The other end closes it, or opens a link of its own on it.
                    wire.is_retiring = true;
                    self.unmap(&wire);
                    let at =
                        std::time::Instant::now() + self.shared.settings.bounds.connect_timeout;
                    self.time(&mut wire, at);
                }
                self.wires.put(wire.key, wire);
            }
            None => self.end_link(peer, &why),
        }
        self.wake();
    }

    /// Ends one link of a connection that goes on.
    pub(crate) fn close_link(&mut self, wire: &mut Wire, side: usize, why: &GoneReason) {
        let Some(peer) = wire.slots[side].peer.take() else { return };
        wire.outbound.end((peer, why), true, &mut self.finished);
        wire.outbound.detach(peer, None);
        self.end_link(peer, why);
    }
}

/// Control messages that a peer's connection holds.
fn controls(way: &Way, wires: &Table<Wire>) -> usize {
    match way.state {
        State::Open { wire, .. } => wires.get(wire).map_or(0, |wire| wire.outbound.controls()),
        _ => 0,
    }
}
