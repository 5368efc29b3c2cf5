//! What a call holds, and how it is checked where it runs.
//!
//! ```text
//! word:    1 bit: of the timed run | 23 bits: who calls | 40 bits: which call of this caller to this thread, from 0
//! filling: bytes of a table that all have, from a place on that the word tells
//! ```

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
pub(crate) const NUMBER_BITS: u32 = 40;

#[rpc(crate = hg_invoke)]
pub(crate) fn take_word(word: u64) {
    READER.with_borrow_mut(|reader| reader.take(word, true));
}

#[rpc(crate = hg_invoke)]
pub(crate) fn take_bytes(word: u64, filling: &[u8]) {
    let is_whole = filling_of(word, filling.len()) == Some(filling);
    READER.with_borrow_mut(|reader| reader.take(word, is_whole));
}

/// The same, and each tells its caller that it has.
#[rpc(crate = hg_invoke)]
pub(crate) fn answer_word(word: u64) -> u64 {
    READER.with_borrow_mut(|reader| reader.take(word, true));
    answer_to(word)
}

#[rpc(crate = hg_invoke)]
pub(crate) fn answer_bytes(word: u64, filling: &[u8]) -> u64 {
    let is_whole = filling_of(word, filling.len()) == Some(filling);
    READER.with_borrow_mut(|reader| reader.take(word, is_whole));
    answer_to(word)
}

/// What a call with this word returns.
pub(crate) fn answer_to(word: u64) -> u64 {
    word.rotate_left(17) ^ ANSWER
}

/// The functions that are called, with arguments of so many bytes.
pub(crate) fn register(fabric: Fabric, size: usize) -> Result<Fabric, Error> {
    TABLE.get_or_init(|| {
        (0..=u8::MAX).map(|it| it.wrapping_mul(167)).cycle().take(size + 256).collect()
    });
    let fabric = fabric.register(take_word)?.register(take_bytes)?;
    fabric.register(answer_word)?.register(answer_bytes)
}

/// What a thread found wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wrong {
    /// Calls that did not run, and those that ran after a later one.
    pub(crate) lost: u64,
    pub(crate) repeated: u64,
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
    /// Numbers of the calls expected next, by caller.
    expected: Vec<u64>,
    /// Calls of the timed run.
    pub(crate) timed: u64,
    run: u64,
    pub(crate) wrong: Wrong,
    counters: Arc<Counters>,
}

impl Reader {
    /// This thread is called by so many from now on.
    pub(crate) fn begin(all: u32, counters: Arc<Counters>) {
        READER.set(Self { expected: vec![0; all as usize], counters, ..Self::default() });
    }

    /// What this thread has seen.
    pub(crate) fn end() -> Self {
        READER.take()
    }

    #[inline]
    fn take(&mut self, word: u64, is_whole: bool) {
        let number = word & ((1 << NUMBER_BITS) - 1);
        let sender = word >> NUMBER_BITS & (SENDERS_MAX - 1);
        let expected = self.expected.get_mut(usize::try_from(sender).unwrap_or(usize::MAX));
        let Some(expected) = expected.filter(|_| is_whole) else {
            self.wrong.corrupted += 1;
            return;
        };
        if number == *expected {
            *expected += 1;
        } else if number < *expected {
            self.wrong.repeated += 1;
        } else {
            self.wrong.lost += number - *expected;
            *expected = number + 1;
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
        let ran = self.expected.get(sender as usize).copied().unwrap_or(0);
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

static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
