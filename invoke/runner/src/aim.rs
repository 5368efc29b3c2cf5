//! Whom a thread calls next: the same for a thread in every run. Threads are numbered through all processes.

use crate::arguments::{Arguments, Pattern};

/// A thread after the other.
#[derive(Debug)]
pub(crate) enum Aim {
    One { at: u32 },
    Loop { next: u32, all: u32 },
    Random { random: u64, all: u32 },
}

impl Aim {
    /// `me` of `all` threads.
    pub(crate) fn new(arguments: &Arguments, me: u32, all: u32) -> Self {
        match arguments.pattern {
            Pattern::Pairwise => Self::One { at: partner(me, all, arguments.threads()) },
            Pattern::All => Self::Loop { next: me, all },
            // Any odd number that differs from thread to thread begins another sequence.
            Pattern::Random => {
                Self::Random { random: u64::from(me).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1, all }
            }
            Pattern::HotSpot => Self::One { at: arguments.target() * arguments.threads() },
        }
    }

    /// The next one.
    #[inline]
    pub(crate) fn next(&mut self) -> u32 {
        match self {
            Self::One { at } => *at,
            Self::Loop { next, all } => {
                *next = if *next + 1 == *all { 0 } else { *next + 1 };
                *next
            }
            Self::Random { random, all } => {
                // xorshift64* (Vigna, 2016); the high half of a product is as even as the factor.
                *random ^= *random >> 12;
                *random ^= *random << 25;
                *random ^= *random >> 27;
                let step = random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
                u32::try_from((step * u64::from(*all)) >> 32).unwrap_or(0)
            }
        }
    }
}

/// The same thread of the process beside it; of one process, the thread beside it. Whoever has nobody calls itself.
fn partner(me: u32, all: u32, threads: u32) -> u32 {
    let other = if all == threads {
        me ^ 1
    } else {
        let (process, thread) = (me / threads, me % threads);
        (process ^ 1) * threads + thread
    };
    if other < all { other } else { me }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_call_each_other_and_the_odd_one_itself() {
        for (all, threads) in [(1, 1), (2, 1), (6, 2), (3, 3), (10, 5), (8, 8)] {
            for me in 0..all {
                let other = partner(me, all, threads);
                assert_eq!(partner(other, all, threads), me, "{me} of {all}, {threads} a process");
                assert!(all == threads || other == me || other / threads != me / threads);
            }
        }
        assert_eq!(partner(4, 6, 2), 4, "the third process has nobody");
    }

    #[test]
    fn everybody_is_called_equally_often() {
        let mut counts = [0; 3];
        let mut aim = Aim::Random { random: 7, all: 3 };
        for _ in 0..9_000 {
            counts[aim.next() as usize] += 1;
        }
        assert!(counts.iter().all(|count| (2_500..3_500).contains(count)), "{counts:?}");
        let mut aim = Aim::Loop { next: 1, all: 3 };
        assert_eq!([aim.next(), aim.next(), aim.next(), aim.next()], [2, 0, 1, 2]);
    }
}
