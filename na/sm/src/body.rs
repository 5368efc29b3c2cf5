//! Messages that live outside of their slot: outgoing ones in the own arena, received ones in buffers
//! of a pool.

use std::{collections::VecDeque, fmt, sync::Arc};

use hg_na::{Message, MessageBody};
use hg_na_memory::ForkGuard;

use crate::{
    arena::{MESSAGE_MAX, Reservation, States},
    segment::ArenaBytes,
};

/// What a reservation needs to outlive its connection: its bytes, and where it is given back.
#[derive(Debug)]
pub(crate) struct OwnArena {
    pub(crate) bytes: ArenaBytes,
    pub(crate) states: [Arc<States>; crate::arena::LANES],
    pub(crate) guard: Arc<ForkGuard>,
}

/// An outgoing message in the arena of the connection that it will leave by.
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
        self.posted || self.arena.guard.is_child()
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

impl fmt::Debug for OutBody {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "OutBody({} bytes at {})", self.len, self.place.offset)
    }
}

/// Buffer sizes, and how many of each are kept: a 4 KiB or 64 KiB argument with its headers fits the
/// first and the second.
const CLASSES: [(usize, usize); 3] = [(8 * 1024, 64), (72 * 1024, 16), (MESSAGE_MAX as usize, 8)];

/// Shorter ones are memory of their own, which an allocator has at hand.
const POOLED_MIN: usize = 256;

/// Buffers for received messages: of those that were handed out last, the ones that nobody holds any more are used again.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// Of each size, the one that was used last at the end.
    kept: [VecDeque<Arc<InBody>>; CLASSES.len()],
}

impl Pool {
    /// A message of `len` bytes, at most [`MESSAGE_MAX`], filled by `fill`.
    pub(crate) fn message(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Message {
        if len < POOLED_MIN {
            let mut bytes = [0; POOLED_MIN];
            fill(&mut bytes[..len]);
            return Message::copied(&bytes[..len]);
        }
        let class = CLASSES.iter().position(|(size, _)| len <= *size).unwrap_or(CLASSES.len() - 1);
        let ((size, most), kept) = (CLASSES[class], &mut self.kept[class]);
        let mut body = free_one(kept).unwrap_or_else(|| Arc::new(InBody::new(size)));
        let unheld = Arc::get_mut(&mut body).expect("a free one is nobody else's");
        unheld.len = len;
        fill(&mut unheld.buffer[..len]);
        let message = Message::from_shared(Arc::clone(&body) as Arc<dyn MessageBody>);
        if kept.len() < most {
            kept.push_back(body);
        }
        message
    }

    /// Gives all buffers back to the allocator, held ones once they are dropped; `true` when there were some.
    pub(crate) fn trim(&mut self) -> bool {
        self.kept.iter_mut().fold(false, |any, kept| !std::mem::take(kept).is_empty() | any)
    }
}

/// One that is free: the last one, which is hot, or one that has been out for long.
fn free_one(kept: &mut VecDeque<Arc<InBody>>) -> Option<Arc<InBody>> {
    // Not held weakly either, which could be made a share of it at any moment.
    let is_free = |body: &mut Arc<InBody>| Arc::get_mut(body).is_some();
    if kept.back_mut().is_some_and(is_free) {
        return kept.pop_back();
    }
    for _ in 0..LOOKS_MAX.min(kept.len()) {
        if kept.front_mut().is_some_and(is_free) {
            return kept.pop_front();
        }
        kept.rotate_left(1); // Held on to: it is not asked again soon.
    }
    None
}

/// Buffers that are looked at for one that is free.
const LOOKS_MAX: usize = 4;

/// A received message, as those see it who hold it.
struct InBody {
    buffer: Box<[u8]>,
    len: usize,
}

impl InBody {
    fn new(size: usize) -> Self {
        Self { buffer: vec![0; size].into_boxed_slice(), len: 0 }
    }
}

impl MessageBody for InBody {
    fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.len]
    }
    fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl fmt::Debug for InBody {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "InBody({} bytes)", self.len)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_message_leaves_its_buffer_for_the_next_one_and_the_pool_is_bounded() {
        let mut pool = Pool::default();
        let first = pool.message(5000, |bytes| bytes.fill(7));
        assert_eq!(first.as_slice(), [7; 5000]);
        let place = first.as_slice().as_ptr();
        drop(first);
        let second = pool.message(POOLED_MIN, |bytes| bytes.fill(8));
        assert_eq!(second.as_slice().as_ptr(), place);
        let many: Vec<_> = (0..200).map(|_| pool.message(POOLED_MIN, |_| ())).collect();
        drop(many);
        assert_eq!(pool.kept[0].len(), CLASSES[0].1);
        assert!(pool.trim() && !pool.trim());
        drop(second);
    }

    #[test]
    fn what_is_held_keeps_its_bytes_and_what_is_free_is_found_behind_it() {
        let mut pool = Pool::default();
        let held: Vec<_> = (0..3_u8).map(|n| pool.message(300, |bytes| bytes.fill(n))).collect();
        let free = pool.message(300, |_| ());
        let also_held = pool.message(300, |bytes| bytes.fill(9));
        let place = free.as_slice().as_ptr();
        drop(free);
        let next = pool.message(300, |bytes| bytes.fill(8));
        assert_eq!(next.as_slice().as_ptr(), place);
        for (message, byte) in held.iter().zip(0..).chain([(&also_held, 9), (&next, 8)]) {
            assert_eq!(message.as_slice(), [byte; 300]);
        }
        assert!(pool.trim());
        assert_eq!(held[2].as_slice(), [2; 300], "held on to beyond the pool");
    }

    #[test]
    fn one_that_is_held_weakly_is_not_used_again() {
        let mut pool = Pool::default();
        let first = pool.message(300, |bytes| bytes.fill(1));
        let weak = Arc::downgrade(first.shared().unwrap());
        let place = first.as_slice().as_ptr();
        drop(first);
        let second = pool.message(300, |bytes| bytes.fill(2));
        assert_ne!(second.as_slice().as_ptr(), place);
        assert_eq!(weak.upgrade().unwrap().bytes(), [1; 300]);
    }

    #[test]
    fn a_short_message_needs_no_buffer() {
        let mut pool = Pool::default();
        let short = pool.message(POOLED_MIN - 1, |bytes| bytes.fill(7));
        assert_eq!(short.as_slice(), [7; POOLED_MIN - 1]);
        drop(short);
        assert!(!pool.trim());
    }
}
