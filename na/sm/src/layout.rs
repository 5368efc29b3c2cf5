//! The rings: what one side of one connection writes at the start of its segment, before its arena (`arena.rs`).
//!
//! Its creator maps the segment for reading and writing, the peer for reading only. Nothing in it is a pointer. All that
//! a call touches in each direction lies in two pages, of which whoever only answers touches one.
//!
//! # Layout
//! | offset | size | field | meaning |
//! |-------:|-----:|-------|---------|
//! | 0 | 2 x 64 | `popped` | slots that the creator has taken from the *peer's* rings, one line each |
//! | 128 | 64 | `attention` | whether the creator looks at the peer's rings, or wants to be rung |
//! | 192 | 64 | `space_wanted` | whether the creator sleeps until the peer has popped something |
//! | 256 | 64 | `pins` | regions of the peer that the creator is transferring from or to |
//! | 448 | 64 | `heed` | 1 while the creator looks at the peer's pins when it takes memory back (`region/pins.rs`) |
//! | 512 | 3584 | `answers` | expected and control messages, and notes about transfers. All of them are taken at once |
//! | 4096 | 4096 | `requests` | unexpected messages |

use crate::sync::{AtomicU32, AtomicU64, Plain32, Plain64};

/// Slots of the ring of requests.
pub(crate) const REQUESTS_SLOTS: u32 = 64;
/// Slots of the ring of answers, which fill the page; few in a model, which has to go round.
pub(crate) const ANSWERS_SLOTS: u32 = if cfg!(loom) { 2 } else { 56 };
/// Bytes of a slot that a message can use.
pub(crate) const SLOT_WORDS: usize = 7;
/// Rings in each direction.
pub(crate) const RINGS: usize = 2;
/// Regions that one connection can have pinned at a time.
pub(crate) const PINS: usize = 8;
/// Bytes of the rings.
pub(crate) const RINGS_BYTES: usize = 2 * 4096;
/// Ring of unexpected messages.
pub(crate) const REQUESTS: usize = 0;
/// Ring of expected and control messages, and of notes.
pub(crate) const ANSWERS: usize = 1;

/// One cache line: a short message with its own publication.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// Lap of the slot; its store publishes the rest.
    pub(crate) sequence: AtomicU32,
    /// [`crate::ring::Word`] of the message: kind and length.
    pub(crate) word: Plain32,
    /// Payload.
    pub(crate) bytes: [Plain64; SLOT_WORDS],
}

/// A word alone on its cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) AtomicU32);

/// Pin words, a line of their own.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Pins(pub(crate) [AtomicU64; PINS]);

/// All of them.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Segment {
    pub(crate) popped: [Line; RINGS],
    pub(crate) attention: Line,
    pub(crate) space_wanted: Line,
    pub(crate) pins: Pins,
    reserved: [Line; 2],
    pub(crate) heed: Line,
    answers: [Slot; ANSWERS_SLOTS as usize],
    requests: [Slot; REQUESTS_SLOTS as usize],
}

impl Segment {
    /// The slots of a ring.
    #[inline(always)]
    pub(crate) fn ring(&self, ring: usize) -> &[Slot] {
        if ring == REQUESTS { &self.requests } else { &self.answers }
    }
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<Slot>() == 64 && align_of::<Slot>() == 64);
    assert!(offset_of!(Slot, sequence) == 0 && offset_of!(Slot, word) == 4);
    assert!(offset_of!(Slot, bytes) == 8);
    assert!(offset_of!(Segment, popped) == 0);
    assert!(offset_of!(Segment, attention) == 128);
    assert!(offset_of!(Segment, space_wanted) == 192);
    assert!(offset_of!(Segment, pins) == 256);
    assert!(offset_of!(Segment, heed) == 448);
    assert!(offset_of!(Segment, answers) == 512);
    assert!(offset_of!(Segment, requests) == 4096);
    assert!(size_of::<Segment>() == RINGS_BYTES);
};
