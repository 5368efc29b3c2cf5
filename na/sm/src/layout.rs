//! The ring segment: everything that one side of one connection writes, besides its arena.
//!
//! Its creator maps it for reading and writing, the peer for reading only. Nothing in it is a pointer.
//!
//! # Layout
//! | offset | size | field | meaning |
//! |-------:|-----:|-------|---------|
//! | 0 | 64 | `header` | magic, version, sizes; written before the segment is shown to anybody |
//! | 64 | 2 x 64 | `popped` | slots that the creator has taken from the *peer's* rings, one line each |
//! | 192 | 64 | `attention` | whether the creator looks at the peer's rings, or wants to be rung |
//! | 256 | 64 | `space_wanted` | whether the creator sleeps until the peer has popped something |
//! | 320 | 64 | `pins` | regions of the peer that the creator is transferring from or to |
//! | 4096 | 4096 | `rings[0]` | requests: unexpected messages |
//! | 8192 | 4096 | `rings[1]` | answers: expected and control messages, and notes about transfers. All of them are taken at once |

use crate::sync::{AtomicU32, AtomicU64, Plain32, Plain64};

/// Slots of one ring; few in a model, which has to go round.
pub(crate) const SLOTS: u32 = if cfg!(loom) { 2 } else { 64 };
/// Bytes of a slot that a message can use.
pub(crate) const SLOT_WORDS: usize = 7;
/// Rings in each direction.
pub(crate) const RINGS: usize = 2;
/// Regions that one connection can have pinned at a time.
pub(crate) const PINS: usize = 8;
/// Bytes of a ring segment.
pub(crate) const SEGMENT_BYTES: usize = 3 * 4096;
/// `hgsmring` in memory order.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"hgsmring");
/// Version of this layout.
pub(crate) const VERSION: u32 = 4;

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

/// The slots of one ring.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Slots(pub(crate) [Slot; SLOTS as usize]);

/// A word alone on its cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) AtomicU32);

/// The first line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Header {
    /// [`MAGIC`].
    pub(crate) magic: AtomicU64,
    /// [`VERSION`].
    pub(crate) version: AtomicU32,
    /// [`SLOTS`].
    pub(crate) slots: AtomicU32,
    /// Bytes of the arena beside it.
    pub(crate) arena_bytes: AtomicU64,
}

/// Pin words, a line of their own.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Pins(pub(crate) [AtomicU64; PINS]);

/// The whole segment.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Segment {
    pub(crate) header: Header,
    pub(crate) popped: [Line; RINGS],
    pub(crate) attention: Line,
    pub(crate) space_wanted: Line,
    pub(crate) pins: Pins,
    reserved: [Line; 58],
    pub(crate) rings: [Slots; RINGS],
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<Slot>() == 64 && align_of::<Slot>() == 64);
    assert!(offset_of!(Slot, sequence) == 0 && offset_of!(Slot, word) == 4);
    assert!(offset_of!(Slot, bytes) == 8);
    assert!(offset_of!(Segment, header) == 0);
    assert!(offset_of!(Segment, popped) == 64);
    assert!(offset_of!(Segment, attention) == 192);
    assert!(offset_of!(Segment, space_wanted) == 256);
    assert!(offset_of!(Segment, pins) == 320);
    assert!(offset_of!(Segment, rings) == 4096);
    assert!(size_of::<Segment>() == SEGMENT_BYTES);
};

#[cfg(any(test, loom))]
impl Slots {
    /// Empty slots outside of any mapping, for tests and models.
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| Slot::default()))
    }
}
