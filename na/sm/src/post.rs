//! Posting, cancelling and forgetting; none of it blocks, and nothing completes inside.

use hg_na::{
    Completion, Done, Error, GoneReason, Message, Op, OpId, Peer, QUIET, Reached, Rejected,
    Returned, Tag, Token,
};

use crate::{
    arena::MESSAGE_MAX,
    body::OutBody,
    connection::{Pending, Phase, failed, failed_send},
    context::SmContext,
    link::{ANSWERS, CONTROL, REQUESTS, SHORT, misbehaved},
    receives::Receive,
    send::Sent,
};

impl SmContext {
    #[inline(always)]
    pub(crate) fn post_op(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        if self.guard.is_child() {
            return Err(Rejected { op, error: Error::Forked });
        }
        let id = match &op {
            Op::SendUnexpected { to, message } => {
                self.send_at_once(token, *to, REQUESTS, 0, message)
            }
            Op::SendExpected { to, tag, message } => {
                self.send_at_once(token, *to, ANSWERS, *tag, message)
            }
            Op::RecvExpected { from, tag } => self.receive_hot(token, *from, *tag),
            _ => None,
        };
        match id {
            Some(id) => {
                // What is sent or received at once owns nothing: the message was inline.
                std::mem::forget(op);
                Ok(id)
            }
            None => self.post_slowly(token, op),
        }
    }

    #[inline(never)]
    fn post_slowly(&mut self, token: Token, op: Op) -> Result<OpId, Rejected> {
        match op {
            Op::SendUnexpected { to, message } => {
                self.send(token, to, REQUESTS, 0, message).map_err(|(error, message)| Rejected {
                    op: Op::SendUnexpected { to, message },
                    error,
                })
            }
            Op::SendExpected { to, tag, message } => {
                self.send(token, to, ANSWERS, tag, message).map_err(|(error, message)| Rejected {
                    op: Op::SendExpected { to, tag, message },
                    error,
                })
            }
            Op::SendControl { to, message } => {
                self.send(token, to, CONTROL, 0, message).map_err(|(error, message)| Rejected {
                    op: Op::SendControl { to, message },
                    error,
                })
            }
            Op::RecvExpected { from, tag } => self
                .receive(token, from, tag)
                .map_err(|error| Rejected { op: Op::RecvExpected { from, tag }, error }),
            transfer @ (Op::Put { .. } | Op::Get { .. }) => self.post_transfer(token, transfer),
            other => Err(Rejected { op: other, error: Error::Unsupported("this operation") }),
        }
    }

    /// The fast path of a short message; `None`: take the other, which also finds what is wrong.
    #[inline(always)]
    fn send_at_once(
        &mut self,
        token: Token,
        to: Peer,
        ring: usize,
        tag: Tag,
        message: &Message,
    ) -> Option<OpId> {
        let connection = self.peers.find(to)?;
        if !matches!(connection.send_inline(ring, tag, message), Ok(true)) {
            return None;
        }
        let id = self.next_id(to);
        if token & QUIET == 0 {
            self.sent.push(Sent { id, token });
        }
        Some(id)
    }

    /// The fast path of a receive: from a peer that is polled, and nothing unmatched is held.
    #[inline(always)]
    fn receive_hot(&mut self, token: Token, from: Peer, tag: Tag) -> Option<OpId> {
        let serial = self.serial + 1;
        let connection = self.peers.find(from)?;
        let is_plain = connection.is_hot && !connection.is_stalled && connection.is_open();
        if !is_plain || !connection.receives.post_plain(Receive { tag, serial, token }) {
            return None;
        }
        self.serial = serial;
        Some(OpId { scope: from.index(), serial })
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
        ring: usize,
        tag: Tag,
        message: Message,
    ) -> Result<OpId, (Error, Message)> {
        let max = if ring == CONTROL { SHORT[CONTROL] } else { MESSAGE_MAX as usize };
        if message.len() > max {
            return Err((Error::TooLong { len: message.len(), max }, message));
        }
        let serial = self.serial + 1;
        let Some(connection) = self.peers.find(to) else {
            return Err((Error::UnknownPeer, message));
        };
        if let Some(error) = connection.refusal() {
            return Err((error, message));
        }
        connection.queue(ring, Pending { serial, token, tag, message })?;
        self.serial = serial;
        self.start(to);
        self.flush(to);
        Ok(OpId { scope: to.index(), serial })
    }

    /// Publishes what is queued for a peer; what remains puts it into the backlog.
    pub(crate) fn flush(&mut self, to: Peer) -> bool {
        let Some(connection) = self.peers.find(to) else { return false };
        if !connection.is_open() {
            return false;
        }
        match connection.flush(&mut self.finished) {
            Ok(moved) => {
                if moved && !connection.is_dirty {
                    connection.is_dirty = true;
                    self.dirty.push(to);
                    self.uses_bodies = true;
                }
                if connection.has_queued() && !connection.is_backlogged {
                    connection.is_backlogged = true;
                    self.backlog.push(to);
                    if self.is_sleeping {
                        self.chore(); // The sleeper has not published that it waits for space.
                    }
                }
                moved
            }
            Err(broken) => {
                self.end(to, misbehaved(broken));
                true
            }
        }
    }

    #[inline]
    fn receive(&mut self, token: Token, from: Peer, tag: Tag) -> Result<OpId, Error> {
        let serial = self.serial + 1;
        let Some(connection) = self.peers.find(from) else { return Err(Error::UnknownPeer) };
        if !matches!(connection.phase, Phase::Open)
            && let Some(error) = connection.refusal()
        {
            return Err(error);
        }
        let id = OpId { scope: from.index(), serial };
        if let Some(message) = connection.receives.take_unmatched(tag) {
            let returned = Returned::Message(message);
            self.finished.push(Completion::Done(Done { id, token, result: Ok(()), returned }));
            self.chore();
        } else if !connection.receives.post(Receive { tag, serial, token }) {
            return Err(Error::TagInUse(tag));
        }
        self.serial = serial;
        self.expect(from);
        Ok(id)
    }

    /// An answer will come: look where it comes from, unless somebody sleeps.
    #[inline]
    fn expect(&mut self, from: Peer) {
        let Some(connection) = self.peers.find(from) else { return };
        if connection.is_hot && !connection.is_stalled {
            return;
        }
        let was_stalled = std::mem::take(&mut connection.is_stalled);
        if !connection.is_open() {
            self.start(from);
        } else if was_stalled {
            self.kick(from);
        } else if !self.is_sleeping {
            self.activate(from);
        }
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
        let size = size.ok_or(Error::TooLong { len, max: MESSAGE_MAX as usize })?;
        let connection = self.peers.find(to).ok_or(Error::UnknownPeer)?;
        // Messages wait already, behind which this one would keep space from them.
        if !connection.queues[REQUESTS].is_empty() {
            return Ok(Message::from(vec![0; len]));
        }
        let Some(link) = connection.link.as_mut() else { return Ok(Message::from(vec![0; len])) };
        match link.reserve(0, size) {
            Ok(Some(place)) => {
                let body = OutBody::new(std::sync::Arc::clone(&link.own.arena), 0, place, size);
                if !connection.is_dirty {
                    connection.is_dirty = true;
                    self.dirty.push(to);
                }
                self.uses_bodies = true;
                Ok(Message::from_body(Box::new(body)))
            }
            Ok(None) => Ok(Message::from(vec![0; len])),
            Err(broken) => {
                self.end(to, misbehaved(broken));
                Ok(Message::from(vec![0; len]))
            }
        }
    }

    pub(crate) fn cancel_op(&mut self, id: OpId) {
        let completion = match self.peers.at(id.scope) {
            None => return,
            Some(connection) => {
                if let Some(receive) = connection.receives.cancel(id.serial) {
                    let error = Error::Cancelled;
                    failed(id, receive.token, error, Reached::Unknown, Returned::Nothing)
                } else if let Some(pending) = connection.take_queued(id.serial) {
                    failed_send(id.scope, pending, Error::Cancelled)
                } else if let Some(completion) = self.transfers.cancel(id) {
                    completion
                } else {
                    return;
                }
            }
        };
        self.finished.push(completion);
        self.chore();
    }

    pub(crate) fn forget_peer(&mut self, peer: Peer) {
        let Some(connection) = self.peers.find(peer) else { return };
        if connection.phase == Phase::Greeting {
            return;
        }
        self.finish(peer, &GoneReason::Forgotten);
        self.chore();
    }
}
