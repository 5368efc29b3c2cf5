//! The seeded random numbers of one worker.

/// Random numbers: the same seed gives the same ones.
///
/// Beside a small generator for choices it holds the state of four generators (xorshift128+, Vigna 2017) that a
/// bit-parallel playout advances as one vector.
#[derive(Clone, Debug)]
pub struct Random {
    choices: fastrand::Rng,
    pub(crate) lanes: [[u64; 4]; 2],
}

impl Random {
    /// Of a seed, and of the number of a worker: two workers get different numbers.
    #[must_use]
    pub fn new(seed: u64, worker: u32) -> Self {
        let mut choices = fastrand::Rng::with_seed(mix(seed, u64::from(worker)));
        let mut lanes = [[0; 4]; 2];
        for word in lanes.as_flattened_mut() {
            // Not zero: a generator whose state is zero stays there.
            *word = choices.u64(1..);
        }
        Self { choices, lanes }
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: usize) -> usize {
        self.choices.usize(..bound)
    }

    /// Puts the items into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        self.choices.shuffle(items);
    }
}

/// A number that two others decide, spread evenly (the finalizer of SplitMix64).
#[must_use]
pub fn mix(a: u64, b: u64) -> u64 {
    let mut word = a ^ b.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
