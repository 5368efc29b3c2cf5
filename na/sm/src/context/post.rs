//! Posting, cancelling and forgetting; none of it blocks, and nothing completes inside.

use std::sync::{Arc, atomic::Ordering};

use hg_na::{
    Error, Exchange, Exchanged, GoneReason, Message, Op, OpId, Peer, QUIET, Rejected, Returned,
    Tag, Token,
};

use crate::{
    arena::MESSAGE_MAX,
    body::OutBody,
    completion::done,
    connection::{Pending, Phase},
    context::SmContext,
    link::{CONTROL_MAX, Kind, REQUESTS, misbehaved},
    receives::Receive,
    send::Inline,
};

impl SmContext {
    #[inline]
    pub(crate) fn post_op(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        if self.guard.is_child() {
            return Err(Rejected { op, error: Error::Forked });
        }
        if let Op::SendUnexpected { to, message } = &op
            && let Some(id) = self.post_short(*to, token, Kind::Request, message)
        {
            return Ok(id);
        }
        match op {
            Op::SendUnexpected { to, message } => self.send(token, to, Kind::Request, message),
            Op::SendExpected { to, tag, message } => {
                self.send(token, to, Kind::Answer(tag), message)
            }
            Op::SendControl { to, message } => self.send(token, to, Kind::Control, message),
            Op::RecvExpected { from, tag } => self
                .receive(token, from, tag)
                .map_err(|error| Rejected { op: Op::RecvExpected { from, tag }, error }),
            transfer @ (Op::Put { .. } | Op::Get { .. }) => self.post_transfer(token, transfer),
            view @ Op::View { .. } => self.post_view(token, view),
            other => Err(Rejected { op: other, error: Error::Unsupported("this operation") }),
        }
    }

    /// The fast path of a message, or nothing: looked at where it is, since moving it about costs more than publishing it.
    #[inline(always)]
    pub(crate) fn post_short(
        &mut self,
        to: Peer,
        token: Token,
        kind: Kind,
        message: &Message,
    ) -> Option<OpId> {
        let connection = self.peers.find(to)?;
        let sent = connection.send_inline(kind, message);
        if sent == Inline::Refused {
            return None;
        }
        connection.own_ahead(kind);
        let id = self.next_id(to);
        let is_told = sent == Inline::Ring || token & QUIET == 0;
        Some(if is_told { self.tell(to, id, token, sent) } else { id })
    }

    /// Both at once, where both have a fast path.
    #[inline(always)]
    pub(crate) fn post_exchange(
        &mut self,
        exchange: &Exchange,
        message: &mut Message,
    ) -> Option<Exchanged> {
        if self.guard.is_child() {
            return None;
        }
        let &Exchange { to, tag, send, receive } = exchange;
        let connection = self.peers.find(to).filter(|it| it.is_hot && it.is_open())?;
        let place = connection.receives.plain_place(tag)?;
        // The request first: it is on its way meanwhile. Its answer is not looked for before the next round.
        let mut sent = connection.send_inline(Kind::Request, message);
        if sent == Inline::Refused {
            sent = connection.send_long(message);
        }
        if sent == Inline::Refused {
            return None;
        }
        let serial = self.serial + 2;
        self.serial = serial;
        connection.receives.put_plain(place, Receive { tag, serial, token: receive });
        if connection.receives.is_streaming()
            && let Some(link) = &connection.link
        {
            link.own_next(REQUESTS);
        }
        let ids = Exchanged {
            send: OpId { scope: to.index(), serial: serial - 1 },
            receive: OpId { scope: to.index(), serial },
        };
        if sent == Inline::Ring || send & QUIET == 0 {
            self.tell(to, ids.send, send, sent);
        }
        Some(ids)
    }

    /// A short message is published: its peer is to be rung, or its poster to be told.
    #[inline(never)]
    fn tell(&mut self, to: Peer, id: OpId, token: Token, sent: Inline) -> OpId {
        if sent == Inline::Ring
            && let Some(link) = self.peers.find(to).and_then(|it| it.link.as_mut())
        {
            link.ring();
            if self.unrung.load(Ordering::Relaxed) {
                self.chore(); // No sleep may last meanwhile. Relaxed: what this thread has written.
            }
        }
        if token & QUIET == 0 {
            self.finished.push(done(id, token, Returned::Nothing));
            self.has_leftovers = true;
        }
        id
    }

    #[inline(always)]
    pub(crate) fn next_id(&mut self, peer: Peer) -> OpId {
        self.serial += 1;
        OpId { scope: peer.index(), serial: self.serial }
    }

    fn send(
        &mut self,
        token: Token,
        to: Peer,
        kind: Kind,
        message: Message,
    ) -> Result<OpId, Rejected> {
        let rejected = |message, error| Err(Rejected { op: kind.op(to, message), error });
        if let Some(id) = self.post_short(to, token, kind, &message) {
            return Ok(id);
        }
        // Once more, after a look at how far the peer is.
        let has_room = self.peers.find(to).is_some_and(|it| it.learns_of_room(kind.ring()));
        if has_room && let Some(id) = self.post_short(to, token, kind, &message) {
            return Ok(id);
        }
        let serial = self.serial + 1;
        let Some(connection) = self.peers.find(to) else {
            return rejected(message, Error::UnknownPeer);
        };
        let max = if kind == Kind::Control { CONTROL_MAX } else { MESSAGE_MAX as usize };
        if message.len() > max {
            let error = Error::TooLong { len: message.len(), max };
            return rejected(message, error);
        }
        if let Err(error) = connection.takes_posts() {
            return rejected(message, error);
        }
        if let Err(message) = connection.queue(Pending { serial, token, kind, message }) {
            return rejected(message, Error::Again);
        }
        connection.own_ahead(kind);
        self.serial = serial;
        self.start(to);
        self.flush(to);
        Ok(OpId { scope: to.index(), serial })
    }

    #[inline]
    fn receive(&mut self, token: Token, from: Peer, tag: Tag) -> Result<OpId, Error> {
        let serial = self.serial + 1;
        let Some(connection) = self.peers.find(from) else { return Err(Error::UnknownPeer) };
        connection.takes_posts()?;
        let id = OpId { scope: from.index(), serial };
        if !connection.receives.post(Receive { tag, serial, token }) {
            return Err(Error::TagInUse(tag));
        }
        self.serial = serial;
        self.start(from);
        if !self.is_sleeping {
            self.activate(from); // An answer will come.
        }
        Ok(id)
    }

    /// Memory for a message: inside the message, in the arena, or private when neither is there.
    pub(crate) fn new_message(&mut self, to: Peer, len: usize) -> Result<Message, Error> {
        if self.guard.is_child() {
            return Err(Error::Forked);
        }
        if len <= hg_na::INLINE_MAX {
            return Ok(Message::inline(len));
        }
        let size = u32::try_from(len).ok().filter(|size| *size <= MESSAGE_MAX);
        let Some(size) = size else {
            return Err(Error::TooLong { len, max: MESSAGE_MAX as usize });
        };
        let Some(connection) = self.peers.find(to) else { return Err(Error::UnknownPeer) };
        // Where messages wait already, this one would keep space from them.
        let is_next = connection.queues[REQUESTS].is_empty();
        let link = connection.link.as_mut().filter(|_| is_next);
        match link.map(|link| (link.reserve(0, size), &link.own.arena)) {
            Some((Ok(Some(place)), arena)) => {
                let body = OutBody::new(Arc::clone(arena), 0, place, size);
                connection.note_dirty(&mut self.dirty);
                self.has_leftovers = true;
                return Ok(Message::from_body(Box::new(body)));
            }
            Some((Err(broken), _)) => self.end(to, misbehaved(broken)),
            Some((Ok(None), _)) | None => {}
        }
        let mut bytes = Vec::new();
        let room = bytes.try_reserve_exact(len);
        room.map_err(|_refused| Error::NoMemory { len: len as u64 })?;
        bytes.resize(len, 0);
        Ok(Message::from(bytes))
    }

    pub(crate) fn cancel_op(&mut self, id: OpId) {
        let Some(connection) = self.peers.at(id.scope) else { return };
        let Some(completion) = connection.cancel(id) else { return };
        self.finished.push(completion);
        connection.tell_room(&mut self.finished);
        self.chore();
    }

    pub(crate) fn forget_peer(&mut self, peer: Peer) {
        let Some(connection) = self.peers.find(peer) else { return };
        match connection.phase.clone() {
            Phase::Greeting => return,
            Phase::HungUp(reason) => {
                self.withheld.remove(&peer);
                self.bury(peer, reason);
            }
            Phase::Idle
            | Phase::Starting
            | Phase::Waiting(_)
            | Phase::Connecting
            | Phase::Open
            | Phase::Draining(_) => self.finish(peer, GoneReason::Forgotten),
        }
        self.chore();
    }
}
