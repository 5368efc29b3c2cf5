//! What is said about mappings over the socket of an open connection. What is decoded is a claim.
//!
//! # Layout (little-endian)
//! | offset | size | field | meaning |
//! |---:|---:|---|---|
//! | 0 | 4 | magic | `HgSm`, as in the greetings |
//! | 4 | 4 | version | as in the greetings |
//! | 8 | 4 | kind | 4 Map, 5 Mapped, 6 Unmap |
//! | 12 | 4 | length | bytes that follow these 16 |
//! | 16 | 4 | index | the region's place in its owner's table |
//! | 20 | 4 | generation | of that place |
//! | 24 | 16 or 4 | token or status | a Map's token; what a Mapped says; nothing in an Unmap |
//!
//! A Mapped whose status is 0 carries one descriptor, the memfd.

use super::hello::{VERSION, framed, unframed};
use crate::descriptor::RegionName;

const KIND_MAP: u32 = 4;
const KIND_MAPPED: u32 = 5;
const KIND_UNMAP: u32 = 6;

/// What an owner answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// Here it is.
    Given = 0,
    /// No such region (any more), or not of this kind.
    NoSuch = 1,
    /// The system does not let it pass the descriptor on.
    NoDescriptor = 2,
}

/// A message about a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MapMessage {
    /// From an initiator: send me the memory of this region.
    Map(RegionName, [u8; 16]),
    /// The answer.
    Mapped(RegionName, Status),
    /// From an owner: the region is unregistered.
    Unmap(RegionName),
}

impl MapMessage {
    /// The wire form.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, name, rest) = match self {
            Self::Map(name, token) => (KIND_MAP, name, token.to_vec()),
            Self::Mapped(name, status) => {
                (KIND_MAPPED, name, (*status as u32).to_le_bytes().to_vec())
            }
            Self::Unmap(name) => (KIND_UNMAP, name, Vec::new()),
        };
        let name = [name.index, name.generation].map(u32::to_le_bytes);
        framed(kind, &[name.as_flattened(), &rest].concat())
    }

    /// Whether these bytes are meant to be one.
    pub(crate) fn is_meant(bytes: &[u8]) -> bool {
        let kind = bytes.get(8..12).and_then(|kind| kind.first_chunk());
        kind.is_some_and(|kind| (KIND_MAP..=KIND_UNMAP).contains(&u32::from_le_bytes(*kind)))
    }

    /// Reads the wire form; nothing may follow it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let cut = "its message about a mapping is cut short";
        let Ok((VERSION, kind, mut body)) = unframed(bytes) else {
            return Err("its message about a mapping is none");
        };
        let mut word = || body.u32().ok_or(cut);
        let name = RegionName { index: word()?, generation: word()? };
        match (kind, body.0.len()) {
            (KIND_MAP, 16) => Ok(Self::Map(name, body.take().ok_or(cut)?)),
            (KIND_MAPPED, 4) => match body.u32().ok_or(cut)? {
                0 => Ok(Self::Mapped(name, Status::Given)),
                1 => Ok(Self::Mapped(name, Status::NoSuch)),
                2 => Ok(Self::Mapped(name, Status::NoDescriptor)),
                _ => Err("its answer about a mapping is unheard of"),
            },
            (KIND_UNMAP, 0) => Ok(Self::Unmap(name)),
            _ => Err("its message about a mapping has another length"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_message_survives_its_wire_form(
            index: u32, generation: u32, token: [u8; 16], kind in 0..5,
        ) {
            let name = RegionName { index, generation };
            let message = match kind {
                0 => MapMessage::Map(name, token),
                1 => MapMessage::Mapped(name, Status::Given),
                2 => MapMessage::Mapped(name, Status::NoSuch),
                3 => MapMessage::Mapped(name, Status::NoDescriptor),
                _ => MapMessage::Unmap(name),
            };
            let bytes = message.encode();
            prop_assert!(MapMessage::is_meant(&bytes));
            prop_assert_eq!(MapMessage::decode(&bytes), Ok(message));
            for len in 0..bytes.len() {
                prop_assert!(MapMessage::decode(&bytes[..len]).is_err());
            }
            prop_assert!(MapMessage::decode(&[&bytes[..], &[0]].concat()).is_err());
        }

        #[test]
        fn other_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _whatever = MapMessage::decode(&bytes);
        }
    }
}
