//! Taking messages out of the rings of one peer. What is read there is checked before it is used.

use std::collections::BTreeSet;

use hg_na::{Completion, INLINE_MAX, Message, OpId, Peer, Returned, Tag};

use crate::{
    ahead, completion,
    connection::Connection,
    fail,
    ferry::Ferry,
    layout::Slot,
    link::{ANSWERS, BodyClaim, CONTROL_MAX, Link, REQUESTS, SHORT, slots_of},
    receives::{Receive, Receives},
    ring::{Broken, Payload, Word},
};

/// Messages of one ring that are taken in one round, so that one busy peer does not starve others. Few: of many, the first
/// would be answered after the last was copied, and two sides with several calls in flight would take turns instead of working
/// side by side (1.2 times the calls of 16 in flight between cores, together with the line below).
pub(crate) const BURST: u32 = 4;

/// So many slots behind a message, another one is asked for before it is read: lines come from another core's cache, each as
/// slowly as the one before. What is not written yet is here already, from the lap before.
const FETCHED_AHEAD: u32 = 6;

/// What all connections of a context need to receive.
#[derive(Debug)]
pub(crate) struct Intake {
    /// Whether unexpected messages are taken, of whoever is admitted himself.
    pub(crate) admission: bool,
    /// Connections to which notes came about transfers. The end of a round handles them.
    pub(crate) ferries: BTreeSet<Peer>,
}

impl Connection {
    /// Takes what is there, at most [`BURST`] messages of each ring; says how many. What the peer cannot
    /// have written in good faith is left in `fault`.
    #[inline(always)]
    pub(crate) fn poll(&mut self, intake: &mut Intake, done: &mut Vec<Completion>) -> u32 {
        let Some(link) = self.link.as_mut() else { return 0 };
        let (from, fault) = (self.peer, &mut self.fault);
        let others = (&mut self.receives, &mut self.ferry);
        let mut taken = poll_answers(link, others, fault, from, intake, done);
        if intake.admission & self.is_admitted {
            let requests = poll_requests(link, fault, from, done);
            self.owed = requests;
            taken += requests;
        }
        taken
    }

    /// Takes a short answer to this tag, where that comes next.
    #[inline(always)]
    pub(crate) fn collect(&mut self, tag: Tag, answer: &mut Message) -> bool {
        let Some(link) = self.link.as_mut().filter(|_| self.is_hot) else { return false };
        let Some(slot) = link.peek(ANSWERS) else { return false };
        ahead::fetch(link.part(ANSWERS, FETCHED_AHEAD));
        let word = slot.claimed_word();
        let is_its = is_short(word, ANSWERS) && slot.bytes[0].load() == tag; // C2
        if !is_its || self.receives.take_plain(tag).is_none() {
            return false;
        }
        answer.set_slot(answer_in(slot), length(word));
        take(link, ANSWERS);
        self.empty_rounds = 0;
        self.is_streaming = false;
        true
    }

    /// Takes a short request, where that comes next.
    #[inline(always)]
    pub(crate) fn take_request(&mut self, admission: bool, request: &mut Message) -> bool {
        let Some(link) = self.link.as_mut().filter(|_| self.is_hot) else { return false };
        let Some(slot) = link.peek(REQUESTS) else { return false };
        ahead::fetch(link.part(REQUESTS, FETCHED_AHEAD));
        let word = slot.claimed_word(); // C2
        if !is_short(word, REQUESTS) || !(admission & self.is_admitted) {
            return false;
        }
        request.set_slot(bytes_of(slot.payload()), length(word)); // C2
        take(link, REQUESTS);
        (self.empty_rounds, self.is_streaming, self.owed) = (0, false, 1);
        true
    }

    /// Whether a round of polling would take something; asked after the fence of a sleep.
    pub(crate) fn has_work(&self, admission: bool) -> bool {
        let Some(link) = &self.link else { return false };
        link.is_ready(ANSWERS) || (admission && self.is_admitted && link.is_ready(REQUESTS))
    }
}

#[inline(always)]
fn poll_requests(
    link: &mut Link,
    fault: &mut Option<Broken>,
    from: Peer,
    done: &mut Vec<Completion>,
) -> u32 {
    let mut taken = 0;
    while let Some(slot) = link.peek(REQUESTS) {
        ahead::fetch(link.part(REQUESTS, FETCHED_AHEAD));
        let word = slot.claimed_word();
        if is_short(word, REQUESTS) {
            let message = Message::from_slot(bytes_of(slot.payload()), length(word));
            done.push(Completion::Unexpected { from, message });
            take(link, REQUESTS);
        } else if let Err(broken) = take_request(link, from, done) {
            *fault = Some(broken);
            break;
        }
        taken += 1;
        if taken == BURST {
            break;
        }
    }
    taken
}

#[inline(always)]
fn poll_answers(
    link: &mut Link,
    (receives, ferry): (&mut Receives, &mut Ferry),
    fault: &mut Option<Broken>,
    from: Peer,
    intake: &mut Intake,
    done: &mut Vec<Completion>,
) -> u32 {
    let mut taken = 0;
    while let Some(slot) = link.peek(ANSWERS) {
        ahead::fetch(link.part(ANSWERS, FETCHED_AHEAD));
        let word = slot.claimed_word();
        let tag = slot.bytes[0].load(); // C2
        // The length is checked before the receive is taken out: a broken message must not end it.
        if is_short(word, ANSWERS)
            && let Some(receive) = receives.take_plain(tag)
        {
            let message = Message::from_slot(answer_in(slot), length(word));
            done.push(ended(from, receive, message));
            take(link, ANSWERS);
        } else if let Err(broken) = take_other(link, (receives, ferry), from, intake, done) {
            *fault = Some(broken);
            break;
        }
        taken += 1;
        if taken == BURST {
            break;
        }
    }
    taken
}

/// An unexpected message that is long: of several slots, or with a body, checked.
#[inline(never)]
fn take_request(link: &mut Link, from: Peer, done: &mut Vec<Completion>) -> Result<(), Broken> {
    let Some(slot) = link.peek(REQUESTS) else { return Ok(()) };
    let word = slot.claimed_word();
    if word.kind() == Word::INLINE {
        let message = wide(link, length(word)).ok_or(Broken::TooLongForSlot)?;
        done.push(Completion::Unexpected { from, message });
        return Ok(());
    }
    if word.kind() != Word::BODY {
        return Err(Broken::Kind);
    }
    let claim = BodyClaim::check(slot.bytes[0].load(), word.len())?; // C2
    let message = link.copy_out(claim)?;
    done.push(Completion::Unexpected { from, message });
    take_body(link, REQUESTS, word.len());
    Ok(())
}

/// Takes a message of several slots; `None`: none is that long.
#[inline]
fn wide(link: &mut Link, len: usize) -> Option<Message> {
    let slots = slots_of(len)?;
    // Where one wide message comes, others follow.
    for part in slots..slots + FETCHED_AHEAD {
        ahead::fetch(link.part(REQUESTS, part));
    }
    let parts = (0..slots).map(|part| bytes_of(link.part(REQUESTS, part).payload())); // C2
    let message = Message::joined(parts, len);
    for _ in 0..slots {
        take(link, REQUESTS);
    }
    Some(message)
}

/// Anything in the answers' ring but a short expected message with a receive in its place.
#[cold]
fn take_other(
    link: &mut Link,
    (receives, ferry): (&mut Receives, &mut Ferry),
    from: Peer,
    intake: &mut Intake,
    done: &mut Vec<Completion>,
) -> Result<(), Broken> {
    let Some(slot) = link.peek(ANSWERS) else { return Ok(()) };
    let word = slot.claimed_word(); // C2
    match word.kind() {
        Word::NOTE => {
            ferry.arrived(word, slot.payload())?; // C2
            intake.ferries.insert(from);
        }
        Word::CONTROL if length(word) <= CONTROL_MAX => {
            let message = Message::from_slot(bytes_of(slot.payload()), length(word)); // C2
            done.push(Completion::Control { from, message });
        }
        _ => return take_answer(link, receives, from, done),
    }
    take(link, ANSWERS);
    Ok(())
}

/// An expected message that is long, or for which nobody waits any more: that one is dropped.
fn take_answer(
    link: &mut Link,
    receives: &mut Receives,
    from: Peer,
    done: &mut Vec<Completion>,
) -> Result<(), Broken> {
    let Some(slot) = link.peek(ANSWERS) else { return Ok(()) };
    let (word, tag) = (slot.claimed_word(), slot.bytes[0].load()); // C2
    // Checked before the receive is taken out: a broken message must not end it.
    let claim = if word.kind() == Word::BODY {
        Some(BodyClaim::check(slot.bytes[1].load(), word.len())?) // C2
    } else if is_short(word, ANSWERS) {
        None
    } else {
        return Err(Broken::TooLongForSlot);
    };
    let message = match claim {
        Some(claim) => link.copy_out(claim)?,
        None => Message::from_slot(answer_in(slot), length(word)),
    };
    if let Some(receive) = receives.take(tag) {
        done.push(ended(from, receive, message));
    }
    match claim {
        Some(_) => take_body(link, ANSWERS, word.len()),
        None => take(link, ANSWERS),
    }
    Ok(())
}

#[inline(always)]
fn ended(from: Peer, receive: Receive, message: Message) -> Completion {
    let id = OpId { scope: from.index(), serial: receive.serial };
    completion::done(id, receive.token, Returned::Message(message))
}

/// Counts a message that was copied out of its slot.
#[inline(always)]
fn take(link: &mut Link, ring: usize) {
    fail::point("copied");
    if link.rx[ring].advance() {
        link.write_back(ring);
    }
}

/// The same for one whose body of `len` bytes was copied out.
fn take_body(link: &mut Link, ring: usize, len: u32) {
    fail::point("copied");
    if link.rx[ring].advance_body(len) {
        link.write_back(ring);
    }
}

/// Whether a slot claims a message inside it, of a length that fits. Other kinds lie above any length.
#[inline(always)]
fn is_short(word: Word, ring: usize) -> bool {
    (word.0 as usize) <= SHORT[ring]
}

#[inline(always)]
fn length(word: Word) -> usize {
    word.len() as usize
}

/// A short expected message, copied out of its slot: its first eight bytes are the tag.
#[inline(always)]
fn answer_in(slot: &Slot) -> [u8; INLINE_MAX] {
    let [_tag, a, b, c, d, e, f] = slot.payload();
    bytes_of([a, b, c, d, e, f, 0])
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
