//! The plugin's part of a descriptor: where a region stands in its owner's table.
//!
//! # Layout (little-endian)
//! | offset | size | field | meaning |
//! |---:|---:|---|---|
//! | 0 | 16 | domain | random id of the owner's domain |
//! | 16 | 4 | index | slot in the owner's table |
//! | 20 | 4 | generation | of that slot, odd |
//! | 24 | 16 | token | random; the entry holds the same |

use hg_na::{DESCRIPTOR_MAX, Error};

/// Bytes of the plugin's part.
pub(crate) const OPAQUE_LEN: usize = 40;

const _: () = assert!(OPAQUE_LEN <= DESCRIPTOR_MAX);

/// A token as two words.
pub(crate) fn halves(token: [u8; 16]) -> [u64; 2] {
    let ([low, high], _) = token.as_chunks::<8>() else { unreachable!("16 bytes are twice 8") };
    [u64::from_le_bytes(*low), u64::from_le_bytes(*high)]
}

/// The token of two words.
pub(crate) fn joined([low, high]: [u64; 2]) -> [u8; 16] {
    (u128::from(low) | (u128::from(high) << 64)).to_le_bytes()
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
    pub(crate) fn encode(&self) -> [u8; OPAQUE_LEN] {
        let mut bytes = [0; OPAQUE_LEN];
        bytes[..16].copy_from_slice(&self.domain);
        bytes[16..20].copy_from_slice(&self.index.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..].copy_from_slice(&self.token);
        bytes
    }

    /// Reads the wire form; nothing may follow it.
    ///
    /// # Errors
    /// [`Error::BadDescriptor`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let Ok(bytes) = <&[u8; OPAQUE_LEN]>::try_from(bytes) else {
            return Err(Error::BadDescriptor("it is no descriptor of shared memory"));
        };
        let (domain, rest) = bytes.split_first_chunk().expect("40 bytes hold 16");
        let (index, rest) = rest.split_first_chunk().expect("24 bytes hold 4");
        let (generation, rest) = rest.split_first_chunk().expect("20 bytes hold 4");
        let (token, _) = rest.split_first_chunk().expect("16 bytes hold 16");
        Ok(Self {
            domain: *domain,
            index: u32::from_le_bytes(*index),
            generation: u32::from_le_bytes(*generation),
            token: *token,
        })
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
            prop_assert_eq!(RegionClaim::decode(&bytes).is_ok(), bytes.len() == OPAQUE_LEN);
        }
    }
}
