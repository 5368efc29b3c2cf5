//! Pins: how an owner knows that no peer is in the middle of a transfer when it takes memory back.
//!
//! A region's slot in the owner's table has a generation, odd while it is published. An initiator has a
//! line of pin words in its ring segment (`layout.rs`), which only it writes and the owner reads.
//!
//! # Layout of a pin word
//! | bits | field | meaning |
//! |---:|---|---|
//! | 0..32 | index + 1 | slot of the region that is in use; 0: no pin |
//! | 32..64 | generation | of that region |
//!
//! # Protocol
//! ```text
//! owner publishes                initiator transfers               owner unregisters
//! T1 fields of the entry         R0 pin.load(Acquire) == 0         U1 generation.store(even)
//! T2 generation.store(odd,       R1 pin.store(name, Release)       U2 fence(SeqCst)
//!    Release)                    R2 fence(SeqCst)                  U3 every pin.load(Acquire) of every
//!                                R7 heed.load(Acquire) == 1,          peer: none is the name, or wait
//!                                   or unpin: not heeded           U4 memory and slot are free
//!                                R3 generation.load(Acquire):
//!                                   another one: unpin, stale
//!                                R4 fields; transfer
//!                                R5 pin.store(0, Release)
//!
//! owner opens a connection                    owner closes it
//! H1 the peer stands in the list that U3      H2 heed.store(0)
//!    looks at, under its lock                 H3 fence(SeqCst)
//!    heed.store(1, Release)                   H4 every pin of that peer as in U3: while one is set, the peer
//!                                                stands in the list
//! ```
//! - T2 -> R3: an initiator that sees the generation sees the fields of that generation.
//! - R1, R2, R3 against U1, U2, U3: each side writes its own word, fences, and reads the other's. The
//!   fences are sequentially consistent because nothing weaker orders a store before a later load: without
//!   them both could read the old words, and the transfer would touch memory that is free.
//! - R5 -> U3: the transfer is over before the memory is free.
//! - R1, R2, R7 against H2, H3, H4: in the same way. Whoever pins after U3 has forgotten its line sees that nobody heeds it.
//! - H1 -> R7, before R3: a U3 that came before H1 (by the list's lock) has shown its U1 to whoever sees H1, and R3 finds
//!   the region stale. One that comes after H1 looks at the peer's pins.
//! - R5 -> R0, R1 -> U3: the same where U3 sees the next name in that word. A word is taken by whoever has the context, and
//!   released by whoever has moved the bytes, in another thread perhaps.
//!
//! What only has to be true of one moment is read without a pin: the generation (R3), the fields, a fence (R6), the
//! generation once more. U2 orders U1 before the T1 of the next region, so that fields of that one are not taken for it.
//!
//! `tests/loom_pins.rs` checks them: weaken any labelled step and a model fails.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, ord};

/// One region in use by this side; released when dropped.
#[derive(Debug)]
#[must_use = "the region may be taken back as soon as the pin is dropped"]
pub(crate) struct Pin<'a>(&'a AtomicU64);

/// Names a region that is to be in use (R1), which it is only after [`order`] and if then [`is_published`]: several are
/// named before one fence. `None`: all words are in use.
#[inline]
pub(crate) fn announce(words: &[AtomicU64], index: u32, expected: u32) -> Option<Pin<'_>> {
    let word = free(words)?;
    word.store(pin_word(index, expected), ord("R1", Ordering::Release)); // R1
    Some(Pin(word))
}

/// A word that is not in use, if any is. Only whoever has the context takes one: it stays so.
#[inline]
pub(crate) fn free(words: &[AtomicU64]) -> Option<&AtomicU64> {
    words.iter().find(|word| word.load(ord("R0", Ordering::Acquire)) == 0) // R0
}

/// What was announced is seen by an owner whose word is not seen here (R2).
#[inline(always)]
pub(crate) fn order() {
    fence("R2");
}

/// Whether the owner looks at the pins that were announced (R7); asked before [`is_published`].
#[inline(always)]
pub(crate) fn is_heeded(heed: &AtomicU32) -> bool {
    heed.load(ord("R7", Ordering::Acquire)) == HEEDED
}

/// The owner looks at a peer's pins from now on (H1), or did so before.
pub(crate) fn heed(heed: &AtomicU32) {
    heed.store(HEEDED, ord("H1", Ordering::Release)); // H1
}

/// Nobody will look at what the peer pins from now on; what it has pinned before is seen now (H2, H3).
pub(crate) fn disregard(heed: &AtomicU32) {
    // Relaxed: H3 orders it.
    heed.store(0, Ordering::Relaxed); // H2
    fence("H3");
}

impl Pin<'_> {
    /// Leaves it to whoever calls [`release`] of its word; gives that word's place.
    pub(crate) fn leave(self, words: &[AtomicU64]) -> usize {
        let at = words.iter().position(|word| std::ptr::eq(word, self.0));
        std::mem::forget(self);
        at.expect("a pin is of the words in which it was announced")
    }
}

/// Whether the region is still published (R3); what was pinned before is pinned then.
#[inline]
pub(crate) fn is_published(expected: u32, generation: &AtomicU32) -> bool {
    is_live(expected) && generation.load(ord("R3", Ordering::Acquire)) == expected
}

/// Whether the fields that were read since [`is_published`] are of that region, which is not pinned.
pub(crate) fn is_unchanged(expected: u32, generation: &AtomicU32) -> bool {
    fence("R6");
    // Relaxed: R6 orders it.
    generation.load(Ordering::Relaxed) == expected
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        release(self.0);
    }
}

/// The region is not in use any more.
pub(crate) fn release(word: &AtomicU64) {
    word.store(0, ord("R5", Ordering::Release)); // R5
}

/// Publishes an entry whose fields are written (T2).
pub(crate) fn publish(generation: &AtomicU32, odd: u32) {
    generation.store(odd, ord("T2", Ordering::Release)); // T2
}

/// Ends the publication (U1, U2). Whoever pins from now on finds it stale.
pub(crate) fn retract(generation: &AtomicU32, even: u32) {
    // Relaxed: U2 orders it.
    generation.store(even, Ordering::Relaxed); // U1
    fence("U2");
}

/// Whether one peer's pin words name this region (U3). Claims: a peer that lies keeps it pinned, until
/// the owner stops waiting.
pub(crate) fn is_pinned(words: &[AtomicU64], index: u32, generation: u32) -> bool {
    let name = pin_word(index, generation);
    words.iter().any(|word| word.load(ord("U3", Ordering::Acquire)) == name) // U3
}

/// What a side says while it looks at pins; a fresh segment has 0.
const HEEDED: u32 = 1;

/// Generations are odd while an entry is published.
pub(crate) const fn is_live(generation: u32) -> bool {
    generation % 2 == 1
}

/// What a pin word holds for a region; never 0.
pub(crate) const fn pin_word(index: u32, generation: u32) -> u64 {
    // `from` is not const yet; both casts widen.
    (index as u64 + 1) | ((generation as u64) << 32)
}
