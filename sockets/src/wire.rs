//! Frames: one unexpected message each.
//!
//! # Layout (little-endian)
//! | offset | size | field | meaning |
//! |---:|---:|---|---|
//! | 0 | 1 | `kind` | [`Kind`] |
//! | 1 | 3 | 0 | |
//! | 4 | 4 | `id` | of the connection, which whoever has connected chose; [`YOURS`]: the receiver has |
//! | 8 | 8 | `word` | by kind |
//! | 16 | ... | body | by kind |
//!
//! | kind | word | body | what it is |
//! |---|---|---|---|
//! | `Connect` | port | | asks for a connection |
//! | `Opened` | | | it waits to be accepted |
//! | `Refused` | which reason | | it does not |
//! | `Bytes` | | the message | a message that is sent |
//! | `Offer` | its number | flags, load of the sender in percent, descriptor | one that lies in the sender's memory |
//! | `Take` | number | descriptor | the receiver's memory for it: write it there |
//! | `Landed` | number | nothing, or why not | it was |
//! | `Done` | number | | the receiver has it |
//! | `Credit` | bytes | | the receiver's application has taken so many |
//! | `Fin` | | | the last frame but for `Done`, `FinGot` and what serves a `Take`: nothing is sent any more |
//! | `FinGot` | | | all before the `Fin` is with the receiver |

use hg_na::{INLINE_MAX, Message};

/// Bytes of a header.
pub(crate) const HEADER_LEN: usize = 16;
/// Marks an id that the receiver of the frame has chosen.
pub(crate) const YOURS: u32 = 1 << 31;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Connect = 1,
    Opened,
    Refused,
    Bytes,
    Offer,
    Take,
    Landed,
    Done,
    Credit,
    Fin,
    FinGot,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        use Kind::{
            Bytes, Connect, Credit, Done, Fin, FinGot, Landed, Offer, Opened, Refused, Take,
        };
        let all = [Connect, Opened, Refused, Bytes, Offer, Take, Landed, Done, Credit, Fin, FinGot];
        all.into_iter().find(|known| *known as u8 == byte)
    }
}

/// The first bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) id: u32,
    pub(crate) word: u64,
}

impl Header {
    /// The wire form.
    pub(crate) fn encode(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..].copy_from_slice(&self.word.to_le_bytes());
        bytes
    }

    /// Reads a frame; gives its body, too.
    ///
    /// # Errors
    /// What its sender has done wrong.
    pub(crate) fn decode(frame: &[u8]) -> Result<(Self, &[u8]), &'static str> {
        let (head, body) = frame.split_first_chunk::<HEADER_LEN>().ok_or("a frame cut short")?;
        let [kind, 0, 0, 0, i0, i1, i2, i3, word @ ..] = *head else {
            return Err("a frame with bytes that mean nothing");
        };
        let kind = Kind::of(kind).ok_or("a frame of an unknown kind")?;
        let id = u32::from_le_bytes([i0, i1, i2, i3]);
        Ok((Self { kind, id, word: u64::from_le_bytes(word) }, body))
    }

    /// A frame in memory of its own.
    pub(crate) fn frame(self, body: &[u8]) -> Message {
        let mut bytes = [0; INLINE_MAX];
        let len = HEADER_LEN + body.len();
        match bytes.get_mut(HEADER_LEN..len) {
            None => return Message::from([&self.encode()[..], body].concat()),
            Some(place) => place.copy_from_slice(body),
        }
        bytes[..HEADER_LEN].copy_from_slice(&self.encode());
        Message::from_slot(bytes, len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_taken_encodes_to_the_same_bytes(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..80), plausible in any::<bool>(),
        ) {
            if plausible && bytes.len() >= HEADER_LEN {
                bytes[0] %= 14;
                bytes[1..4].fill(0);
            }
            if let Ok((header, body)) = Header::decode(&bytes) {
                let again = header.frame(body);
                prop_assert_eq!(again.as_slice(), &bytes[..]);
            }
        }
    }
}
