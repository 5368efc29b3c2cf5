//! Taking messages out of the rings of one peer. What is read there is checked before it is used.

use std::sync::Arc;

use hg_na::{Completion, Done, INLINE_MAX, Message, Peer, Returned, Tag};

use crate::{
    body::Pool,
    connection::Connection,
    fail,
    layout::Slot,
    link::{ANSWERS, BodyClaim, CONTROL, Link, REQUESTS, SHORT},
    receives::{Match, Receive, Receives},
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
        while let Some(slot) = peek(link, CONTROL) {
            let len = inline_len(slot.claimed_word(), CONTROL)?;
            let message = Message::from_slot(bytes_of(slot.payload()), len);
            sink.done.push(Completion::Control { from: self.peer, message });
            take(link, CONTROL, false);
            taken += 1;
            if taken == BURST {
                break;
            }
        }
        if !self.is_stalled && peek(link, ANSWERS).is_some() {
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
            && let Some(slot) = peek(link, REQUESTS)
        {
            let word = slot.claimed_word();
            let payload = slot.payload();
            let from = self.peer;
            if word.is_body() {
                let message = body(link, word, payload[0], sink)?;
                sink.done.push(Completion::Unexpected { from, message });
            } else {
                let len = inline_len(word, REQUESTS)?;
                let message = Message::from_slot(bytes_of(payload), len);
                sink.done.push(Completion::Unexpected { from, message });
            }
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
            && let Some(slot) = peek(link, ANSWERS)
        {
            let word = slot.claimed_word();
            let [tag, payload @ ..] = slot.payload();
            // Checked before the receive is taken out: a broken message must not end it.
            let claim = if word.is_body() {
                Claim::Body(BodyClaim::check(payload[0], word.len())?)
            } else {
                Claim::Inline(inline_len(word, ANSWERS)?)
            };
            if let Claim::Inline(len) = claim
                && let Some(receive) = self.receives.take_plain(tag)
            {
                let [a, b, c, d, e, f] = payload;
                let message = Message::from_slot(bytes_of([a, b, c, d, e, f, 0]), len);
                sink.done.push(ended(self.peer, receive, message));
            } else if !take_answer(link, &mut self.receives, self.peer, tag, payload, claim, sink) {
                self.is_stalled = true;
                break;
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

/// An expected message that is long, or early, or late; `false`: it stays where it is.
#[cold]
fn take_answer(
    link: &Link,
    receives: &mut Receives,
    from: Peer,
    tag: Tag,
    payload: [u64; 6],
    claim: Claim,
    sink: &mut Sink<'_>,
) -> bool {
    let matched = receives.arrived(tag);
    let message = match (&matched, claim) {
        (Match::Full, _) => return false,
        (Match::Late, _) => return true,
        (_, Claim::Inline(len)) => {
            let [a, b, c, d, e, f] = payload;
            Message::from_slot(bytes_of([a, b, c, d, e, f, 0]), len)
        }
        (_, Claim::Body(claim)) => {
            *sink.bodies = true;
            link.copy_out(claim, sink.pool)
        }
    };
    match matched {
        Match::Receive(receive) => sink.done.push(ended(from, receive, message)),
        Match::Hold | Match::Late | Match::Full => receives.hold(tag, message),
    }
    true
}

/// Where an expected message is; checked.
#[derive(Debug, Clone, Copy)]
enum Claim {
    /// In its slot, so many bytes.
    Inline(usize),
    Body(BodyClaim),
}

#[inline(always)]
fn ended(from: Peer, receive: Receive, message: Message) -> Completion {
    let id = Receives::id(from.index(), &receive);
    let returned = Returned::Message(message);
    Completion::Done(Done { id, token: receive.token, result: Ok(()), returned })
}

#[inline(always)]
fn peek(link: &Link, ring: usize) -> Option<&Slot> {
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

/// Checks what a slot claims about a message inside it.
#[inline(always)]
fn inline_len(word: Word, ring: usize) -> Result<usize, Broken> {
    let len = word.len() as usize;
    if word.is_body() || len > SHORT[ring] {
        return Err(Broken::TooLongForSlot);
    }
    Ok(len)
}

#[inline(always)]
fn bytes_of(payload: Payload) -> [u8; INLINE_MAX] {
    let mut bytes = [0; INLINE_MAX];
    let (chunks, _) = bytes.as_chunks_mut::<8>();
    for (chunk, value) in chunks.iter_mut().zip(payload) {
        *chunk = value.to_ne_bytes();
    }
    bytes
}

fn body(link: &Link, word: Word, offset: u64, sink: &mut Sink<'_>) -> Result<Message, Broken> {
    let claim = BodyClaim::check(offset, word.len())?;
    *sink.bodies = true;
    Ok(link.copy_out(claim, sink.pool))
}
