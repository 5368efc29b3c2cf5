//! What goes out to those who have asked: answers, control messages, last sentences.

use hg_na::{Error, Message, Op, Peer};

use super::Protocol;
use crate::{
    backlog::{Posted, SHORT_ANSWER},
    deferred::Deferred,
    error::{STATUS_TEXT_MAX, Status},
    header::{Header, Kind},
    kept::Kept,
    operations::Owner,
};

/// What is answered instead of a result for which its origin has no room.
const UNTAKEN: &[u8] = b"the handler has run, but too many bytes of answers wait to be taken by this caller (the target's `Builder::backlog_bytes_max`)";

impl Protocol {
    /// Hands an answer to the transport; what is left in its place is only to be overwritten.
    #[inline]
    pub fn reply(&mut self, origin: Peer, id: u64, answer: &mut Message) {
        if (self.backlog.is_empty() || !self.backlog.has_answers(origin))
            && let Some(context) = &mut self.context
            && context.reply(origin, id, Owner::Nobody.quiet_token(), answer).is_some()
        {
            return;
        }
        let message = std::mem::replace(answer, Message::from(Vec::new()));
        self.post_answer(Op::SendExpected { to: origin, tag: id, message });
    }

    /// A handler that was kept beyond its round has ended. Its answer is handed to the transport, unless the request was answered
    /// before.
    #[inline]
    pub fn end(&mut self, origin: Peer, id: u64, answer: Option<Message>) {
        if self.serves.end(origin, id)
            && let Some(mut answer) = answer
        {
            self.reply(origin, id, &mut answer);
        }
    }

    /// Answers a request that was never in service, with a failure.
    pub fn refuse(&mut self, origin: Peer, id: u64, message: Message) {
        self.post_answer(Op::SendExpected { to: origin, tag: id, message });
    }

    /// Posts an answer or control message, which waits when there is no room.
    #[inline(never)]
    fn post_answer(&mut self, op: Op) {
        let peer = op.peer();
        self.is_at_rest = false;
        let Some(context) = &mut self.context else { return };
        let token = Owner::Nobody.quiet_token();
        match self.backlog.post(context.as_mut(), token, op) {
            Posted::Accepted(_) => {}
            Posted::Waits(_) => self.serves.handle_change(peer),
            Posted::Refused(op, error) => {
                handle_untaken(&mut self.kept, &mut self.deferred, &op, &error);
                if let Op::SendExpected { tag, message, .. } = &op
                    && message.len() as u64 > SHORT_ANSWER
                    && matches!(error, Error::Limit { .. })
                {
                    let message = status_message(*tag, Status::Rejected, UNTAKEN, false);
                    self.post_answer(Op::SendExpected { to: peer, tag: *tag, message });
                }
            }
        }
    }

    fn control(&mut self, peer: Peer, header: &Header, text: &[u8]) {
        let message = Message::from(header.message(text));
        self.post_answer(Op::SendControl { to: peer, message });
    }

    /// Tells a peer something about a call, in a control message without a payload.
    #[cold]
    pub fn tell(&mut self, peer: Peer, kind: Kind, id: u64) {
        self.control(peer, &Header::control(kind, id), &[]);
    }

    /// Says a last sentence to a peer and closes the connection.
    pub fn disconnect(&mut self, peer: Peer, sentence: &str) {
        tracing::warn!(?peer, "disconnecting a peer: {sentence}");
        let header = Header::control(Kind::Fault, 0);
        let end = sentence.floor_char_boundary(self.fault_text_max);
        self.control(peer, &header, &sentence.as_bytes()[..end]);
        if let Some(context) = &mut self.context {
            context.forget(peer);
        }
        self.addresses.remove(&peer);
    }
}

/// The transport will never take this answer or control message.
pub(super) fn handle_untaken(kept: &mut Kept, deferred: &mut Deferred, op: &Op, error: &Error) {
    tracing::debug!(%error, "an answer found no taker");
    if let Op::SendExpected { to, tag, .. } = *op {
        kept.results.free((to, tag), deferred);
    }
}

/// A failure as an answer.
#[must_use]
pub fn status_message(id: u64, status: Status, text: &[u8], checksum: bool) -> Message {
    let text = &text[..text.len().min(STATUS_TEXT_MAX)];
    let header = Header::answer(id, status as u8, checksum);
    Message::copied(&header.message(text))
}
