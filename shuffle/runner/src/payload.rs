//! What a message holds, and how it is checked.
//!
//! | offset | size | field    | meaning                                                     |
//! |-------:|-----:|----------|-------------------------------------------------------------|
//! |      0 |    4 | checksum | of all behind it                                            |
//! |      4 |    4 | origin   | the rank that sent it                                       |
//! |      8 |    8 | number   | of the messages of this origin to this destination, from 0  |
//! |     16 |    8 | time     | nanoseconds of the machine's clock; where there is room     |
//! |     24 |      | filling  | the same in all messages of a rank                          |

use std::hint::black_box;

use hdrhistogram::Histogram;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Smallest payload.
pub(crate) const PAYLOAD_MIN: usize = 16;
const TIMED: usize = 24;

/// Kinds of messages.
pub(crate) const WARM_UP: u32 = 0;
pub(crate) const TIMED_RUN: u32 = 1;
/// The last one of an origin: its number says how many came before.
pub(crate) const LAST: u32 = 2;

/// One in so many messages carries a time.
const SAMPLE: u64 = 64;

/// Writes payloads.
#[derive(Debug)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    /// Of the filling.
    sum: u64,
    origin: u32,
    /// Numbers of the next messages, by destination.
    numbers: Vec<u64>,
}

impl Writer {
    pub(crate) fn new(size: usize, (origin, ranks): (u32, u32)) -> Self {
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().skip(origin as usize % 251).take(size).collect();
        let sum = sum(bytes.get(TIMED..).unwrap_or_default());
        Self { bytes, sum, origin, numbers: vec![0; ranks as usize] }
    }

    /// The next payload to this rank.
    #[inline]
    pub(crate) fn next(&mut self, to: u32) -> &[u8] {
        let number = &mut self.numbers[to as usize];
        self.bytes[4..8].copy_from_slice(&self.origin.to_le_bytes());
        self.bytes[8..16].copy_from_slice(&number.to_le_bytes());
        if self.bytes.len() >= TIMED {
            let time = if number.is_multiple_of(SAMPLE) { nanoseconds() } else { 0 };
            self.bytes[16..TIMED].copy_from_slice(&time.to_le_bytes());
        }
        *number += 1;
        let checksum = checksum(&self.bytes, |_| self.sum);
        // With the origin, as one store: whoever copies both together would wait for two.
        let first = u64::from(checksum) | u64::from(self.origin) << 32;
        self.bytes[..8].copy_from_slice(&first.to_le_bytes());
        &self.bytes
    }

    /// Messages sent to each rank.
    pub(crate) fn numbers(&self) -> &[u64] {
        &self.numbers
    }
}

/// What a rank found wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wrong {
    pub(crate) lost: u64,
    pub(crate) repeated: u64,
    pub(crate) corrupted: u64,
}

/// Checks payloads.
#[derive(Debug)]
pub(crate) struct Reader {
    /// Numbers of the messages expected next, by origin.
    expected: Vec<u64>,
    /// Messages that say how many there are, by origin.
    closed: Vec<u64>,
    pub(crate) wrong: Wrong,
    /// Of messages of the timed run: how many, and their times under way in nanoseconds.
    pub(crate) timed: u64,
    pub(crate) latency: Histogram<u64>,
}

impl Reader {
    pub(crate) fn new(ranks: u32) -> Self {
        let counts = vec![0; ranks as usize];
        Self {
            expected: counts.clone(),
            closed: counts,
            wrong: Wrong::default(),
            timed: 0,
            latency: latencies(),
        }
    }

    /// A message has come.
    #[inline]
    pub(crate) fn take(&mut self, source: u32, kind: u32, bytes: &[u8]) {
        let Some((said, origin, number)) = parse(bytes) else {
            self.wrong.corrupted += 1;
            return;
        };
        if origin != source || said != checksum(bytes, sum) {
            self.wrong.corrupted += 1;
            return;
        }
        let expected = &mut self.expected[source as usize];
        match number.cmp(expected) {
            std::cmp::Ordering::Equal => *expected += 1,
            std::cmp::Ordering::Less => self.wrong.repeated += 1,
            std::cmp::Ordering::Greater => {
                self.wrong.lost += number - *expected;
                *expected = number + 1;
            }
        }
        if kind == TIMED_RUN {
            self.timed += 1;
            if number.is_multiple_of(SAMPLE)
                && let Some(time) = bytes.get(16..TIMED).and_then(|time| time.try_into().ok())
            {
                let way = nanoseconds().saturating_sub(u64::from_le_bytes(time));
                self.latency.saturating_record(way.max(1));
            }
        }
    }

    /// Messages that have come, by origin, also those that say how many there are.
    pub(crate) fn received(&self) -> Vec<u64> {
        let both = self.expected.iter().zip(&self.closed);
        both.map(|(expected, closed)| expected + closed).collect()
    }

    /// At the end: what `source` says it has sent.
    pub(crate) fn close(&mut self, source: u32, sent: u64) {
        self.closed[source as usize] += 1;
        self.wrong.lost += sent.saturating_sub(self.expected[source as usize]);
    }
}

/// Nanoseconds that it takes to make a message and to check it, by batches as in a run: a batch is made, each message copied behind the
/// one before, and then checked. The least of several runs.
pub(crate) fn cost(size: usize) -> f64 {
    let count = (COST_BYTES / size as u64).clamp(COST_COUNT_MIN, COST_COUNT_MAX);
    let (mut writer, mut reader) = (Writer::new(size, (0, 1)), Reader::new(1));
    let messages = (COST_BATCH / size).max(1);
    let mut batch = Vec::with_capacity(messages * size);
    let batches = count.div_ceil(messages as u64);
    let runs = (0..COST_RUNS).map(|_| {
        let begin = nanoseconds();
        for _ in 0..batches {
            batch.clear();
            (0..messages).for_each(|_| batch.extend_from_slice(writer.next(0)));
            let made = black_box(&batch);
            made.chunks_exact(size).for_each(|message| reader.take(0, TIMED_RUN, message));
        }
        (nanoseconds() - begin) as f64 / (batches * messages as u64) as f64
    });
    let least = runs.fold(f64::INFINITY, f64::min);
    assert_eq!(reader.wrong, Wrong::default(), "what was made is whole");
    least
}

/// For times in nanoseconds, to one part in a hundred: all ranks' are brought together, so they are kept short.
pub(crate) fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX, 2).expect("constants are valid bounds")
}

#[inline]
fn parse(bytes: &[u8]) -> Option<(u32, u32, u64)> {
    let (sum, rest) = bytes.split_first_chunk::<4>()?;
    let (origin, rest) = rest.split_first_chunk::<4>()?;
    let number = rest.first_chunk::<8>()?;
    Some((u32::from_le_bytes(*sum), u32::from_le_bytes(*origin), u64::from_le_bytes(*number)))
}

/// Of all behind the checksum itself; `sum` gives that of a long filling.
#[inline]
fn checksum(bytes: &[u8], sum: impl FnOnce(&[u8]) -> u64) -> u32 {
    let (head, filling) = bytes.split_at(if bytes.len() < SHORT { bytes.len() } else { TIMED });
    let seed = if filling.is_empty() { 0 } else { sum(filling) };
    u32::try_from(mixed(&head[4..], seed) & u64::from(u32::MAX)).unwrap_or(0)
}

/// Multiplies a word in; no two words give the same.
#[inline]
fn mix(sum: u64, word: u64) -> u64 {
    let product = (sum ^ word).wrapping_mul(FACTOR);
    product ^ (product >> 32)
}

/// Of a filling, at the rate at which it is read: words are added, and so are the sums so far, so that their places count. A change
/// of one word always changes it.
#[inline]
fn sum(filling: &[u8]) -> u64 {
    let (blocks, rest) = filling.as_chunks::<64>();
    let (mut words, mut sums) = ([0_u64; 8], [0_u64; 8]);
    for block in blocks {
        let (block, _) = block.as_chunks::<8>();
        for ((word, sum), bytes) in words.iter_mut().zip(&mut sums).zip(block) {
            *word = word.wrapping_add(u64::from_le_bytes(*bytes));
            *sum = sum.wrapping_add(*word);
        }
    }
    let all = words.iter().chain(&sums).fold(0, |all, word| mix(all, *word));
    mixed(rest, all)
}

/// Each word is multiplied in. A change of one word always changes it.
#[inline]
fn mixed(bytes: &[u8], seed: u64) -> u64 {
    // What is no whole word is put together in a register: stored by bytes and loaded as a word, it would be waited for.
    let (single, halves) = bytes.split_at(bytes.len() % 4);
    let (half, rest) = halves.split_at(halves.len() % 8);
    let half = half.first_chunk().map_or(0, |half| u64::from(u32::from_le_bytes(*half)));
    let first = single.iter().fold(half, |first, byte| first << 8 | u64::from(*byte));
    let (words, _) = rest.as_chunks::<8>();
    let seed = mix(mix(bytes.len() as u64, seed), first);
    words.iter().fold(seed, |sum, word| mix(sum, u64::from_le_bytes(*word)))
}

/// Of the clock that all processes of a machine share; latency is between ranks of one machine only.
fn nanoseconds() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(std::time::Duration::from);
    now.ok().and_then(|now| u64::try_from(now.as_nanos()).ok()).unwrap_or(0)
}

/// Bytes from which on the filling has a sum of its own.
const SHORT: usize = 256;
/// Bytes of a batch of [`cost`], as by default.
const COST_BATCH: usize = 16 << 10;
/// Of one run of [`cost`]: bytes, and messages at least and at most; and runs.
const COST_BYTES: u64 = 64 << 20;
const COST_COUNT_MIN: u64 = 10;
const COST_COUNT_MAX: u64 = 200_000;
const COST_RUNS: u32 = 5;
/// Odd, so that multiplying by it loses nothing; of the golden ratio, so that it spreads every bit.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
/// A minute.
const LATENCY_MAX: u64 = 60_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_repeated_and_corrupted_messages_are_told_apart() {
        // Below and above the length from which on the checksum is another one; words and a rest.
        for len in [16_u32, 32, 45, 300] {
            let size = len as usize;
            let mut writer = Writer::new(size, (3, 8));
            let messages: Vec<Vec<u8>> = (0..6).map(|_| writer.next(5).to_vec()).collect();
            let mut reader = Reader::new(8);
            for at in [0, 1, 1, 4] {
                reader.take(3, TIMED_RUN, &messages[at]);
            }
            for bit in 0..size * 8 {
                let mut bad = messages[5].clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                reader.take(3, TIMED_RUN, &bad);
            }
            reader.take(3, TIMED_RUN, &messages[5][..size - 1]);
            reader.close(3, writer.numbers()[5]);
            let corrupted = u64::from(len) * 8 + 1;
            assert_eq!(reader.wrong, Wrong { lost: 3, repeated: 1, corrupted }, "{len} bytes");
        }
    }
}
