//! Messages that live outside of their slot: outgoing ones in the own arena, received ones in memory of their own.

use std::sync::Arc;

use hg_na::{Message, MessageBody};

use crate::{
    arena::{Reservation, States},
    segment::Rings,
};

/// What a reservation needs to outlive its connection: its bytes, and where it is given back.
#[derive(Debug)]
pub(crate) struct OwnArena {
    pub(crate) bytes: Rings,
    pub(crate) states: [Arc<States>; crate::arena::LANES],
}

/// An outgoing message in the arena of the connection that it will leave by.
#[derive(Debug)]
pub(crate) struct OutBody {
    arena: Arc<OwnArena>,
    lane: usize,
    place: Reservation,
    len: u32,
    /// Its bytes are the peer's to read: nothing here looks at them any more.
    posted: bool,
}

impl OutBody {
    /// Takes a reservation over.
    pub(crate) fn new(arena: Arc<OwnArena>, lane: usize, place: Reservation, len: u32) -> Self {
        Self { arena, lane, place, len, posted: false }
    }

    /// Whether it lives in this arena.
    pub(crate) fn is_in(&self, arena: &Arc<OwnArena>) -> bool {
        Arc::ptr_eq(&self.arena, arena)
    }

    /// Lane, place and length.
    pub(crate) fn place(&self) -> (usize, Reservation, u32) {
        (self.lane, self.place, self.len)
    }

    /// The reservation now belongs to a slot, not to this value, which has no bytes any more. `&mut`: whoever still looked at
    /// them would see the next message's.
    pub(crate) fn leave(&mut self) {
        self.posted = true;
    }

    /// Whether it has no bytes.
    pub(crate) fn is_spent(&self) -> bool {
        // The mapping is not in a forked child.
        self.posted || self.arena.bytes.are_elsewhere()
    }
}

impl MessageBody for OutBody {
    fn bytes(&self) -> &[u8] {
        if self.is_spent() {
            return &[];
        }
        let first = self.arena.bytes.range(self.place.offset, self.len);
        // SAFETY:
        // - in bounds: `range` checked it. Initialised: a fresh mapping is zeroes.
        // - not written meanwhile: the reservation is this value's alone until it is posted (checked above). Posting
        //   takes the message or borrows it mutably (`leave`), and so does writing: neither can be while this borrow
        //   of `self` lasts. Peers map the arena read-only.
        // - alive: `self` holds the arena.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), self.len as usize) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        if self.is_spent() {
            return &mut [];
        }
        let first = self.arena.bytes.range(self.place.offset, self.len);
        // SAFETY:
        // - as in `bytes`, and exclusive: `&mut self`, and nobody else has the reservation. Other messages' bytes are
        //   other reservations, which never overlap.
        unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), self.len as usize) }
    }

    fn truncate(&mut self, len: usize) {
        self.len = u32::try_from(len).map_or(self.len, |len| len.min(self.len));
    }
}

impl Drop for OutBody {
    fn drop(&mut self) {
        if !self.posted {
            self.arena.states[self.lane].release(self.place.entry);
        }
    }
}

/// Others may hold on to a received message from so many bytes on: shorter ones are copied sooner.
const SHARED_MIN: usize = 256;

/// A received message.
pub(crate) fn received(bytes: Vec<u8>) -> Message {
    if bytes.len() < SHARED_MIN {
        return Message::from(bytes);
    }
    Message::from_shared(Arc::new(bytes))
}
