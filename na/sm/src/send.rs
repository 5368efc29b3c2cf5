//! Publishing messages of one connection: at once when nothing waits before them, else from queues.

use std::{collections::VecDeque, sync::Arc};

use hg_na::{Completion, Done, Error, Message, OpId, QUIET, Returned, Token};

use crate::{
    arena::{Lane, MESSAGE_MAX},
    body::{OutBody, OwnArena},
    connection::{Connection, Pending, QUEUE_DEPTH, failed_send, given_back},
    link::{ANSWERS, Kind, Link, REQUESTS, SHORT, slots_of},
    os::room,
    ring::{Broken, Word},
};

/// A message that was published and whose completion is still to be told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) id: OpId,
    pub(crate) token: Token,
}

impl Sent {
    /// The completion: the message lived in a slot or in the arena.
    #[inline]
    pub(crate) fn completion(self) -> Completion {
        let Self { id, token } = self;
        Completion::Done(Done { id, token, result: Ok(()), returned: Returned::Nothing })
    }
}

/// What became of a message on the fast path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inline {
    /// Nothing: take the other path, which also finds what is wrong.
    Refused,
    /// Published.
    Sent,
    /// Published, and the peer is to be rung.
    Ring,
}

/// What became of an attempt to publish.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// Published; a message in the poster's own memory comes back.
    Sent(Returned),
    /// No slot, or no space in the arena: as it was.
    NoSpace(Message),
}

impl Connection {
    /// The fast path: an inline message, nothing queued before it, a slot free.
    #[inline(always)]
    pub(crate) fn send_inline(&mut self, kind: Kind, message: &Message) -> Inline {
        let (Some((bytes, len)), Some(link)) = (message.slot(), self.link.as_mut()) else {
            return Inline::Refused;
        };
        let ring = kind.ring();
        let may = len <= kind.short() && self.is_flowing && self.queues[ring].is_empty();
        if !may || !link.tx[ring].has_known_room() {
            return Inline::Refused;
        }
        if publish_inline(link, kind, bytes, len) { Inline::Ring } else { Inline::Sent }
    }

    /// The same for a request of a few slots in memory of its own; it is copied.
    #[inline(never)]
    pub(crate) fn send_wide(&mut self, message: &Message) -> Inline {
        if message.body().is_some() {
            return Inline::Refused;
        }
        let bytes = message.as_slice();
        let Some(slots) = slots_of(bytes.len()).filter(|slots| *slots > 1) else {
            return Inline::Refused;
        };
        let Some(link) = self.link.as_mut() else { return Inline::Refused };
        let may = self.is_flowing && self.queues[REQUESTS].is_empty();
        // What is wrong is found by the flush.
        if !may || link.has_room_for(REQUESTS, slots) != Ok(true) {
            return Inline::Refused;
        }
        if link.publish_wide(bytes, slots) { Inline::Ring } else { Inline::Sent }
    }

    /// The same for a request in this connection's arena, which leaves it.
    #[inline(never)]
    pub(crate) fn send_body(&mut self, message: &mut Message) -> Inline {
        let body: Option<&mut dyn std::any::Any> = message.body_mut().map(|body| body as _);
        let out = body.and_then(|body| body.downcast_mut::<OutBody>());
        let (Some(out), Some(link)) = (out, self.link.as_mut()) else { return Inline::Refused };
        let is_next = self.is_flowing && self.queues[REQUESTS].is_empty();
        let may = is_next && out.is_in(&link.own.arena);
        let (lane, place, len) = out.place();
        // What fits a slot goes in one.
        let is_long = len as usize > SHORT[REQUESTS] && !out.is_spent();
        if !may || !is_long || !link.tx[REQUESTS].has_known_room() {
            return Inline::Refused;
        }
        out.leave();
        link.push_body(Kind::Request, lane, place, len);
        Inline::Sent
    }

    /// Whether a ring that looked full has room after all. What is wrong is found by the flush.
    pub(crate) fn learns_of_room(&mut self, ring: usize) -> bool {
        self.link.as_mut().is_some_and(|link| link.has_room(ring) == Ok(true))
    }

    /// Whether the own arena has pages to give back.
    pub(crate) fn has_touched(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.own.lanes.iter().any(Lane::is_touched))
    }

    /// Queues a message behind others.
    pub(crate) fn queue(&mut self, pending: Pending) -> Result<(), (Error, Message)> {
        let queue = &mut self.queues[pending.kind.ring()];
        if queue.len() >= QUEUE_DEPTH {
            self.refusals.add(pending.kind.ring());
            return Err((Error::Again, pending.message));
        }
        queue.push_back(pending);
        Ok(())
    }

    /// Publishes what is queued, as far as there is space; says whether something moved.
    pub(crate) fn flush(&mut self, finished: &mut Vec<Completion>) -> Result<bool, Broken> {
        let scope = self.peer.index();
        let Some(link) = self.link.as_mut() else { return Ok(false) };
        let mut moved = self.ferry.is_waiting && self.ferry.publish(link)?;
        for (queue, ring) in self.queues.iter_mut().zip(0..) {
            while let Some(Pending { serial, token, kind, message }) = queue.pop_front() {
                let attempt = attempt(link, kind, message);
                match attempt {
                    Ok(Attempt::Sent(returned)) => {
                        let id = OpId { scope, serial };
                        if token & QUIET == 0 {
                            let result = Ok(());
                            finished.push(Completion::Done(Done { id, token, result, returned }));
                        }
                        moved = true;
                    }
                    Ok(Attempt::NoSpace(message)) => {
                        queue.push_front(Pending { serial, token, kind, message });
                        // Nothing is on its way whose end would make space: those behind hold it.
                        if link.tx[ring].is_drained() && bring_home(queue, &link.own.arena) {
                            continue;
                        }
                        if !link.lacks_memory(ring) {
                            break;
                        }
                        if let Some(pending) = queue.pop_front() {
                            finished.push(failed_send(scope, pending, room::no_memory()));
                        }
                        moved = true;
                    }
                    Err((broken, message)) => {
                        queue.push_front(Pending { serial, token, kind, message });
                        return Err(broken);
                    }
                }
            }
        }
        Ok(moved)
    }
}

/// Copies queued messages out of the arena, so that the one in front finds space; says whether any were there.
fn bring_home(queue: &mut VecDeque<Pending>, arena: &Arc<OwnArena>) -> bool {
    let mut any = false;
    for pending in queue {
        let body: Option<&dyn std::any::Any> = pending.message.body().map(|body| body as _);
        if body.and_then(|body| body.downcast_ref::<OutBody>()).is_some_and(|out| out.is_in(arena))
        {
            pending.message = Message::copied(pending.message.as_slice());
            any = true;
        }
    }
    any
}

/// Publishes a message of any kind when there is space.
pub(crate) fn attempt(
    link: &mut Link,
    kind: Kind,
    message: Message,
) -> Result<Attempt, (Broken, Message)> {
    let slots = if kind == Kind::Request { slots_of(message.len()) } else { None };
    match link.has_room_for(kind.ring(), slots.unwrap_or(1)) {
        Ok(true) => {}
        Ok(false) => return Ok(Attempt::NoSpace(message)),
        Err(broken) => return Err((broken, message)),
    }
    if message.len() <= kind.short() {
        let mut bytes = [0; hg_na::INLINE_MAX];
        bytes[..message.len()].copy_from_slice(message.as_slice());
        if publish_inline(link, kind, &bytes, message.len()) {
            link.ring();
        }
        return Ok(Attempt::Sent(given_back_unless_inline(message)));
    }
    if let Some(slots) = slots {
        if link.publish_wide(message.as_slice(), slots) {
            link.ring();
        }
        return Ok(Attempt::Sent(given_back_unless_inline(message)));
    }
    match message.into_body() {
        Ok(body) => attempt_body(link, kind, body),
        Err(message) => attempt_copy(link, kind, message),
    }
}

fn attempt_body(
    link: &mut Link,
    kind: Kind,
    mut body: Box<dyn hg_na::MessageBody>,
) -> Result<Attempt, (Broken, Message)> {
    let any: &mut dyn std::any::Any = body.as_mut();
    match any.downcast_mut::<OutBody>() {
        Some(out) if out.is_in(&link.own.arena) => {
            let (lane, place, len) = out.place();
            out.leave();
            link.push_body(kind, lane, place, len);
            Ok(Attempt::Sent(Returned::Nothing))
        }
        _ => attempt_copy(link, kind, Message::from_body(body)),
    }
}

fn attempt_copy(
    link: &mut Link,
    kind: Kind,
    message: Message,
) -> Result<Attempt, (Broken, Message)> {
    let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
    debug_assert!(len <= MESSAGE_MAX, "posting checks the length");
    let lane = usize::from(matches!(kind, Kind::Answer(_)));
    let place = match link.reserve(lane, len) {
        Ok(Some(place)) => place,
        Ok(None) => return Ok(Attempt::NoSpace(message)),
        Err(broken) => return Err((broken, message)),
    };
    link.own.arena.bytes.copy_in(place.offset, message.as_slice());
    link.push_body(kind, lane, place, len);
    Ok(Attempt::Sent(given_back_unless_inline(message)))
}

fn given_back_unless_inline(message: Message) -> Returned {
    if message.slot().is_some() { Returned::Nothing } else { given_back(message) }
}

#[inline(always)]
fn publish_inline(
    link: &mut Link,
    kind: Kind,
    bytes: &[u8; hg_na::INLINE_MAX],
    len: usize,
) -> bool {
    let (words, _) = bytes.as_chunks::<8>();
    let word = |at: usize| u64::from_ne_bytes(words[at]);
    let len = u32::try_from(len).unwrap_or(0);
    match kind {
        Kind::Request => link.publish(REQUESTS, Word::inline(len), word),
        Kind::Answer(tag) => {
            let tagged = |at| if at == 0 { tag } else { word(at - 1) };
            link.publish(ANSWERS, Word::inline(len), tagged)
        }
        Kind::Control => link.publish(ANSWERS, Word::control(len), word),
    }
}
