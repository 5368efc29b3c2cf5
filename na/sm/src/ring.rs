//! A ring of short messages from one process to one other.
//!
//! # Layout
//! Slots of one cache line ([`crate::layout::Slot`]), any number of them, in the producer's segment; `popped`, alone on
//! its line, in the consumer's. Positions count slots and wrap at 2^32. A slot's *lap* counts how often the ring has gone
//! round, from 1 on, so that fresh memory (zeroes) reads as "not yet published".
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
    layout::{ANSWERS_SLOTS, SLOT_WORDS, Slot},
    sync::{AtomicU32, Ordering, ord},
};

/// Bytes of a slot that a message can use.
pub(crate) type Payload = [u64; SLOT_WORDS];

/// The consumer's position is written back after so many slots.
pub(crate) const WRITE_BACK: u32 = ANSWERS_SLOTS.div_ceil(4);

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
    /// A slot holds what is not of its ring.
    Kind,
    /// A note about a transfer makes no sense, or was not asked for.
    Note,
    /// Nothing is broken: this process has no memory for a body of so many bytes.
    NoMemory(u32),
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
            Self::Kind => "a slot of its requests holds something else",
            Self::Note => "a note about a transfer makes no sense",
            Self::NoMemory(_) => "a body found no memory",
        }
    }
}

/// What a slot holds, and of which length: a kind in the upper three bits, the length, or the kind of a note, in the others. A
/// message inside its slot has kind 0, so that the word is its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) u32);

impl Word {
    /// A message inside its slot.
    pub(crate) const INLINE: u32 = 0;
    /// A control message, likewise.
    pub(crate) const CONTROL: u32 = 1 << 29;
    /// A note between the two contexts ([`crate::ferry::wire`]).
    pub(crate) const NOTE: u32 = 2 << 29;
    /// A message whose bytes lie in the arena.
    pub(crate) const BODY: u32 = 4 << 29;
    const KINDS: u32 = 7 << 29;

    #[inline]
    pub(crate) const fn new(kind: u32, len: u32) -> Self {
        Self(kind | len)
    }

    /// Its kind, as claimed: one of the four, or none of them.
    #[inline]
    pub(crate) const fn kind(self) -> u32 {
        self.0 & Self::KINDS
    }

    /// Length in bytes, or kind of a note, as claimed.
    #[inline]
    pub(crate) const fn len(self) -> u32 {
        self.0 & !Self::KINDS
    }
}

/// Where one end is in a ring of so many slots.
#[derive(Debug, Clone, Copy)]
struct Place {
    slots: u32,
    index: u32,
    /// What that slot holds once it is published, and one less before.
    lap: u32,
}

impl Place {
    #[inline(always)]
    fn slot(self, slots: &[Slot]) -> &Slot {
        &slots[self.index as usize]
    }

    /// The place `distance` slots further on, at most a ring's length.
    #[inline(always)]
    fn ahead(self, distance: u32) -> Self {
        let index = self.index + distance;
        if index < self.slots {
            return Self { index, ..self };
        }
        Self { index: index - self.slots, lap: self.lap.wrapping_add(1), ..self }
    }
}

/// The writing end: state that is private to the producer.
#[derive(Debug)]
pub(crate) struct Producer {
    pushed: u32,
    popped: u32,
    next: Place,
}

impl Producer {
    /// Of a fresh ring of so many slots.
    pub(crate) const fn new(slots: u32) -> Self {
        Self { pushed: 0, popped: 0, next: Place { slots, index: 0, lap: 1 } }
    }

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

    /// Whether so many slots are free; asks the consumer's position only when the ring looks full.
    #[inline]
    pub(crate) fn has_room(&mut self, slots: u32, popped: &AtomicU32) -> Result<bool, Broken> {
        if !self.has_known_room(slots) {
            self.refresh(popped)?;
        }
        Ok(self.has_known_room(slots))
    }

    /// The fast path of [`Producer::has_room`]; `false`: ask that.
    #[inline(always)]
    pub(crate) fn has_known_room(&self, slots: u32) -> bool {
        self.pushed.wrapping_sub(self.popped) + slots <= self.next.slots
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
    pub(crate) fn push(&mut self, slots: &[Slot], word: Word, payload: impl Fn(usize) -> u64) {
        debug_assert!(self.has_known_room(1), "ask has_room first");
        let place = self.next;
        self.advance(1);
        let slot = place.slot(slots);
        slot.word.store(word.0); // P2
        for (at, cell) in slot.bytes.iter().enumerate() {
            cell.store(payload(at)); // P2
        }
        slot.sequence.store(place.lap, ord("P3", Ordering::Release)); // P3
    }

    #[inline(always)]
    fn advance(&mut self, count: u32) {
        self.pushed = self.pushed.wrapping_add(count);
        self.next = self.next.ahead(count);
    }

    /// Has the line of the message fetched that is so many behind the next one, to be written.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(crate) fn own(&self, slots: &[Slot], behind: u32) {
        crate::ahead::own(self.next.ahead(behind).slot(slots));
    }

    /// Publishes a wide message in so many slots, whose words `payload` gives one by one. The caller has asked
    /// [`Producer::has_known_room`].
    #[inline]
    pub(crate) fn push_wide(
        &mut self,
        slots: &[Slot],
        (word, count): (Word, u32),
        payload: impl Fn(usize) -> u64,
    ) {
        debug_assert!(self.has_known_room(count), "ask for room first");
        for (part, words) in (1..count).zip((1..).map(|part| part * SLOT_WORDS)) {
            let place = self.next.ahead(part);
            let slot = place.slot(slots);
            for (at, cell) in slot.bytes.iter().enumerate() {
                cell.store(payload(words + at)); // P2
            }
            // Relaxed: the consumer comes here only in the next lap.
            slot.sequence.store(place.lap, Ordering::Relaxed);
        }
        self.push(slots, word, payload);
        self.advance(count - 1);
    }
}

/// The reading end: state that is private to the consumer.
#[derive(Debug)]
pub(crate) struct Consumer {
    taken: u32,
    written_back: u32,
    /// Bytes of bodies that were copied out since then.
    bodies: u32,
    next: Place,
}

impl Consumer {
    /// Of a fresh ring of so many slots.
    pub(crate) const fn new(slots: u32) -> Self {
        Self { taken: 0, written_back: 0, bodies: 0, next: Place { slots, index: 0, lap: 1 } }
    }

    /// The next slot, when it is published: C1. The caller copies out of it (C2), then calls
    /// [`Consumer::advance`]. A lap that cannot be reads as nothing here; [`Consumer::check`] finds it.
    #[inline(always)]
    pub(crate) fn peek<'a>(&self, slots: &'a [Slot]) -> Option<&'a Slot> {
        let slot = self.next.slot(slots);
        let sequence = slot.sequence.load(ord("C1", Ordering::Acquire)); // C1
        (sequence == self.next.lap).then_some(slot)
    }

    /// A further slot of the wide message that begins with the next slot.
    #[inline(always)]
    pub(crate) fn part<'a>(&self, slots: &'a [Slot], part: u32) -> &'a Slot {
        self.next.ahead(part).slot(slots)
    }

    /// Whether the next slot's lap is one that the protocol produces. Asked when nothing comes.
    pub(crate) fn check(&self, slots: &[Slot]) -> Result<(), Broken> {
        // Relaxed: nothing else of the slot is looked at.
        let sequence = self.next.slot(slots).sequence.load(Ordering::Relaxed);
        if self.next.lap.wrapping_sub(sequence) <= 1 { Ok(()) } else { Err(Broken::Sequence) }
    }

    /// Whether something is there, right or wrong.
    #[inline]
    pub(crate) fn is_ready(&self, slots: &[Slot]) -> bool {
        // Relaxed: nothing else of the slot is looked at; S2 orders the second look.
        self.next.slot(slots).sequence.load(Ordering::Relaxed) != self.next.lap.wrapping_sub(1)
    }

    /// Takes the message that was copied out; `true`: the position is due to be written back.
    #[inline(always)]
    pub(crate) fn advance(&mut self) -> bool {
        self.taken = self.taken.wrapping_add(1);
        self.next = self.next.ahead(1);
        self.taken.wrapping_sub(self.written_back) >= WRITE_BACK
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
        self.taken != self.written_back
    }

    /// Tells the producer what was taken.
    #[inline]
    pub(crate) fn write_back(&mut self, popped: &AtomicU32) {
        popped.store(self.taken, ord("C3", Ordering::Release)); // C3
        self.written_back = self.taken;
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

    /// Of no power of two.
    const SLOTS: u32 = ANSWERS_SLOTS;

    fn fresh() -> (Vec<Slot>, AtomicU32, Producer, Consumer) {
        (
            (0..SLOTS).map(|_| Slot::default()).collect(),
            AtomicU32::new(0),
            Producer::new(SLOTS),
            Consumer::new(SLOTS),
        )
    }

    /// Shortly before positions and laps wrap.
    fn worn() -> (Vec<Slot>, AtomicU32, Producer, Consumer) {
        let (position, lap) = (u32::MAX - SLOTS + 1, u32::MAX - 1);
        let (slots, popped, mut producer, mut consumer) = fresh();
        for slot in &slots {
            slot.sequence.store(lap - 1, Ordering::Relaxed);
        }
        popped.store(position, Ordering::Relaxed);
        (producer.pushed, producer.popped, producer.next.lap) = (position, position, lap);
        (consumer.taken, consumer.written_back, consumer.next.lap) = (position, position, lap);
        (slots, popped, producer, consumer)
    }

    #[test]
    fn a_word_is_of_one_kind() {
        for kind in [Word::INLINE, Word::CONTROL, Word::NOTE, Word::BODY] {
            for len in [0, 8, 56, (1 << 29) - 1] {
                let word = Word::new(kind, len);
                assert_eq!((word.kind(), word.len()), (kind, len));
                assert!(
                    kind == Word::INLINE || word.0 > 1 << 28,
                    "none is taken for a short message"
                );
            }
        }
    }

    #[test]
    fn counters_survive_wrapping_past_u32_max() {
        let (slots, popped, mut producer, mut consumer) = worn();
        for value in 0..5 * u64::from(SLOTS) {
            assert!(producer.has_room(1, &popped).unwrap());
            producer.push(&slots, Word::new(Word::INLINE, 8), |_| value);
            assert!(consumer.is_ready(&slots));
            let slot = consumer.peek(&slots).unwrap();
            assert_eq!(
                (slot.claimed_word(), slot.payload()),
                (Word::new(Word::INLINE, 8), [value; 7])
            );
            if consumer.advance() {
                consumer.write_back(&popped);
            }
            assert!(consumer.peek(&slots).is_none() && consumer.check(&slots).is_ok());
        }
    }

    #[test]
    fn wide_messages_go_round_among_short_ones() {
        let (slots, popped, mut producer, mut consumer) = worn();
        for (number, count) in (0..5 * u64::from(SLOTS)).zip([1, 3, 2, 4, 1].into_iter().cycle()) {
            let room = producer.has_known_room(count);
            assert!(room || producer.refresh(&popped).is_ok() && producer.has_known_room(count));
            let word = |at: usize| number << 8 | at as u64;
            producer.push_wide(&slots, (Word::new(Word::INLINE, count * 56), count), word);
            let slot = consumer.peek(&slots).unwrap();
            assert_eq!(slot.claimed_word(), Word::new(Word::INLINE, count * 56));
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
        let (slots, popped, mut producer, mut consumer) = fresh();
        for _ in 0..SLOTS {
            assert!(producer.has_room(1, &popped).unwrap());
            producer.push(&slots, Word::new(Word::BODY, 9), |_| 0);
        }
        assert!(!producer.has_room(1, &popped).unwrap());
        assert!(!producer.is_popped(0));
        assert!(!consumer.advance());
        assert!(consumer.owes());
        consumer.write_back(&popped);
        assert!(producer.has_room(1, &popped).unwrap());
        assert!(producer.is_popped(0) && !producer.is_popped(1));
    }

    #[test]
    fn impossible_claims_are_broken() {
        let (slots, popped, mut producer, consumer) = fresh();
        producer.push(&slots, Word::new(Word::INLINE, 0), |_| 0);
        popped.store(2, Ordering::Relaxed);
        assert!(producer.refresh(&popped).is_err());
        popped.store(1, Ordering::Relaxed);
        producer.refresh(&popped).unwrap();
        popped.store(0, Ordering::Relaxed);
        assert!(producer.refresh(&popped).is_err());
        slots[0].sequence.store(7, Ordering::Relaxed);
        assert!(consumer.peek(&slots).is_none() && consumer.is_ready(&slots));
        assert_eq!(consumer.check(&slots), Err(Broken::Sequence));
    }
}
