//! Reproducible pseudo-random numbers: xorshift64*.

use std::time::Duration;

/// A generator; the same seed gives the same numbers.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn size_below(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).expect("below a usize")
    }

    pub(crate) fn duration_below(&mut self, bound: Duration) -> Duration {
        Duration::from_nanos(self.below(u64::try_from(bound.as_nanos()).expect("a short time")))
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend(self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}
