//! XXH3-64 of blocks. Each byte is summed up once by the root and once by each receiver, which is much of what an object takes inside a node.

use std::hash::Hasher;

use twox_hash::{XxHash3_64, xxhash3_64};

/// Of these bytes.
pub(crate) fn of(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// Of bytes that come one part after the other.
#[derive(Clone, Default)]
pub(crate) struct Sum(xxhash3_64::Hasher);

impl Sum {
    /// The bytes that follow.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// Of all until now.
    pub(crate) fn total(&self) -> u64 {
        self.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes and the first sums of the self-test of xxHash 0.8 (`xxhsum -b`), seed 0.
    #[test]
    fn sums_are_those_of_xxhash() {
        let mut state = 2_654_435_761_u64;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            let byte = state.to_be_bytes()[0];
            state = state.wrapping_mul(11_400_714_785_074_694_797);
            byte
        })
        .take(2_367)
        .collect();
        for (len, sum) in [
            (0, 0x2d06_8005_38d3_94c2),
            (1, 0xc44b_dff4_074e_ecdb),
            (6, 0x27b5_6a84_cd2d_7325),
            (12, 0xa713_daf0_dfbb_77e7),
            (24, 0xa3fe_70bf_9d35_10eb),
            (48, 0x397d_a259_ecba_1f11),
            (80, 0xbcde_fbbb_2c47_c90a),
            (195, 0xcd94_217e_e362_ec3a),
            (403, 0xcdeb_804d_65c6_dea4),
            (512, 0x617e_4959_9013_cb6b),
            (2_048, 0xdd59_e2c3_a5f0_38e0),
            (2_240, 0x6e73_a905_39cf_2948),
            (2_367, 0xcb37_aeb9_e5d3_61ed),
        ] {
            assert_eq!(of(&bytes[..len]), sum, "{len}");
        }
    }

    #[test]
    fn a_sum_of_parts_is_that_of_the_whole() {
        let bytes: Vec<u8> =
            (0..20_000_u32).map(|it| it.wrapping_mul(193).to_le_bytes()[1]).collect();
        for len in [0_usize, 1, 7, 63, 64, 240, 241, 256, 257, 4095, 8192, 20_000] {
            for at in [0, 1, 16, len / 2, len.saturating_sub(1), len] {
                let (before, after) = bytes[..len].split_at(at.min(len));
                let mut sum = Sum::default();
                sum.add(before);
                sum.add(after);
                assert_eq!(sum.total(), of(&bytes[..len]), "{len}, {at}");
            }
        }
    }
}
