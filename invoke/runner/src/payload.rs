//! What a call holds, and how it is checked where it runs.
//!
//! ```text
//! word:    1 bit: of the timed run | 23 bits: who calls | 40 bits: which call of this caller to this thread
//! filling: bytes of a table that all have, from a place on that the word tells
//! ```
//! Calls to each thread are counted from another number on, in a circle: one that runs at another thread than it was made to has a number that nobody
//! expects there. Broadcasts, whose words are the same everywhere, are counted from 0.

use std::{
    cell::RefCell,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use hg_invoke::{Error, Fabric, rpc};
use serde::{Deserialize, Serialize};

/// Threads of all processes, at most.
pub(crate) const SENDERS_MAX: u64 = 1 << 23;
/// Arguments that are longer than a word: it, and the length of the filling.
pub(crate) const LONG: usize = 16;
const NUMBER_BITS: u32 = 40;
const NUMBERS: u64 = (1 << NUMBER_BITS) - 1;

#[rpc(crate = hg_invoke)]
pub(crate) fn take_word(word: u64) {
    READER.with_borrow_mut(|reader| reader.take(word, &[]));
}

#[rpc(crate = hg_invoke)]
pub(crate) fn take_bytes(word: u64, filling: &[u8]) {
    READER.with_borrow_mut(|reader| reader.take(word, filling));
}

/// The same, and each tells its caller that it has.
#[rpc(crate = hg_invoke)]
pub(crate) fn answer_word(word: u64) -> u64 {
    READER.with_borrow_mut(|reader| reader.take(word, &[]));
    answer_to(word)
}

#[rpc(crate = hg_invoke)]
pub(crate) fn answer_bytes(word: u64, filling: &[u8]) -> u64 {
    READER.with_borrow_mut(|reader| reader.take(word, filling));
    answer_to(word)
}

/// What a call with this word returns.
pub(crate) fn answer_to(word: u64) -> u64 {
    word.rotate_left(17) ^ ANSWER
}

/// The functions that are called, with arguments of so many bytes.
pub(crate) fn register(fabric: Fabric, size: usize) -> Result<Fabric, Error> {
    make_table(size);
    let fabric = fabric.register(take_word)?.register(take_bytes)?;
    fabric.register(answer_word)?.register(answer_bytes)
}

fn make_table(size: usize) {
    TABLE.get_or_init(|| {
        (0..=u8::MAX).map(|it| it.wrapping_mul(167)).cycle().take(size + 256).collect()
    });
}

/// From where on calls are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbering {
    /// From a number of each destination's own.
    Apart,
    /// From 0: a call goes to all of them.
    Same,
}

impl Numbering {
    /// The number of the first call to a thread.
    pub(crate) fn first(self, to: u32) -> u64 {
        match self {
            Self::Apart => u64::from(to).wrapping_mul(APART) & NUMBERS,
            Self::Same => 0,
        }
    }
}

/// The words of the calls that one thread makes.
#[derive(Debug)]
pub(crate) struct Words {
    sender: u64,
    numbering: Numbering,
    /// Numbers of the next calls, by whom they go to.
    next: Vec<u64>,
}

impl Words {
    /// `sender` is one of `all` threads.
    pub(crate) fn new(sender: u32, all: u32, numbering: Numbering) -> Self {
        let next = (0..all).map(|to| numbering.first(to)).collect();
        Self { sender: u64::from(sender) << NUMBER_BITS, numbering, next }
    }

    /// Of the next call to a thread, which is not made yet.
    #[inline]
    pub(crate) fn next(&self, to: u32, is_timed: bool) -> u64 {
        u64::from(is_timed) << 63 | self.sender | self.next[to as usize]
    }

    /// It was made.
    #[inline]
    pub(crate) fn made_one(&mut self, to: u32) {
        match self.numbering {
            Numbering::Apart => {
                let next = &mut self.next[to as usize];
                *next = (*next + 1) & NUMBERS;
            }
            Numbering::Same => self.next.iter_mut().for_each(|next| *next += 1),
        }
    }

    /// Calls made to each thread.
    pub(crate) fn made(&self) -> Vec<u64> {
        let made = |(to, next): (u32, &u64)| next.wrapping_sub(self.numbering.first(to)) & NUMBERS;
        (0..).zip(&self.next).map(made).collect()
    }

    /// Calls that run for each that is made.
    pub(crate) fn each(&self) -> u64 {
        if self.numbering == Numbering::Same { self.next.len() as u64 } else { 1 }
    }
}

/// What a thread found wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wrong {
    /// Calls that did not run before a later one.
    pub(crate) lost: u64,
    /// Calls that ran again, or after a later one.
    pub(crate) repeated: u64,
    /// Calls that were not as they were made, or were made to another thread.
    pub(crate) corrupted: u64,
}

impl Wrong {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            lost: self.lost + other.lost,
            repeated: self.repeated + other.repeated,
            corrupted: self.corrupted + other.corrupted,
        }
    }
}

/// How far a thread is, for whoever looks on; on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    made: AtomicU64,
    run: AtomicU64,
}

impl Counters {
    /// Relaxed: figures to be shown.
    #[inline]
    pub(crate) fn note_made(&self, made: u64) {
        self.made.store(made, Ordering::Relaxed);
    }

    /// Calls made, and calls run.
    pub(crate) fn seen(&self) -> (u64, u64) {
        (self.made.load(Ordering::Relaxed), self.run.load(Ordering::Relaxed))
    }
}

thread_local! {
    static READER: RefCell<Reader> = RefCell::default();
}

/// Checks the calls that this thread runs.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// Numbers of the calls expected next, by caller; and that of all first ones.
    expected: Vec<u64>,
    first: u64,
    /// Calls of the timed run.
    pub(crate) timed: u64,
    run: u64,
    pub(crate) wrong: Wrong,
    counters: Arc<Counters>,
}

impl Reader {
    pub(crate) fn new(all: u32, first: u64, counters: Arc<Counters>) -> Self {
        Self { expected: vec![first; all as usize], first, counters, ..Self::default() }
    }

    /// This thread is called by so many from now on, each of whose calls to it begin with this number.
    pub(crate) fn begin(all: u32, first: u64, counters: Arc<Counters>) {
        READER.set(Self::new(all, first, counters));
    }

    /// What this thread has seen.
    pub(crate) fn end() -> Self {
        READER.take()
    }

    #[inline]
    pub(crate) fn take(&mut self, word: u64, filling: &[u8]) {
        let is_whole = filling.is_empty() || filling_of(word, filling.len()) == Some(filling);
        let number = word & NUMBERS;
        let sender = word >> NUMBER_BITS & (SENDERS_MAX - 1);
        let expected = self.expected.get_mut(usize::try_from(sender).unwrap_or(usize::MAX));
        let Some(expected) = expected.filter(|_| is_whole) else {
            self.wrong.corrupted += 1;
            return;
        };
        let ahead = number.wrapping_sub(*expected) & NUMBERS;
        if ahead < FAR {
            self.wrong.lost += ahead;
            *expected = (number + 1) & NUMBERS;
        } else if NUMBERS - ahead < FAR {
            self.wrong.repeated += 1;
        } else {
            self.wrong.corrupted += 1;
        }
        self.timed += word >> 63;
        self.run += 1;
        // Relaxed: a figure to be shown.
        self.counters.run.store(self.run, Ordering::Relaxed);
    }

    /// Results that were others than they must be.
    pub(crate) fn note_corrupted(&mut self, results: u64) {
        self.wrong.corrupted += results;
    }

    /// `made`: how many calls a thread says that it has made to this one. Those behind the last one that ran are lost.
    pub(crate) fn compare(&mut self, sender: u32, made: u64) {
        let expected = self.expected.get(sender as usize).copied().unwrap_or(self.first);
        let ran = expected.wrapping_sub(self.first) & NUMBERS;
        self.wrong.lost += made.saturating_sub(ran);
        self.wrong.repeated += ran.saturating_sub(made);
    }
}

/// What a call with this word is filled with; `None`: nothing is so long.
#[inline]
pub(crate) fn filling_of(word: u64, len: usize) -> Option<&'static [u8]> {
    let start = usize::try_from(word % PERIOD).unwrap_or(0);
    TABLE.get()?.get(start..start.checked_add(len)?)
}

/// Where in the table that is.
pub(crate) fn part_of(word: u64, len: usize) -> std::ops::Range<u64> {
    let start = word % PERIOD;
    start..start + len as u64
}

/// All that calls are filled with.
pub(crate) fn table() -> &'static [u8] {
    TABLE.get().map_or(&[], Vec::as_slice)
}

/// A place in the table for each of so many words.
const PERIOD: u64 = 251;

/// Any number that is not 0.
const ANSWER: u64 = 0x5bd1_e995_9d2c_5680;

/// Of the golden ratio and odd: multiples of it lie apart as far as so many can, and are 0 for none.
const APART: u64 = 0x9E_3779_B97F;
/// A number that is so far from what is expected is no call of this caller to this thread.
const FAR: u64 = 1 << 20;

static TABLE: OnceLock<Vec<u8>> = OnceLock::new();

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(words: &[u64], len: usize) -> Vec<(u64, Vec<u8>)> {
        words
            .iter()
            .map(|word| (*word, filling_of(*word, len).unwrap_or_default().to_vec()))
            .collect()
    }

    /// Calls of thread 3 of 8 to thread 5, each as it was made.
    fn made(count: usize, len: usize, numbering: Numbering) -> Vec<(u64, Vec<u8>)> {
        make_table(300);
        let mut words = Words::new(3, 8, numbering);
        let mut next = || {
            let word = words.next(5, true);
            words.made_one(5);
            word
        };
        let all: Vec<u64> = (0..count).map(|_| next()).collect();
        filled(&all, len)
    }

    fn reader(thread: u32, numbering: Numbering) -> Reader {
        Reader::new(8, numbering.first(thread), Arc::default())
    }

    /// What becomes of these.
    fn found<'a>(
        calls: impl IntoIterator<Item = &'a (u64, Vec<u8>)>,
        numbering: Numbering,
    ) -> Wrong {
        let mut reader = reader(5, numbering);
        calls.into_iter().for_each(|(word, filling)| reader.take(*word, filling));
        reader.wrong
    }

    const BOTH: [Numbering; 2] = [Numbering::Apart, Numbering::Same];

    #[test]
    fn lost_repeated_and_reordered_calls_are_told_apart() {
        for (len, numbering) in [0, 1, 45, 300].into_iter().zip(BOTH.into_iter().cycle()) {
            let calls = made(6, len, numbering);
            let of = |places: &[usize]| found(places.iter().map(|at| &calls[*at]), numbering);
            let right = Wrong::default();
            assert_eq!(of(&[0, 1, 2, 3, 4, 5]), right, "{len} bytes");
            assert_eq!(of(&[0, 1, 4, 5]), Wrong { lost: 2, ..right });
            assert_eq!(of(&[1]), Wrong { lost: 1, ..right });
            assert_eq!(of(&[0, 1, 1, 2, 0]), Wrong { repeated: 2, ..right });
            assert_eq!(of(&[0, 2, 1, 3]), Wrong { lost: 1, repeated: 1, ..right }, "reordered");
        }
    }

    #[test]
    fn each_bit_of_a_call_with_a_filling_that_was_changed_is_found() {
        for len in [1_usize, 8, 45] {
            let calls = made(1, len, Numbering::Apart);
            let (word, filling) = &calls[0];
            for bit in 0..64 {
                let bad = (word ^ 1 << bit, filling.clone());
                assert_eq!(found([&bad], Numbering::Apart).corrupted, 1, "bit {bit} of the word");
            }
            for bit in 0..len * 8 {
                let mut bad = filling.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(found([&(*word, bad)], Numbering::Apart).corrupted, 1, "bit {bit}");
            }
        }
    }

    #[test]
    fn calls_of_the_same_number_that_are_swapped_between_two_threads_are_found() {
        make_table(300);
        let words = Words::new(3, 8, Numbering::Apart);
        for (to, instead) in (0..8).flat_map(|to| (0..8).map(move |instead| (to, instead))) {
            for len in [0, 45] {
                let mut reader = reader(instead, Numbering::Apart);
                let calls = filled(&[words.next(to, false)], len);
                reader.take(calls[0].0, &calls[0].1);
                assert_eq!(reader.wrong.corrupted, u64::from(to != instead), "{to} {instead}");
            }
        }
        let mut firsts: Vec<u64> = (0..1 << 16).map(|to| Numbering::Apart.first(to)).collect();
        firsts.sort_unstable();
        assert!(firsts.windows(2).all(|two| two[1] - two[0] > 2 * FAR), "too near each other");
    }

    #[test]
    fn what_was_made_is_compared_with_what_has_run_across_the_end_of_all_numbers() {
        for first in [0, Numbering::Apart.first(5), NUMBERS - 2] {
            let mut reader = Reader::new(8, first, Arc::default());
            for number in 0..4 {
                reader.take(3 << NUMBER_BITS | (first + number) & NUMBERS, &[]);
            }
            reader.compare(3, 4);
            reader.compare(2, 0);
            assert_eq!(reader.wrong, Wrong::default());
            reader.compare(3, 6);
            reader.compare(2, 1);
            assert_eq!(
                reader.wrong,
                Wrong { lost: 3, ..Wrong::default() },
                "those behind the last"
            );
            reader.compare(3, 2);
            assert_eq!(reader.wrong.repeated, 2, "more than were made");
        }
        let mut words = Words::new(0, 2, Numbering::Apart);
        words.made_one(1);
        assert_eq!((words.made(), words.each()), (vec![0, 1], 1));
        let mut words = Words::new(0, 2, Numbering::Same);
        words.made_one(1);
        assert_eq!((words.made(), words.each()), (vec![1, 1], 2));
    }
}
