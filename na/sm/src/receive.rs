//! Taking messages out of the rings of one peer. What is read there is checked before it is used.

use std::sync::Arc;

use hg_na::{Completion, Done, INLINE_MAX, Message, Returned};

use crate::{
    body::Pool,
    connection::Connection,
    fail,
    layout::Slot,
    link::{ANSWERS, BodyClaim, CONTROL, Link, REQUESTS, SHORT},
    receives::{Match, Receives},
    ring::{Broken, Payload, Word},
};

/// Messages of one ring that are taken in one round, so that one busy peer does not starve others.
pub(crate) const BURST: u32 = 32;

/// Where messages go.
#[derive(Debug)]
pub(crate) struct Sink<'a> {
    pub(crate) done: &'a mut Vec<Completion>,
    pub(crate) pool: &'a Arc<Pool>,
    /// Whether unexpected messages are taken.
    pub(crate) admission: bool,
    /// Set when a body was received: buffers to trim later.
    pub(crate) bodies: &'a mut bool,
}

impl Connection {
    /// Takes what is there, at most [`BURST`] messages of each kind; says how many.
    #[inline]
    pub(crate) fn poll(&mut self, sink: &mut Sink<'_>) -> Result<u32, Broken> {
        let Some(link) = self.link.as_mut() else { return Ok(0) };
        let mut taken = 0;
        while let Some(slot) = peek(link, CONTROL)? {
            let message = inline(slot.claimed_word(), slot.payload(), CONTROL)?;
            sink.done.push(Completion::Control { from: self.peer, message });
            take(link, CONTROL, false);
            taken += 1;
            if taken == BURST {
                break;
            }
        }
        if !self.is_stalled && peek(link, ANSWERS)?.is_some() {
            taken += self.poll_answers(sink)?;
        }
        if sink.admission {
            taken += self.poll_requests(sink)?;
        }
        Ok(taken)
    }

    #[inline(always)]
    fn poll_requests(&mut self, sink: &mut Sink<'_>) -> Result<u32, Broken> {
        let Some(link) = self.link.as_mut() else { return Ok(0) };
        let mut taken = 0;
        while taken < BURST
            && let Some(slot) = peek(link, REQUESTS)?
        {
            let word = slot.claimed_word();
            let payload = slot.payload();
            let message = if word.is_body() {
                body(link, word, payload[0], sink)?
            } else {
                inline(word, payload, REQUESTS)?
            };
            sink.done.push(Completion::Unexpected { from: self.peer, message });
            take(link, REQUESTS, word.is_body());
            taken += 1;
        }
        Ok(taken)
    }

    #[inline]
    fn poll_answers(&mut self, sink: &mut Sink<'_>) -> Result<u32, Broken> {
        let Some(link) = self.link.as_mut() else { return Ok(0) };
        let mut taken = 0;
        while taken < BURST
            && let Some(slot) = peek(link, ANSWERS)?
        {
            let word = slot.claimed_word();
            let [tag, payload @ ..] = slot.payload();
            // Checked before the receive is taken out: a broken message must not end it.
            let message = if word.is_body() {
                Claim::Body(BodyClaim::check(payload[0], word.len())?)
            } else {
                let [a, b, c, d, e, f] = payload;
                Claim::Inline(inline(word, [a, b, c, d, e, f, 0], ANSWERS)?)
            };
            let matched = self.receives.arrived(tag);
            let message = match (&matched, message) {
                (Match::Full, _) => {
                    self.is_stalled = true;
                    break;
                }
                (Match::Late, _) => None,
                (_, Claim::Inline(message)) => Some(message),
                (_, Claim::Body(claim)) => {
                    *sink.bodies = true;
                    Some(link.copy_out(claim, sink.pool))
                }
            };
            match (matched, message) {
                (Match::Receive(receive), Some(message)) => {
                    let id = Receives::id(self.peer.index(), &receive);
                    let returned = Returned::Message(message);
                    let done = Done { id, token: receive.token, result: Ok(()), returned };
                    sink.done.push(Completion::Done(done));
                }
                (Match::Hold, Some(message)) => self.receives.hold(tag, message),
                (_, _) => {}
            }
            take(link, ANSWERS, word.is_body());
            taken += 1;
        }
        Ok(taken)
    }

    /// Whether a round of polling would take something; asked after the fence of a sleep.
    pub(crate) fn has_work(&self, admission: bool) -> bool {
        let Some(link) = &self.link else { return false };
        link.is_ready(CONTROL)
            || (!self.is_stalled && link.is_ready(ANSWERS))
            || (admission && link.is_ready(REQUESTS))
    }
}

/// An expected message whose claims were checked.
enum Claim {
    Inline(Message),
    Body(BodyClaim),
}

#[inline(always)]
fn peek(link: &Link, ring: usize) -> Result<Option<&Slot>, Broken> {
    link.rx[ring].peek(&link.theirs.rings.rings[ring])
}

#[inline(always)]
fn take(link: &mut Link, ring: usize, with_body: bool) {
    fail::point("copied");
    let due = link.rx[ring].advance();
    if due || with_body {
        link.write_back(ring);
    }
}

#[inline(always)]
fn inline(word: Word, payload: Payload, ring: usize) -> Result<Message, Broken> {
    let len = word.len() as usize;
    if word.is_body() || len > SHORT[ring] {
        return Err(Broken("a short message is longer than its slot"));
    }
    let mut bytes = [0; INLINE_MAX];
    let (chunks, _) = bytes.as_chunks_mut::<8>();
    for (chunk, value) in chunks.iter_mut().zip(payload) {
        *chunk = value.to_ne_bytes();
    }
    Ok(Message::from_slot(bytes, len))
}

fn body(link: &Link, word: Word, offset: u64, sink: &mut Sink<'_>) -> Result<Message, Broken> {
    let claim = BodyClaim::check(offset, word.len())?;
    *sink.bodies = true;
    Ok(link.copy_out(claim, sink.pool))
}
