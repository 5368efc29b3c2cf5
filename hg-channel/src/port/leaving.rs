//! What leaves: connections that are made, blocks, acknowledgements, transfers, and the end of a link.

use std::sync::Arc;

use hg_na::{
    Begun, Descriptor, Error as NaError, GoneReason, INLINE_MAX, Message, Op, Peer, QUIET,
    Returned, Transit,
};

use super::{Connection, Event, Link, Port, State, Way};
use crate::{
    error::{Broken, Error},
    inbox::Closed,
    near::Parcel,
    outgoing::Block,
    wire::{HEADER, Header, Kind, SIGNED, Told},
};

/// A bit of the tokens of transfers; the others are the caller's.
pub(super) const TRANSFER: u64 = 1 << 62;
/// A bit of the tokens of messages that are the first ones of a connection.
pub(super) const HELLO: u64 = 1 << 61;

impl<N> Port<N> {
    /// The link of an end, which may have no way yet.
    pub(super) fn link_of(&mut self, end: u32) -> Result<u32, Error> {
        let ends = self.directory.ends();
        let place = self.of_end.get_mut(end as usize).ok_or(Error::NoSuchEnd { end, ends })?;
        if *place == 0 {
            let mut link = Link::new(end, self.limits.window);
            if self.near.has(end) {
                link.way = Way::Near;
            }
            self.links.push(link);
            self.stats.channels += 1;
            *place = u32::try_from(self.links.len()).unwrap_or(u32::MAX);
        }
        Ok(*place - 1)
    }

    /// Makes a connection for a link that has none.
    #[cold]
    pub(super) fn connect(&mut self, at: u32) -> Result<(), Error> {
        let link = &self.links[at as usize];
        if !matches!(link.way, Way::None) || link.ending.is_some() {
            return Ok(());
        }
        let peer = self.context.lookup(&self.directory.addresses[link.end as usize])?;
        if self.connections.contains_key(&peer) {
            // It is being closed. A new one is made when it is gone, unless the other side goes on by this one.
            return Ok(());
        }
        let nothing = Told { consumed: 0, doubled: 0 };
        let op = Op::SendUnexpected { to: peer, message: self.signed(Kind::Hello, nothing) };
        let hello = self.context.post(QUIET | HELLO | u64::from(at), op);
        let hello = hello.map_err(|refused| refused.error)?;
        self.links[at as usize].way = Way::Peer(peer);
        let connection = Connection { link: at, state: State::Open, hello: Some(hello) };
        self.connections.insert(peer, connection);
        Ok(())
    }

    /// Sends what may leave of one link.
    pub(super) fn push(&mut self, at: u32) {
        let link = &mut self.links[at as usize];
        match link.way {
            Way::Near => self.hand_over(at),
            Way::Peer(peer) if !link.is_blocked => self.send(at, peer),
            Way::None if link.is_wanted() => match self.connect(at) {
                Ok(()) => {
                    if let Way::Peer(peer) = self.links[at as usize].way {
                        self.send(at, peer);
                    }
                }
                // Nothing else would tell whoever waits.
                Err(error) => self.end_link(at, GoneReason::Exhausted(error.to_string().into())),
            },
            Way::Peer(_) | Way::None | Way::Left | Way::Gone(_) => {}
        }
        self.recount(at);
    }

    /// What waits of one link is counted anew: whenever a block was sealed, or has left; not when a short one leaves, before which nothing has waited.
    #[inline]
    fn recount(&mut self, at: u32) {
        let link = &mut self.links[at as usize];
        let waiting = link.out.waiting();
        self.queued += waiting;
        self.queued -= std::mem::replace(&mut link.queued, waiting);
    }

    /// Sends the open block, if nothing waits before it and it is short: it is copied into its message, and not sealed before. `false`: it was
    /// not; [`Port::push`] finds why.
    #[inline]
    pub(super) fn send_short(&mut self, at: u32) -> bool {
        let Self { links, context, near, me, due, stats, .. } = self;
        let link = &mut links[at as usize];
        if link.is_blocked || !matches!(link.way, Way::Peer(_) | Way::Near) {
            return false;
        }
        let told = link.incoming.telling();
        let Some(bytes) = link.out.short(INLINE_MAX, told) else { return false };
        if let Way::Peer(to) = &link.way {
            let op = Op::SendUnexpected { to: *to, message: Message::copied(bytes) };
            if context.post(QUIET | u64::from(at), op).is_err() {
                return false;
            }
            stats.blocks += 1;
        } else {
            let block = Block::copied(bytes);
            if near.push(link.end, Parcel::Records { from: *me, block }).is_err() {
                return false;
            }
            stats.handed_over += 1;
        }
        link.is_active = true;
        link.incoming.tell();
        link.out.leave_short();
        while let Some(notice) = link.out.due() {
            due.push(notice);
        }
        true
    }

    fn send(&mut self, at: u32, peer: Peer) {
        let Self { links, context, pool, due, stats, .. } = self;
        let link = &mut links[at as usize];
        let failed = loop {
            let Some(block) = link.out.front() else { break None };
            block.address(link.incoming.telling());
            let bytes = block.message();
            let message = if bytes.len() <= INLINE_MAX {
                Message::copied(bytes)
            } else {
                match context.message(peer, bytes.len()) {
                    Ok(mut message) => {
                        message.as_mut_slice().copy_from_slice(bytes);
                        message
                    }
                    Err(error) => break Some(error),
                }
            };
            let op = Op::SendUnexpected { to: peer, message };
            match context.post(QUIET | u64::from(at), op) {
                Ok(_) => {}
                Err(refused) if matches!(refused.error, NaError::Again) => {
                    link.is_blocked = true;
                    break None;
                }
                Err(refused) => break Some(refused.error),
            }
            link.is_active = true;
            link.incoming.tell();
            stats.blocks += 1;
            if let Some(block) = link.out.leave() {
                pool.take_back(block);
            }
        };
        while let Some(notice) = link.out.due() {
            due.push(notice);
        }
        if let Some(error) = failed {
            // A peer that is gone is told by the transport, after what it has sent.
            if !matches!(error, NaError::PeerGone(_) | NaError::UnknownPeer) {
                self.end_link(at, GoneReason::Exhausted(error.to_string().into()));
            }
        }
    }

    fn hand_over(&mut self, at: u32) {
        let Self { links, near, me, pool, due, stats, .. } = self;
        let link = &mut links[at as usize];
        while let Some(block) = link.out.front() {
            block.address(link.incoming.tell());
            let Some(block) = link.out.leave() else { break };
            let block = pool.of_its_length(block);
            let parcel = Parcel::Records { from: *me, block };
            if let Err(Closed(parcel)) = near.push(link.end, parcel) {
                if let Parcel::Records { block, .. } = parcel {
                    link.out.refuse(&block);
                }
                link.way = Way::Left;
                break;
            }
            stats.handed_over += 1;
        }
        while let Some(notice) = link.out.due() {
            due.push(notice);
        }
    }

    /// Tells the senders of what was consumed, as far as they are to be told although nothing else travels.
    #[inline]
    pub fn acknowledge(&mut self) {
        while let Some(at) = self.owing.pop() {
            self.links[at as usize].is_owing = false;
            self.acknowledge_one(at);
        }
    }

    pub(super) fn acknowledge_one(&mut self, at: u32) {
        let link = &mut self.links[at as usize];
        if !link.incoming.owes() {
            return;
        }
        let told = link.incoming.tell();
        self.stats.acknowledgements += 1;
        let peer = match link.way {
            // Who has left hears nothing.
            Way::Near => {
                return drop(self.near.push(link.end, Parcel::Consumed { from: self.me, told }));
            }
            Way::Left | Way::Gone(_) => return,
            Way::Peer(peer) => Some(peer),
            // The connection that this side has left, and the other side has gone on using.
            Way::None => {
                let of_link = self.connections.iter().find(|(_, it)| it.link == at);
                of_link.map(|(peer, _)| *peer)
            }
        };
        // Behind nothing else, it may go as any message: what has a connection needs no signature, and a transport is quickest so.
        if let (Way::Peer(to), false) = (&link.way, link.is_blocked || link.out.is_waiting()) {
            let mut message = Message::inline(HEADER);
            let header = Header { kind: Kind::Consumed, asks: false, waited: false, told };
            header.write(message.as_mut_slice());
            let op = Op::SendUnexpected { to: *to, message };
            if self.context.post(QUIET | u64::from(at), op).is_ok() {
                return;
            }
        }
        let is_told = peer.is_some_and(|to| {
            let op = Op::SendControl { to, message: self.signed(Kind::Consumed, told) };
            self.context.post(QUIET | u64::from(at), op).is_ok()
        });
        if !is_told {
            self.links[at as usize].incoming.untell();
        }
    }

    /// Bytes to this end that wait to leave.
    #[must_use]
    pub fn waiting(&self, to: u32) -> u64 {
        let at = self.of_end.get(to as usize).copied().unwrap_or(0);
        self.links.get((at as usize).wrapping_sub(1)).map_or(0, |link| link.out.waiting())
    }

    /// Bytes to all ends that wait to leave, but for what was written into open blocks since these were looked at last: at most a block of each.
    #[inline]
    #[must_use]
    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// Where the last record to this end stands in its stream.
    #[must_use]
    pub fn written(&self, to: u32) -> u64 {
        self.positions(to).1
    }

    /// Whether what stands up to there has left: nobody can have heard of what has not.
    #[must_use]
    pub fn has_left(&self, to: u32, position: u64) -> bool {
        self.positions(to).0 >= position
    }

    fn positions(&self, to: u32) -> (u64, u64) {
        let at = self.of_end.get(to as usize).copied().unwrap_or(0);
        self.links.get((at as usize).wrapping_sub(1)).map_or((0, 0), |link| link.out.positions())
    }

    /// A message that says by itself who has sent it: control messages overtake the greeting of their connection.
    fn signed(&self, kind: Kind, told: Told) -> Message {
        let mut bytes = [0; SIGNED];
        Header { kind, asks: false, waited: false, told }.write(&mut bytes);
        bytes[HEADER..][..16].copy_from_slice(&self.directory.token);
        bytes[HEADER + 16..][..4].copy_from_slice(&self.me.to_le_bytes());
        bytes[HEADER + 20..][..4].copy_from_slice(&self.limits.window.to_le_bytes());
        Message::copied(&bytes)
    }

    /// Moves bytes between this process and that of another end: at once, where this side can do so by itself, or else by the transport's rounds.
    pub(super) fn transfer(
        &mut self,
        with: u32,
        token: u64,
        op: impl FnOnce(Peer) -> Op,
    ) -> Result<(), Error> {
        let (at, peer) = self.peer_of(with)?;
        if self.ended.len() >= ENDED_MAX {
            return Err(Error::Full(with));
        }
        self.links[at as usize].is_active = true;
        let op = op(peer);
        let may_wait = self.may_wait;
        let begun = op
            .transit()
            .map_or(Begun::No, |transit| self.context.begin(&Transit { may_wait, ..transit }));
        // What is not open yet may never be: the end of what was posted tells so.
        if matches!(begun, Begun::Later) && self.links[at as usize].moves_by == Some(peer) {
            return Err(Error::Full(with));
        }
        let is_over = begun.finish();
        let op = match op {
            Op::Put { local, .. } | Op::Get { local, .. } if is_over => {
                self.links[at as usize].moves_by = Some(peer);
                let returned = Returned::Slice(local);
                self.ended.push_back(Event::Moved { token, result: Ok(()), returned });
                return Ok(());
            }
            // Posting it tells why it was not done so, or does it in another way.
            op => op,
        };
        match self.context.post(TRANSFER | token, op) {
            Ok(_) => Ok(()),
            // A peer that is not known any more is gone: that is told once all was heard that it has sent.
            Err(refused) if matches!(refused.error, NaError::Again | NaError::UnknownPeer) => {
                Err(Error::Full(with))
            }
            Err(refused) => Err(refused.error.into()),
        }
    }

    /// Who moves memory of an end's process.
    fn peer_of(&mut self, end: u32) -> Result<(u32, Peer), Error> {
        let at = self.link_to(end)?;
        match self.links[at as usize].way {
            Way::Peer(peer) => Ok((at, peer)),
            // To oneself, or to a thread of one's own process: the context is its own peer.
            Way::Near => Ok((at, self.context.lookup(&self.directory.addresses[end as usize])?)),
            Way::None | Way::Left | Way::Gone(_) => Err(Error::Full(end)),
        }
    }

    /// Reads memory of the process of this end here and now, where this side can do so by itself: `into` holds the bytes then, and anything
    /// otherwise. [`Port::get`] tells why not.
    pub fn fetch(&mut self, from: u32, remote: &Descriptor, offset: u64, into: &mut [u8]) -> bool {
        let Ok((at, peer)) = self.peer_of(from) else { return false };
        self.links[at as usize].is_active = true;
        let is_over = self.context.fetch(peer, remote, offset, into, self.may_wait).finish();
        if is_over {
            self.links[at as usize].moves_by = Some(peer);
        }
        is_over
    }

    /// A peer has broken the protocol: its connection is closed, and its link ends.
    #[cold]
    pub(super) fn misbehaved(&mut self, peer: Peer, broken: Broken) {
        tracing::warn!(end = self.me, %broken, "a peer broke the protocol of channels");
        self.context.forget(peer);
        self.latest = None;
        if let Some(connection) = self.connections.remove(&peer) {
            self.end_link(connection.link, GoneReason::Misbehaved(broken.to_string().into()));
        }
    }

    /// Its owner finds that what this end has sent breaks the rules of what it carries: nothing comes from it any more, and [`Event::Gone`]
    /// says why. The other side sees that its connection is closed.
    #[cold]
    pub fn expel(&mut self, end: u32, why: &str) {
        tracing::warn!(
            end = self.me,
            from = end,
            why,
            "a peer broke the rules of a channel's user"
        );
        let Ok(at) = self.link_of(end) else { return };
        if matches!(self.links[at as usize].way, Way::Near) && end != self.me {
            // Who has left hears nothing.
            let _left = self.near.push(end, Parcel::Gone { from: self.me });
        }
        self.end_link(at, GoneReason::Misbehaved(why.into()));
    }

    /// The other end is gone: whoever was to be told is given back.
    #[cold]
    pub(super) fn end_link(&mut self, at: u32, reason: GoneReason) {
        let link = &mut self.links[at as usize];
        if matches!(link.way, Way::Gone(_)) {
            return;
        }
        link.way = Way::Gone(reason.clone());
        self.widened -= link.incoming.narrow();
        let (end, notices) = (link.end, link.out.end());
        self.queued -= std::mem::take(&mut link.queued);
        let stale: Vec<Peer> = self
            .connections
            .iter()
            .filter(|(_, it)| it.link == at)
            .map(|(peer, _)| *peer)
            .collect();
        for peer in stale {
            self.connections.remove(&peer);
            self.context.forget(peer);
        }
        self.latest = None;
        self.ended.push_back(Event::Gone { end, reason, notices });
    }

    /// Ends the wait of this port's owner, from any thread.
    #[must_use]
    pub fn waiter(&self) -> Arc<dyn hg_na::Waiter> {
        Arc::clone(&self.waiter)
    }
}

/// So many events that do not come from the transport wait to be taken, before a transfer is refused.
const ENDED_MAX: usize = 1024;
