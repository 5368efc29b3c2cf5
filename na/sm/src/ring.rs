//! A ring of short messages from one process to one other.
//!
//! # Layout
//! 64 slots of one cache line ([`crate::layout::Slot`]) in the producer's segment; `popped`, alone on
//! its line, in the consumer's. Positions count slots and wrap at 2^32; a slot's *lap* is
//! `position / 64 + 1`, so that fresh memory (zeroes) reads as "not yet published".
//!
//! # Protocol
//! | producer | consumer |
//! |---|---|
//! | P1 `popped.load(Acquire)`, only when the ring looks full | C1 `sequence.load(Acquire)` |
//! | P2 word, bytes | C2 copy word, bytes out |
//! | P3 `sequence.store(Release)` | C3 `popped.store(Release)`, lazily |
//!
//! - P3 -> C1: the consumer sees the bytes of the lap that it reads. One line moves per short message.
//! - C3 -> P1: the producer reuses a slot, and the body that it named, only after it was copied out.
//!
//! A *wide* message lies in several slots, one after the other: their sequences are set, too, but only the first one's is
//! looked at, is stored last, and publishes them all. It is for the cost of a line each what a body in the arena is not: no
//! reservation, and lines that are hot on both sides.
//!
//! `tests/loom.rs` checks both arrows: weaken any of the four and it fails.
//! What is read from the peer's segment is a claim: a position or lap that cannot be is [`Broken`]. A lap
//! is checked only where nothing comes ([`Consumer::check`]), off the fast path.

use crate::{
    layout::{SLOT_WORDS, SLOTS, Slot, Slots},
    sync::{AtomicU32, Ordering, ord},
};

/// Bytes of a slot that a message can use.
pub(crate) type Payload = [u64; SLOT_WORDS];

/// The consumer's position is written back after so many slots.
pub(crate) const WRITE_BACK: u32 = SLOTS.div_ceil(4);

/// The same after so many bytes of bodies: a fraction of a lane, which the producer can do without meanwhile.
const WRITE_BACK_BYTES: u32 = 64 * 1024;

/// The peer has written what the protocol cannot produce. Small: the fast path carries it in a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broken {
    /// A consumer's position went backwards, or ahead of the messages.
    Position,
    /// A slot's sequence is neither this lap nor the one before.
    Sequence,
    /// A message claims to be longer than any may be.
    TooLong,
    /// A short message claims to be longer than its slot.
    TooLongForSlot,
    /// A body claims to lie outside of its arena.
    OutsideOfArena,
    /// A note about a transfer makes no sense, or was not asked for.
    Note,
}

impl Broken {
    /// What is wrong, as the end of the sentence "it broke the protocol".
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::Position => "its position in a ring went backwards, or ahead of the messages",
            Self::Sequence => "a sequence number in a ring jumped",
            Self::TooLong => "a message is longer than any may be",
            Self::TooLongForSlot => "a short message is longer than its slot",
            Self::OutsideOfArena => "a body lies outside of its arena",
            Self::Note => "a note about a transfer makes no sense",
        }
    }
}

/// Kind and length of a message, as they stand in a slot: bit 31 says that the bytes lie in the
/// arena, the others are the length. Bit 30 makes it a note between the two contexts
/// (`transfers/ferry`), and the others its kind; bit 29 makes it a control message: no message is that long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) u32);

impl Word {
    const BODY: u32 = 1 << 31;
    const NOTE: u32 = 1 << 30;
    #[cfg(not(loom))]
    const CONTROL: u32 = 1 << 29;

    /// A message inside its slot.
    #[inline]
    pub(crate) const fn inline(len: u32) -> Self {
        Self(len)
    }

    /// A message in the arena.
    #[inline]
    pub(crate) const fn body(len: u32) -> Self {
        Self(len | Self::BODY)
    }

    /// A control message inside its slot.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) const fn control(len: u32) -> Self {
        Self(len | Self::CONTROL)
    }

    /// Length of a control message, as claimed; `None`: it is none.
    #[cfg(not(loom))]
    pub(crate) const fn control_len(self) -> Option<u32> {
        let is_control = self.0 & (Self::BODY | Self::NOTE | Self::CONTROL) == Self::CONTROL;
        if is_control { Some(self.0 & !Self::CONTROL) } else { None }
    }

    /// A note of this kind.
    #[cfg(not(loom))]
    pub(crate) const fn note(kind: u32) -> Self {
        Self(kind | Self::NOTE)
    }

    /// Whether it is a note.
    #[cfg(not(loom))]
    pub(crate) const fn is_note(self) -> bool {
        self.0 & (Self::NOTE | Self::BODY) == Self::NOTE
    }

    /// Kind of a note, as claimed.
    #[cfg(not(loom))]
    pub(crate) const fn note_kind(self) -> u32 {
        self.0 & !Self::NOTE
    }

    /// Whether the bytes lie in the arena.
    #[inline]
    pub(crate) const fn is_body(self) -> bool {
        self.0 & Self::BODY != 0
    }

    /// Length in bytes, as claimed.
    #[inline]
    pub(crate) const fn len(self) -> u32 {
        self.0 & !Self::BODY
    }
}

#[inline]
const fn index(position: u32) -> usize {
    (position % SLOTS) as usize
}

#[inline]
const fn lap(position: u32) -> u32 {
    position / SLOTS + 1
}

/// The writing end: state that is private to the producer.
#[derive(Debug, Default)]
pub(crate) struct Producer {
    pushed: u32,
    popped: u32,
}

impl Producer {
    /// Position of the next message.
    #[inline]
    pub(crate) fn position(&self) -> u32 {
        self.pushed
    }

    /// Whether everything before `position` has certainly been copied out by the consumer.
    #[inline]
    pub(crate) fn is_popped(&self, position: u32) -> bool {
        // Both lie within one ring's length of `pushed`, so the distance says which came first.
        self.pushed.wrapping_sub(self.popped) < self.pushed.wrapping_sub(position)
    }

    /// Whether a message fits; asks the consumer's position only when the ring looks full.
    #[inline]
    pub(crate) fn has_room(&mut self, popped: &AtomicU32) -> Result<bool, Broken> {
        if self.has_known_room() {
            return Ok(true);
        }
        self.refresh(popped)?;
        Ok(self.has_known_room())
    }

    /// The fast path of [`Producer::has_room`]; `false`: ask that.
    #[inline(always)]
    pub(crate) fn has_known_room(&self) -> bool {
        self.pushed.wrapping_sub(self.popped) < SLOTS
    }

    /// The same for several slots at a time.
    #[inline(always)]
    pub(crate) fn has_known_room_for(&self, slots: u32) -> bool {
        self.pushed.wrapping_sub(self.popped) + slots <= SLOTS
    }

    /// Whether the consumer has taken everything, as far as is known.
    pub(crate) fn is_drained(&self) -> bool {
        self.pushed == self.popped
    }

    /// Reads the consumer's position.
    pub(crate) fn refresh(&mut self, popped: &AtomicU32) -> Result<(), Broken> {
        let claim = popped.load(ord("P1", Ordering::Acquire)); // P1
        if self.pushed.wrapping_sub(claim) > self.pushed.wrapping_sub(self.popped) {
            return Err(Broken::Position);
        }
        self.popped = claim;
        Ok(())
    }

    /// Publishes a message, whose words `payload` gives one by one: none is kept anywhere in between.
    /// The caller has asked [`Producer::has_room`].
    #[inline(always)]
    pub(crate) fn push(&mut self, slots: &Slots, word: Word, payload: impl Fn(usize) -> u64) {
        debug_assert!(self.pushed.wrapping_sub(self.popped) < SLOTS, "ask has_room first");
        let position = self.pushed;
        self.pushed = position.wrapping_add(1);
        let slot = &slots.0[index(position)];
        slot.word.store(word.0); // P2
        for (at, cell) in slot.bytes.iter().enumerate() {
            cell.store(payload(at)); // P2
        }
        slot.sequence.store(lap(position), ord("P3", Ordering::Release)); // P3
    }
}

#[cfg(not(loom))]
impl Producer {
    /// Has the line of the next message fetched, to be written.
    #[inline(always)]
    pub(crate) fn own_next(&self, slots: &Slots) {
        crate::ahead::own(&slots.0[index(self.pushed)]);
    }
}

impl Producer {
    /// Publishes a wide message in so many slots, whose words `payload` gives one by one. The caller has asked
    /// [`Producer::has_known_room_for`].
    #[inline]
    pub(crate) fn push_wide(
        &mut self,
        slots: &Slots,
        (word, count): (Word, u32),
        payload: impl Fn(usize) -> u64,
    ) {
        debug_assert!(self.has_known_room_for(count), "ask for room first");
        let first = self.pushed;
        for (part, words) in (1..count).zip((1..).map(|part| part * SLOT_WORDS)) {
            let position = first.wrapping_add(part);
            let slot = &slots.0[index(position)];
            for (at, cell) in slot.bytes.iter().enumerate() {
                cell.store(payload(words + at)); // P2
            }
            // Relaxed: the consumer comes here only in the next lap.
            slot.sequence.store(lap(position), Ordering::Relaxed);
        }
        self.push(slots, word, payload);
        self.pushed = first.wrapping_add(count);
    }
}

/// The reading end: state that is private to the consumer.
#[derive(Debug)]
pub(crate) struct Consumer {
    next: u32,
    written_back: u32,
    /// Bytes of bodies that were copied out since then.
    bodies: u32,
    /// What the next slot holds once it is published, and before.
    lap: u32,
    lap_before: u32,
}

impl Default for Consumer {
    fn default() -> Self {
        Self { next: 0, written_back: 0, bodies: 0, lap: lap(0), lap_before: 0 }
    }
}

impl Consumer {
    /// The next slot, when it is published: C1. The caller copies out of it (C2), then calls
    /// [`Consumer::advance`]. A lap that cannot be reads as nothing here; [`Consumer::check`] finds it.
    #[inline(always)]
    pub(crate) fn peek<'a>(&self, slots: &'a Slots) -> Option<&'a Slot> {
        let slot = &slots.0[index(self.next)];
        let sequence = slot.sequence.load(ord("C1", Ordering::Acquire)); // C1
        (sequence == self.lap).then_some(slot)
    }

    /// A further slot of the wide message that begins with the next slot.
    #[inline(always)]
    pub(crate) fn part<'a>(&self, slots: &'a Slots, part: u32) -> &'a Slot {
        &slots.0[index(self.next.wrapping_add(part))]
    }

    /// Whether the next slot's lap is one that the protocol produces. Asked when nothing comes.
    pub(crate) fn check(&self, slots: &Slots) -> Result<(), Broken> {
        // Relaxed: nothing else of the slot is looked at.
        let sequence = slots.0[index(self.next)].sequence.load(Ordering::Relaxed);
        if sequence == self.lap || sequence == self.lap_before {
            Ok(())
        } else {
            Err(Broken::Sequence)
        }
    }

    /// Whether something is there, right or wrong.
    #[inline]
    pub(crate) fn is_ready(&self, slots: &Slots) -> bool {
        // Relaxed: nothing else of the slot is looked at; S2 orders the second look.
        slots.0[index(self.next)].sequence.load(Ordering::Relaxed) != self.lap_before
    }

    /// Takes the message that was copied out; `true`: the position is due to be written back.
    #[inline(always)]
    pub(crate) fn advance(&mut self) -> bool {
        self.next = self.next.wrapping_add(1);
        if self.next.is_multiple_of(SLOTS) {
            self.lap_before = self.lap;
            self.lap = lap(self.next);
        }
        self.next.wrapping_sub(self.written_back) >= WRITE_BACK
    }

    /// The same for a message with a body of `len` bytes.
    #[inline]
    pub(crate) fn advance_body(&mut self, len: u32) -> bool {
        self.bodies = self.bodies.saturating_add(len);
        self.advance() | (self.bodies >= WRITE_BACK_BYTES)
    }

    /// Whether slots were taken that the producer does not know about.
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        self.next != self.written_back
    }

    /// Tells the producer what was taken.
    #[inline]
    pub(crate) fn write_back(&mut self, popped: &AtomicU32) {
        popped.store(self.next, ord("C3", Ordering::Release)); // C3
        self.written_back = self.next;
        self.bodies = 0;
    }
}

impl Slot {
    /// Kind and length, as claimed: C2.
    #[inline(always)]
    pub(crate) fn claimed_word(&self) -> Word {
        Word(self.word.load()) // C2
    }

    /// The payload, copied out: C2.
    #[inline(always)]
    pub(crate) fn payload(&self) -> Payload {
        std::array::from_fn(|at| self.bytes[at].load()) // C2
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn at(position: u32) -> (Box<Slots>, AtomicU32, Producer, Consumer) {
        let slots = Box::new(Slots::new());
        for (cell, offset) in slots.0.iter().zip(0..SLOTS) {
            let before = position.wrapping_add(offset).wrapping_sub(SLOTS);
            cell.sequence.store(lap(before), Ordering::Relaxed);
        }
        let producer = Producer { pushed: position, popped: position };
        let lap_before = lap(position.wrapping_sub(SLOTS));
        let consumer = Consumer {
            next: position,
            written_back: position,
            bodies: 0,
            lap: lap(position),
            lap_before,
        };
        (slots, AtomicU32::new(position), producer, consumer)
    }

    #[test]
    fn a_word_is_of_one_kind() {
        for len in [0, 8, 56] {
            assert_eq!(Word::control(len).control_len(), Some(len));
            assert!(!Word::control(len).is_note() && !Word::control(len).is_body());
            assert!(Word::control(len).len() > 56, "too long for a slot, read as anything else");
            for other in [Word::inline(len), Word::body(len), Word::note(len)] {
                assert_eq!(other.control_len(), None);
            }
        }
        assert_eq!(Word(u32::MAX).control_len(), None);
    }

    #[test]
    fn counters_survive_wrapping_past_u32_max() {
        let (slots, popped, mut producer, mut consumer) = at(u32::MAX - SLOTS + 1);
        for value in 0..5 * u64::from(SLOTS) {
            assert!(producer.has_room(&popped).unwrap());
            producer.push(&slots, Word::inline(8), |_| value);
            assert!(consumer.is_ready(&slots));
            let slot = consumer.peek(&slots).unwrap();
            assert_eq!((slot.claimed_word(), slot.payload()), (Word::inline(8), [value; 7]));
            if consumer.advance() {
                consumer.write_back(&popped);
            }
            assert!(consumer.peek(&slots).is_none() && consumer.check(&slots).is_ok());
        }
    }

    #[test]
    fn wide_messages_go_round_among_short_ones() {
        let (slots, popped, mut producer, mut consumer) = at(u32::MAX - SLOTS + 1);
        for (number, count) in (0..5 * u64::from(SLOTS)).zip([1, 3, 2, 4, 1].into_iter().cycle()) {
            let room = producer.has_known_room_for(count);
            assert!(
                room || producer.refresh(&popped).is_ok() && producer.has_known_room_for(count)
            );
            let word = |at: usize| number << 8 | at as u64;
            producer.push_wide(&slots, (Word::inline(count * 56), count), word);
            let slot = consumer.peek(&slots).unwrap();
            assert_eq!(slot.claimed_word(), Word::inline(count * 56));
            for part in 0..count {
                let expected = std::array::from_fn(|at| word(part as usize * SLOT_WORDS + at));
                assert_eq!(consumer.part(&slots, part).payload(), expected);
            }
            // The last of its slots tells, too.
            if (0..count).any(|_| consumer.advance()) {
                consumer.write_back(&popped);
            }
            consumer.write_back(&popped);
            assert!(consumer.peek(&slots).is_none() && consumer.check(&slots).is_ok());
        }
    }

    #[test]
    fn a_full_ring_takes_more_only_after_the_position_was_written_back() {
        let (slots, popped, mut producer, mut consumer) =
            (Box::new(Slots::new()), AtomicU32::new(0), Producer::default(), Consumer::default());
        for _ in 0..SLOTS {
            assert!(producer.has_room(&popped).unwrap());
            producer.push(&slots, Word::body(9), |_| 0);
        }
        assert!(!producer.has_room(&popped).unwrap());
        assert!(!producer.is_popped(0));
        assert!(!consumer.advance());
        assert!(consumer.owes());
        consumer.write_back(&popped);
        assert!(producer.has_room(&popped).unwrap());
        assert!(producer.is_popped(0) && !producer.is_popped(1));
    }

    #[test]
    fn impossible_claims_are_broken() {
        let (slots, popped) = (Box::new(Slots::new()), AtomicU32::new(0));
        let (mut producer, consumer) = (Producer::default(), Consumer::default());
        producer.push(&slots, Word::inline(0), |_| 0);
        popped.store(2, Ordering::Relaxed);
        assert!(producer.refresh(&popped).is_err());
        popped.store(1, Ordering::Relaxed);
        producer.refresh(&popped).unwrap();
        popped.store(0, Ordering::Relaxed);
        assert!(producer.refresh(&popped).is_err());
        slots.0[0].sequence.store(7, Ordering::Relaxed);
        assert!(consumer.peek(&slots).is_none() && consumer.is_ready(&slots));
        assert_eq!(consumer.check(&slots), Err(Broken::Sequence));
    }
}
