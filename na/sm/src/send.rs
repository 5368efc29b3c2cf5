//! Publishing messages of one connection: at once when nothing waits before them, else from queues.

use std::{collections::VecDeque, sync::Arc};

use hg_na::{Completion, Message, OpId, QUIET, Returned};

use crate::{
    arena::{Lane, MESSAGE_MAX},
    body::{OutBody, OwnArena},
    completion::done,
    connection::{Connection, Pending, QUEUE_DEPTH, failed_send, given_back},
    link::{ANSWERS, Kind, Link, REQUESTS, slots_of},
    os::room,
    ring::{Broken, Word},
};

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

impl Connection {
    /// The fast path: an inline message, nothing queued before it, a slot free.
    #[inline(always)]
    pub(crate) fn send_inline(&mut self, kind: Kind, message: &Message) -> Inline {
        let is_open = self.is_open();
        let (Some((bytes, len)), Some(link)) = (message.slot(), self.link.as_mut()) else {
            return Inline::Refused;
        };
        let ring = kind.ring();
        let may = len <= kind.short() && is_open && self.queues[ring].is_empty();
        if !may || !link.tx[ring].has_known_room(1) {
            return Inline::Refused;
        }
        if push_inline(link, kind, bytes, len) { Inline::Ring } else { Inline::Sent }
    }

    /// A message is on its way, and others will follow soon: of a stream of requests, to which nothing comes back in between, and of
    /// answers to several requests of one round. Their lines are fetched meanwhile: the peer has copied them out, and is not there yet.
    #[inline(always)]
    pub(crate) fn own_ahead(&mut self, kind: Kind) {
        let Self { link: Some(link), is_streaming, owed, .. } = self else { return };
        match kind {
            Kind::Request => {
                if std::mem::replace(is_streaming, true) {
                    link.own_after_next(REQUESTS);
                }
            }
            Kind::Answer(_) => {
                *owed = owed.saturating_sub(1);
                if *owed > 0 {
                    link.own_next(ANSWERS);
                }
            }
            Kind::Control => {}
        }
    }

    /// The path of a request of a few slots, which is copied, or one in this connection's arena, which leaves it.
    #[inline(never)]
    pub(crate) fn send_long(&mut self, message: &mut Message) -> Inline {
        let is_next = self.is_open() && self.queues[REQUESTS].is_empty();
        let Some(link) = self.link.as_mut().filter(|_| is_next) else { return Inline::Refused };
        let is_ours = match out_of(message, &link.own.arena) {
            Some(out) => !out.is_spent(),
            None => message.body().is_none() && slots_of(message.len()).is_some(),
        };
        // What is wrong is found by the flush.
        if !is_ours || attempt(link, Kind::Request, message) != Ok(true) {
            return Inline::Refused;
        }
        if message.body().is_some() {
            message.truncate(0); // Of one that was copied nothing is left here, either.
        }
        Inline::Sent
    }

    /// Whether a ring that looked full has room after all. What is wrong is found by the flush.
    pub(crate) fn learns_of_room(&mut self, ring: usize) -> bool {
        self.link.as_mut().is_some_and(|link| link.has_room(ring, 1) == Ok(true))
    }

    /// Whether the own arena has pages to give back.
    pub(crate) fn has_touched(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.own.lanes.iter().any(Lane::is_touched))
    }

    /// Queues a message behind others.
    pub(crate) fn queue(&mut self, pending: Pending) -> Result<(), Message> {
        let queue = &mut self.queues[pending.kind.ring()];
        if queue.len() >= QUEUE_DEPTH {
            self.refusals.add(pending.kind.ring());
            return Err(pending.message);
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
            while let Some(pending) = queue.front_mut() {
                let is_sent = attempt(link, pending.kind, &mut pending.message)?;
                // Where nothing is on its way whose end would make space, those behind hold it.
                if !is_sent && link.tx[ring].is_drained() && bring_home(queue, &link.own.arena) {
                    continue;
                }
                if !is_sent && !link.lacks_memory(ring) {
                    break;
                }
                moved = true;
                let Some(pending) = queue.pop_front() else { break };
                if !is_sent {
                    finished.push(failed_send(scope, pending, room::no_memory()));
                } else if pending.token & QUIET == 0 {
                    let id = OpId { scope, serial: pending.serial };
                    let is_inline = pending.message.slot().is_some();
                    let returned =
                        if is_inline { Returned::Nothing } else { given_back(pending.message) };
                    finished.push(done(id, pending.token, returned));
                }
            }
        }
        Ok(moved)
    }
}

/// Copies queued messages out of the arena, so that the one in front finds space; says whether any were there.
fn bring_home(queue: &mut VecDeque<Pending>, arena: &Arc<OwnArena>) -> bool {
    let mut any = false;
    for Pending { message, .. } in queue {
        if out_of(message, arena).is_some() {
            *message = Message::copied(message.as_slice());
            any = true;
        }
    }
    any
}

/// What a message that lies in this arena is there.
fn out_of<'a>(message: &'a mut Message, arena: &Arc<OwnArena>) -> Option<&'a mut OutBody> {
    let body: &mut dyn std::any::Any = message.body_mut()?;
    body.downcast_mut::<OutBody>().filter(|out| out.is_in(arena))
}

/// Publishes a message of any kind when there is space; says whether it did. One of the arena's has no bytes then.
fn attempt(link: &mut Link, kind: Kind, message: &mut Message) -> Result<bool, Broken> {
    let len = message.len();
    let slots = if kind == Kind::Request { slots_of(len) } else { None };
    if !link.has_room(kind.ring(), slots.unwrap_or(1))? {
        return Ok(false);
    }
    if len <= kind.short() {
        let mut bytes = [0; hg_na::INLINE_MAX];
        bytes[..len].copy_from_slice(message.as_slice());
        if push_inline(link, kind, &bytes, len) {
            link.ring();
        }
    } else if let Some(slots) = slots {
        if link.publish_wide(message.as_slice(), slots) {
            link.ring();
        }
    } else if let Some(out) = out_of(message, &link.own.arena) {
        let (lane, place, len) = out.place();
        out.leave();
        link.push_body(kind, lane, place, len);
    } else {
        // Asked for once: memory of a user's own kind may give more bytes the next time, and behind those that are reserved
        // lie another message's.
        let bytes = message.as_slice();
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        assert!(len <= MESSAGE_MAX, "a message keeps the length that it was posted with");
        let lane = usize::from(matches!(kind, Kind::Answer(_)));
        let Some(place) = link.reserve(lane, len)? else { return Ok(false) };
        link.own.arena.bytes.copy_in(place.offset, bytes);
        link.push_body(kind, lane, place, len);
    }
    Ok(true)
}

#[inline(always)]
fn push_inline(link: &mut Link, kind: Kind, bytes: &[u8; hg_na::INLINE_MAX], len: usize) -> bool {
    let (words, _) = bytes.as_chunks::<8>();
    let word = |at: usize| u64::from_ne_bytes(words[at]);
    let len = u32::try_from(len).unwrap_or(0);
    match kind {
        Kind::Request => link.publish(REQUESTS, Word::new(Word::INLINE, len), word),
        Kind::Answer(tag) => {
            let tagged = |at| if at == 0 { tag } else { word(at - 1) };
            link.publish(ANSWERS, Word::new(Word::INLINE, len), tagged)
        }
        Kind::Control => link.publish(ANSWERS, Word::new(Word::CONTROL, len), word),
    }
}
