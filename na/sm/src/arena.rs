//! Space for the bodies of long messages: a FIFO of reservations, private to the producer.
//!
//! An arena has two lanes. Messages that the user writes in place ([`hg_na::Context::message`]) and
//! copied unexpected messages live in lane 0; copied expected messages in lane 1, so that an answer
//! finds space while requests wait. A reservation is free again when the slot that names it was popped,
//! or when it was dropped unposted (by any thread); space is reclaimed in the order of reservation.
//! An empty lane restarts at offset 0, and one of which little is in use does so early, so that messages one after the
//! other reuse hot lines.
//!
//! # Protocol of a dropped reservation
//! A1 `state.store(FREE, Release)` by the dropper, A2 `state.load(Acquire)` by the producer.
//! - A1 -> A2: whoever reserves the space next writes after the dropper's last write.
//!
//! `tests/loom.rs` weakens both.

use std::sync::Arc;

use crate::sync::{AtomicU32, Ordering, ord};

/// Longest message: 256 KiB of payload, and a page for the headers of those above. From there on a
/// bulk transfer is cheaper: it copies once, a message twice.
pub(crate) const MESSAGE_MAX: u32 = 256 * 1024 + 4096;
/// Bytes of one lane: fifteen of the longest messages in flight. Untouched pages cost nothing.
pub(crate) const LANE_BYTES: u32 = 4 * 1024 * 1024;
/// A lane that never empties goes round this much, or three times what is in use, rather than all of its bytes: caches
/// hold that.
const HOT_BYTES: u32 = 128 * 1024;
/// Lanes of an arena.
pub(crate) const LANES: usize = 2;
/// Where the places for transfers begin, behind the lanes (`transfers/ferry`).
pub(crate) const FERRY_OFFSET: u32 = 2 * LANE_BYTES;
/// Bytes of an arena.
pub(crate) const ARENA_BYTES: u32 = FERRY_OFFSET + 512 * 1024;
/// Reservations of one lane; few in a model.
pub(crate) const RESERVATIONS: usize = if cfg!(loom) { 2 } else { 128 };

/// Bodies start on a cache line.
const ALIGN: u32 = 64;
const HELD: u32 = 0;
const FREE: u32 = 1;

const _: () = assert!(LANE_BYTES.is_multiple_of(ALIGN) && MESSAGE_MAX < LANE_BYTES);

/// Which reservations were dropped: the part that other threads touch.
#[derive(Debug)]
pub(crate) struct States([AtomicU32; RESERVATIONS]);

impl States {
    /// Gives a reservation back that was never posted.
    pub(crate) fn release(&self, entry: usize) {
        self.0[entry].store(FREE, ord("A1", Ordering::Release)); // A1
    }
}

/// A piece of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reservation {
    /// First byte, counted from the start of the arena.
    pub(crate) offset: u32,
    /// Its place in [`States`].
    pub(crate) entry: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    start: u32,
    /// Ring and position of the slot that names it.
    posted: Option<(usize, u32)>,
}

/// One lane.
#[derive(Debug)]
pub(crate) struct Lane {
    base: u32,
    /// Where the next reservation starts, relative to `base`.
    head: u32,
    /// Made by the first reservation: most connections never make one.
    entries: Vec<Entry>,
    /// Reservations ever reclaimed and ever made: `entries` is a ring of those between.
    first: usize,
    next: usize,
    /// Those between that are neither posted nor known to be dropped: they stay for as long as their users like.
    unposted: usize,
    /// Bytes touched since the pages were last given back, and reservations ever made when that was last asked for.
    touched: u32,
    seen: usize,
    states: Arc<States>,
}

impl Lane {
    /// An empty lane that starts at `base`.
    pub(crate) fn new(base: u32) -> Self {
        Self {
            base,
            head: 0,
            entries: Vec::new(),
            first: 0,
            next: 0,
            unposted: 0,
            touched: 0,
            seen: 0,
            states: Arc::new(States(std::array::from_fn(|_| AtomicU32::new(HELD)))),
        }
    }

    /// For those who hold reservations.
    pub(crate) fn states(&self) -> &Arc<States> {
        &self.states
    }

    /// Finds `len` bytes; `None` while there are none. `popped` says whether the consumer has popped a position of a ring; it
    /// is asked in ring order.
    pub(crate) fn reserve(
        &mut self,
        len: u32,
        popped: impl Fn(usize, u32) -> bool,
    ) -> Option<Reservation> {
        self.reclaim(popped);
        if self.next - self.first == RESERVATIONS {
            return None;
        }
        let size = len.max(1).checked_next_multiple_of(ALIGN)?;
        let start = self.find(size)?;
        if self.entries.is_empty() {
            self.entries.resize(RESERVATIONS, Entry::default());
        }
        let entry = self.next % RESERVATIONS;
        // Relaxed: this thread hands the reservation out, and whoever moves it orders that.
        self.states.0[entry].store(HELD, Ordering::Relaxed);
        self.entries[entry] = Entry { start, posted: None };
        self.head = start + size;
        self.next += 1;
        self.unposted += 1;
        self.touched = self.touched.max(self.head);
        Some(Reservation { offset: self.base + start, entry })
    }

    /// Takes back the newest reservation, which nobody has used: those behind one that is kept would not be free for long.
    pub(crate) fn undo(&mut self) {
        self.next -= 1;
        self.unposted -= 1;
        self.head = self.entries[self.next % RESERVATIONS].start;
    }

    fn find(&self, size: u32) -> Option<u32> {
        if self.first == self.next {
            return (size <= LANE_BYTES).then_some(0);
        }
        let tail = self.entries[self.first % RESERVATIONS].start;
        if self.head <= tail {
            return (tail - self.head > size).then_some(self.head);
        }
        // Where little is in use and a lot is free before it, that is hot; what lies behind has not been touched for long.
        // But once gone back, all that there is ends at what is in use now: it must be sure to go soon.
        let used = self.head - tail;
        if self.head >= HOT_BYTES && self.unposted == 0 && tail / 2 >= used + size {
            return Some(0);
        }
        if LANE_BYTES - self.head >= size {
            return Some(self.head);
        }
        (tail > size).then_some(0)
    }

    /// Binds a reservation to the slot that names it.
    pub(crate) fn posted(&mut self, entry: usize, ring: usize, position: u32) {
        self.unposted -= usize::from(self.entries[entry].posted.is_none());
        self.entries[entry].posted = Some((ring, position));
    }

    /// Takes back what is free at the old end.
    pub(crate) fn reclaim(&mut self, popped: impl Fn(usize, u32) -> bool) {
        while self.first != self.next {
            let entry = self.first % RESERVATIONS;
            let free = match self.entries[entry].posted {
                Some((ring, position)) => popped(ring, position),
                None => self.states.0[entry].load(ord("A2", Ordering::Acquire)) == FREE, // A2
            };
            if !free {
                return;
            }
            self.unposted -= usize::from(self.entries[entry].posted.is_none());
            self.first += 1;
        }
        self.head = 0;
    }

    /// Bytes to give back to the system, when the lane is empty, and was not used since this was last asked: `(offset, len)` in
    /// the arena.
    pub(crate) fn take_touched(&mut self) -> Option<(u32, u32)> {
        let (touched, seen) = (self.touched, std::mem::replace(&mut self.seen, self.next));
        if self.first != self.next || seen != self.next || touched == 0 {
            return None;
        }
        self.touched = 0;
        Some((self.base, touched))
    }

    /// Whether pages were touched since they were last given back.
    pub(crate) fn is_touched(&self) -> bool {
        self.touched != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn up_to(popped: u32) -> impl Fn(usize, u32) -> bool {
        move |_ring, position| position < popped
    }

    #[test]
    fn an_empty_lane_restarts_at_its_base() {
        let mut lane = Lane::new(LANE_BYTES);
        for position in 0..10 {
            let place = lane.reserve(5000, up_to(position)).unwrap();
            assert_eq!(place.offset, LANE_BYTES);
            lane.posted(place.entry, 0, position);
        }
    }

    #[test]
    fn a_lane_that_never_empties_stays_where_its_lines_are_hot() {
        for (in_use, len) in [(32, 4200), (2, 300), (60, 8000)] {
            let (mut lane, mut end) = (Lane::new(0), 0);
            for position in 0..10_000_u32 {
                let popped = up_to(position.saturating_sub(in_use));
                let place = lane.reserve(len, popped).expect("most of the lane is free");
                lane.posted(place.entry, 0, position);
                end = end.max(place.offset + len);
            }
            let size = len.next_multiple_of(ALIGN);
            assert!(
                end <= HOT_BYTES.max(3 * in_use * size) + 4 * size,
                "{end} for {in_use} of {len}"
            );
        }
    }

    #[test]
    fn a_lane_that_went_back_early_takes_the_longest_again_once_the_others_are_gone() {
        let mut lane = Lane::new(0);
        let mut position = 0;
        let mut starts = Vec::new();
        while starts.last() != Some(&0) || starts.len() == 1 {
            let place = lane.reserve(4096, up_to(position.max(2) - 2)).unwrap();
            lane.posted(place.entry, 0, position);
            starts.push(place.offset);
            position += 1;
        }
        let longest: Vec<_> =
            std::iter::from_fn(|| lane.reserve(MESSAGE_MAX, up_to(position))).collect();
        assert_eq!(longest.len(), 15);
    }

    #[test]
    fn a_reservation_that_is_kept_leaves_the_rest_of_its_lane_to_others() {
        let mut lane = Lane::new(0);
        let mut position = 0;
        let mut post = |lane: &mut Lane, len| {
            let place = lane.reserve(len, up_to(position.max(2) - 2))?;
            lane.posted(place.entry, 0, position);
            position += 1;
            Some(place)
        };
        while post(&mut lane, 4096).expect("most of the lane is free").offset + 8192 < HOT_BYTES {}
        let kept = lane.reserve(4096, up_to(0)).unwrap();
        let others = (0..).map_while(|_| post(&mut lane, 16 * 1024)).count();
        assert!(others > RESERVATIONS / 2, "{others}, beside {kept:?}");
        lane.states().release(kept.entry);
        assert!(post(&mut lane, MESSAGE_MAX).is_some() && lane.unposted == 0);
    }

    #[test]
    fn a_reservation_that_is_undone_leaves_its_place_and_its_entry_to_the_next() {
        let mut lane = Lane::new(0);
        let kept = lane.reserve(MESSAGE_MAX, up_to(0)).unwrap();
        for _ in 0..2 * RESERVATIONS {
            let place = lane.reserve(MESSAGE_MAX, up_to(0)).unwrap();
            lane.undo();
            assert_eq!(lane.reserve(5000, up_to(0)), Some(place));
            lane.undo();
        }
        lane.states().release(kept.entry);
        assert_eq!(lane.reserve(5000, up_to(0)).map(|it| it.offset), Some(0));
        lane.undo();
        assert_eq!((lane.unposted, lane.head, lane.first), (0, 0, lane.next));
    }

    #[test]
    fn reservations_never_overlap_and_a_full_lane_refuses() {
        let mut lane = Lane::new(0);
        let mut live = std::collections::VecDeque::new();
        let (mut position, mut popped, mut refused) = (0, 0, 0);
        for step in 0u32..20_000 {
            let len = step.wrapping_mul(2_654_435_761) % MESSAGE_MAX + 1;
            if let Some(place) = lane.reserve(len, up_to(popped)) {
                let end = place.offset + len;
                assert!(end <= LANE_BYTES);
                for &(start, stop) in &live {
                    assert!(end <= start || stop <= place.offset, "overlap at step {step}");
                }
                live.push_back((place.offset, end));
                lane.posted(place.entry, 0, position);
                position += 1;
            } else {
                refused += 1;
                popped += 1;
                live.pop_front().unwrap();
            }
        }
        assert!(refused > 1000);
    }

    #[test]
    fn a_reservation_dropped_by_another_thread_is_space_again() {
        let mut lane = Lane::new(0);
        for _ in 0..3 {
            let mut held = Vec::new();
            while let Some(place) = lane.reserve(MESSAGE_MAX, up_to(0)) {
                held.push(place.entry);
            }
            assert_eq!(held.len(), 15);
            let states = Arc::clone(lane.states());
            std::thread::spawn(move || held.into_iter().for_each(|entry| states.release(entry)))
                .join()
                .unwrap();
        }
        lane.reclaim(up_to(0));
        assert_eq!(lane.take_touched(), None, "used a moment ago");
        assert_eq!(lane.take_touched(), Some((0, 15 * MESSAGE_MAX)));
        assert_eq!(lane.take_touched(), None);
    }
}
