//! Sixteen boards side by side: a row of each is a lane of one vector.
//!
//! What a playout needs of a vector is [`Lanes`]. Arrays do it everywhere, compiled for whatever instructions their
//! caller is; [`Avx2`] does it in one register, twice as fast as what the compiler makes of arrays. Both give the same
//! numbers: a seed means the same games on every machine.

/// A vector of unsigned lanes.
pub(super) trait Lanes: Copy {
    /// How many lanes there are.
    const COUNT: u32;

    /// The same number in all lanes; bits that do not fit are dropped.
    fn splat(value: u32) -> Self;
    fn from_words(words: [u64; 4]) -> Self;
    fn words(self) -> [u64; 4];
    /// Random bits, of the generators whose state is given.
    fn random(state: &mut [Self; 2]) -> Self;
    /// Random bits become a number from 0 to `bound - 1` in each lane. `bound` is below 2^15.
    fn below(self, bound: Self) -> Self;
    /// All bits of the lanes that are less than those of `other`; both are below 2^15.
    fn less(self, other: Self) -> Self;
    fn add(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    /// `!self & other`.
    fn not_and(self, other: Self) -> Self;
    fn left(self) -> Self;
    fn right(self) -> Self;
    /// A bit for each lane that is not zero; bit i is lane i.
    fn nonzero(self) -> u32;
}

/// xorshift128+ (Vigna 2017), on each of four words.
fn next(state: &mut [[u64; 4]; 2]) -> [u64; 4] {
    let [old, new] = *state;
    let mut out = [0; 4];
    state[0] = new;
    for word in 0..4 {
        let (mut x, y) = (old[word], new[word]);
        x ^= x << 23;
        x ^= y ^ (x >> 17) ^ (y >> 26);
        state[1][word] = x;
        out[word] = x.wrapping_add(y);
    }
    out
}

/// Lanes that are an array: `$count` of type `$lane`.
macro_rules! array {
    ($name:ident, $lane:ty, $count:literal, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $name([$lane; $count]);

        impl $name {
            #[inline(always)]
            fn zip(self, other: Self, each: impl Fn($lane, $lane) -> $lane) -> Self {
                let mut out = self;
                for (out, other) in out.0.iter_mut().zip(other.0) {
                    *out = each(*out, other);
                }
                out
            }
        }

        #[expect(clippy::cast_possible_truncation, reason = "lanes of several widths")]
        impl Lanes for $name {
            const COUNT: u32 = $count;

            #[inline(always)]
            fn splat(value: u32) -> Self {
                Self([value as $lane; $count])
            }
            #[inline(always)]
            fn from_words(words: [u64; 4]) -> Self {
                let mut out = Self([0; $count]);
                for (at, lane) in out.0.iter_mut().enumerate() {
                    let bit = at * 256 / $count;
                    *lane = (words[bit / 64] >> (bit % 64)) as $lane;
                }
                out
            }
            #[inline(always)]
            fn words(self) -> [u64; 4] {
                let mut out = [0; 4];
                for (at, lane) in self.0.into_iter().enumerate() {
                    let bit = at * 256 / $count;
                    out[bit / 64] |= u64::from(lane) << (bit % 64);
                }
                out
            }
            #[inline(always)]
            fn random(state: &mut [Self; 2]) -> Self {
                let mut words = state.map(Self::words);
                let out = next(&mut words);
                *state = words.map(Self::from_words);
                Self::from_words(out)
            }
            #[inline(always)]
            fn below(self, bound: Self) -> Self {
                // Sixteen random bits decide, whatever the width.
                self.zip(bound, |bits, bound| {
                    let bits = u32::from((bits >> (<$lane>::BITS - 16)) as u16);
                    (bits * u32::from(bound) >> 16) as $lane
                })
            }
            #[inline(always)]
            fn less(self, other: Self) -> Self {
                self.zip(other, |a, b| if a < b { <$lane>::MAX } else { 0 })
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.zip(other, <$lane>::wrapping_add)
            }
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self.zip(other, |a, b| a & b)
            }
            #[inline(always)]
            fn or(self, other: Self) -> Self {
                self.zip(other, |a, b| a | b)
            }
            #[inline(always)]
            fn not_and(self, other: Self) -> Self {
                self.zip(other, |a, b| !a & b)
            }
            #[inline(always)]
            fn left(self) -> Self {
                self.zip(self, |a, _| a << 1)
            }
            #[inline(always)]
            fn right(self) -> Self {
                self.zip(self, |a, _| a >> 1)
            }
            #[inline(always)]
            fn nonzero(self) -> u32 {
                let lanes = self.0.into_iter().enumerate();
                lanes.fold(0, |out, (at, lane)| out | u32::from(lane != 0) << at)
            }
        }
    };
}

array!(Narrow, u16, 16, "Sixteen lanes, for rows of at most sixteen cells.");
array!(Wide, u32, 8, "Eight lanes, for rows of more than sixteen cells.");

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{self as x86, __m256i};

    use super::Lanes;

    /// The lanes of [`super::Narrow`] in one register. Only for code that runs where AVX2 is: `playout.rs` looks.
    #[derive(Clone, Copy, Debug)]
    pub(in crate::hex) struct Avx2(__m256i);

    /// One instruction.
    macro_rules! avx2 {
        ($name:ident($($argument:expr),*)) => {
            // SAFETY:
            // - AVX2 is there: the only callers are `playout.rs`' functions for it, which are entered after a look.
            // - no other condition: it works on registers alone.
            unsafe { x86::$name($($argument),*) }
        };
        ($name:ident::<$shift:literal>($argument:expr)) => {
            // SAFETY:
            // - as above.
            unsafe { x86::$name::<$shift>($argument) }
        };
    }

    impl Lanes for Avx2 {
        const COUNT: u32 = 16;

        #[inline(always)]
        fn splat(value: u32) -> Self {
            #[expect(clippy::cast_possible_truncation, reason = "a lane's bits")]
            let lane = value as i16;
            Self(avx2!(_mm256_set1_epi16(lane)))
        }
        #[inline(always)]
        fn from_words(words: [u64; 4]) -> Self {
            let [a, b, c, d] = words.map(u64::cast_signed);
            Self(avx2!(_mm256_set_epi64x(d, c, b, a)))
        }
        #[inline(always)]
        fn words(self) -> [u64; 4] {
            [
                avx2!(_mm256_extract_epi64::<0>(self.0)),
                avx2!(_mm256_extract_epi64::<1>(self.0)),
                avx2!(_mm256_extract_epi64::<2>(self.0)),
                avx2!(_mm256_extract_epi64::<3>(self.0)),
            ]
            .map(i64::cast_unsigned)
        }
        #[inline(always)]
        fn random(state: &mut [Self; 2]) -> Self {
            let [Self(x), Self(y)] = *state;
            let left = avx2!(_mm256_slli_epi64::<23>(x));
            let x = avx2!(_mm256_xor_si256(x, left));
            let right = avx2!(_mm256_srli_epi64::<17>(x));
            let x = avx2!(_mm256_xor_si256(x, right));
            let right = avx2!(_mm256_srli_epi64::<26>(y));
            let y_mixed = avx2!(_mm256_xor_si256(y, right));
            let new = avx2!(_mm256_xor_si256(x, y_mixed));
            *state = [Self(y), Self(new)];
            Self(avx2!(_mm256_add_epi64(new, y)))
        }
        #[inline(always)]
        fn below(self, bound: Self) -> Self {
            Self(avx2!(_mm256_mulhi_epu16(self.0, bound.0)))
        }
        #[inline(always)]
        fn less(self, other: Self) -> Self {
            Self(avx2!(_mm256_cmpgt_epi16(other.0, self.0)))
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            Self(avx2!(_mm256_add_epi16(self.0, other.0)))
        }
        #[inline(always)]
        fn and(self, other: Self) -> Self {
            Self(avx2!(_mm256_and_si256(self.0, other.0)))
        }
        #[inline(always)]
        fn or(self, other: Self) -> Self {
            Self(avx2!(_mm256_or_si256(self.0, other.0)))
        }
        #[inline(always)]
        fn not_and(self, other: Self) -> Self {
            Self(avx2!(_mm256_andnot_si256(self.0, other.0)))
        }
        #[inline(always)]
        fn left(self) -> Self {
            Self(avx2!(_mm256_slli_epi16::<1>(self.0)))
        }
        #[inline(always)]
        fn right(self) -> Self {
            Self(avx2!(_mm256_srli_epi16::<1>(self.0)))
        }
        #[inline(always)]
        fn nonzero(self) -> u32 {
            let zero = avx2!(_mm256_setzero_si256());
            let equal = avx2!(_mm256_cmpeq_epi16(self.0, zero));
            // Two bytes a lane become one.
            let low = avx2!(_mm256_castsi256_si128(equal));
            let high = avx2!(_mm256_extracti128_si256::<1>(equal));
            let narrow = avx2!(_mm_packs_epi16(low, high));
            let mask = avx2!(_mm_movemask_epi8(narrow));
            !mask.cast_unsigned() & 0xffff
        }
    }
}
