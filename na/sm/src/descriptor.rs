//! The plugin's part of a descriptor: where a region stands in its owner's table.
//!
//! # Layout (little-endian): a [`Claim`] whose key is index and generation
//! | offset | size | field | meaning |
//! |---:|---:|---|---|
//! | 0 | 16 | domain | random id of the owner's domain |
//! | 16 | 4 | index | slot in the owner's table |
//! | 20 | 4 | generation | of that slot, odd |
//! | 24 | 16 | token | random; the entry holds the same |

use hg_na::Error;
use hg_na_parts::regions::{CLAIM_LEN, Claim};

/// A token as two words.
pub(crate) fn halves(token: [u8; 16]) -> [u64; 2] {
    let ([low, high], _) = token.as_chunks::<8>() else { unreachable!("16 bytes are twice 8") };
    [u64::from_le_bytes(*low), u64::from_le_bytes(*high)]
}

/// The token of two words.
pub(crate) fn joined([low, high]: [u64; 2]) -> [u8; 16] {
    (u128::from(low) | (u128::from(high) << 64)).to_le_bytes()
}

/// Two words in one; the lower one is below 2^32.
#[inline]
pub(crate) fn pair(low: u64, high: u32) -> u64 {
    low | (u64::from(high) << 32)
}

/// The two words of one.
#[inline]
pub(crate) fn split(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}

/// Which region of a domain, without the token that proves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegionName {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// What names a region. From a peer or a third process it is a claim, until the table confirms it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegionClaim {
    /// Id of the owner's domain.
    pub(crate) domain: [u8; 16],
    /// Slot in its table.
    pub(crate) index: u32,
    /// Generation of the slot.
    pub(crate) generation: u32,
    /// What the entry must hold too.
    pub(crate) token: [u8; 16],
}

impl RegionClaim {
    pub(crate) fn name(&self) -> RegionName {
        RegionName { index: self.index, generation: self.generation }
    }

    /// What shows its owner that the name is of a region of his domain, as it is now: token and domain in one.
    pub(crate) fn proof(&self) -> [u8; 16] {
        (u128::from_le_bytes(self.token) ^ u128::from_le_bytes(self.domain)).to_le_bytes()
    }

    /// The wire form.
    pub(crate) fn encode(&self) -> [u8; CLAIM_LEN] {
        let &Self { domain, index, generation, token } = self;
        Claim { domain, key: pair(index.into(), generation), token }.encode()
    }

    /// Reads the wire form; nothing may follow it.
    ///
    /// # Errors
    /// [`Error::BadDescriptor`].
    #[inline]
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let wrong = |_| Error::BadDescriptor("it is no descriptor of shared memory");
        let Claim { domain, key, token } = Claim::decode(bytes).map_err(wrong)?;
        let (index, generation) = split(key);
        Ok(Self { domain, index, generation, token })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_claim_survives_its_wire_form(
            domain: [u8; 16], index: u32, generation: u32, token: [u8; 16],
        ) {
            let claim = RegionClaim { domain, index, generation, token };
            prop_assert_eq!(RegionClaim::decode(&claim.encode()).unwrap(), claim);
        }

        #[test]
        fn other_lengths_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
            prop_assert_eq!(RegionClaim::decode(&bytes).is_ok(), bytes.len() == CLAIM_LEN);
        }
    }
}
