//! What an object holds: words of which each says where it stands, so that no byte can be missing, moved or another object's.

/// Fills an object of a root's with its bytes.
pub(crate) fn fill(bytes: &mut [u8], root: u32, number: u64) {
    let seed = seed(root, number);
    let (words, rest) = bytes.as_chunks_mut::<8>();
    let mut at = 0_u64;
    for word in words {
        *word = value(seed, at);
        at += 1;
    }
    let last = value(seed, at);
    rest.copy_from_slice(&last[..rest.len()]);
}

/// Where the first byte is that should be another one; `None`: all are right. `bytes` begin at `from`, a multiple of 8, of their object.
pub(crate) fn wrong(bytes: &[u8], from: u64, root: u32, number: u64) -> Option<u64> {
    let seed = seed(root, number);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut at = from / 8;
    // Without a branch for each word.
    let mut differs = 0_u64;
    for word in words {
        differs |= u64::from_le_bytes(*word) ^ u64::from_le_bytes(value(seed, at));
        at += 1;
    }
    if differs == 0 && rest == &value(seed, at)[..rest.len()] {
        return None;
    }
    let right = |at: usize| value(seed, from / 8 + at as u64 / 8)[at % 8];
    let first = bytes.iter().enumerate().position(|(at, byte)| *byte != right(at));
    first.map(|at| from + at as u64)
}

fn value(seed: u64, at: u64) -> [u8; 8] {
    seed.wrapping_add(at.wrapping_mul(ODD)).to_le_bytes()
}

fn seed(root: u32, number: u64) -> u64 {
    let mixed = (u64::from(root) << 40 ^ number).wrapping_add(1).wrapping_mul(ODD);
    mixed ^ mixed >> 29
}

const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_found_wherever_it_is_and_so_is_another_object() {
        for len in [1, 7, 8, 9, 4096, 4099] {
            let mut bytes = vec![0; len];
            fill(&mut bytes, 3, 5);
            assert_eq!(wrong(&bytes, 0, 3, 5), None);
            // One byte alone may be another object's, too.
            let is_other = |root, number| wrong(&bytes, 0, root, number).is_some();
            assert!(len < 7 || is_other(3, 6) && is_other(2, 5));
            for at in [0, len / 2, len - 1] {
                bytes[at] ^= 1;
                assert_eq!(wrong(&bytes, 0, 3, 5), Some(at as u64));
                bytes[at] ^= 1;
            }
        }
    }

    #[test]
    fn a_piece_of_an_object_is_known_by_where_it_begins() {
        let mut bytes = vec![0; 4099];
        fill(&mut bytes, 1, 1);
        assert_eq!(
            (wrong(&bytes[1024..], 1024, 1, 1), wrong(&bytes[1024..], 1032, 1, 1)),
            (None, Some(1032))
        );
    }

    #[test]
    fn blocks_that_changed_places_are_found() {
        let mut bytes = vec![0; 8192];
        fill(&mut bytes, 0, 0);
        bytes.rotate_left(4096);
        assert!(wrong(&bytes, 0, 0, 0).is_some_and(|at| at < 8));
    }
}
