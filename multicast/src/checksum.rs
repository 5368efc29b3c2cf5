//! CRC-32C of blocks. Each byte is summed up once by the root and once by each receiver, which is much of what an object takes inside a node.

use crc_fast::{CrcAlgorithm, Digest};

/// Of these bytes.
pub(crate) fn of(bytes: &[u8]) -> u32 {
    append(0, bytes)
}

/// Of these bytes and those before them, which sum up to `sum`.
pub(crate) fn append(sum: u32, bytes: &[u8]) -> u32 {
    // What is between the bytes is not inverted yet.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!sum));
    digest.update(bytes);
    u32::try_from(digest.finalize()).expect("a sum of 32 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_rfc_3720() {
        assert_eq!(of(b"123456789"), 0xe306_9283);
        assert_eq!(of(&[0; 32]), 0x8a91_36aa);
        assert_eq!(of(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(of(&(0..32).collect::<Vec<_>>()), 0x46dd_794e);
        assert_eq!(of(b""), 0);
    }

    #[test]
    fn a_sum_goes_on_where_it_was_left_and_is_that_of_one_bit_after_the_other() {
        let bytes: Vec<u8> =
            (0..20_000_u32).map(|it| it.wrapping_mul(193).to_le_bytes()[1]).collect();
        let slowly = |bytes: &[u8]| {
            let step = |sum: u32| (sum >> 1) ^ if sum & 1 == 1 { 0x82f6_3b78 } else { 0 };
            !bytes.iter().fold(!0, |sum, it| (0..8).fold(sum ^ u32::from(*it), |sum, _| step(sum)))
        };
        for len in [1, 7, 8, 63, 64, 255, 256, 257, 4095, 8192, 20_000] {
            let sum = slowly(&bytes[..len]);
            for at in [0, 1, 16, len / 2, len - 1].into_iter().filter(|at| *at <= len) {
                assert_eq!(append(of(&bytes[..at]), &bytes[at..len]), sum, "{len}, {at}");
            }
        }
    }
}
