//! Messages as they travel in a batch: one behind the other, each behind a head of 16 bytes.
//!
//! # Layout
//! | offset | size | field     | meaning                                         |
//! |-------:|-----:|-----------|-------------------------------------------------|
//! |      0 |    4 | `len`     | bytes of payload                                |
//! |      4 |    4 | `kind`    | the application's type                          |
//! |      8 |    4 | `source`  | the rank that sent it                           |
//! |     12 |    4 | `to`      | the rank that gets it, or [`EVERYBODY`]         |
//! |     16 |  len | payload   |                                                 |
//!
//! Integers are little-endian; there is no padding. A relay passes head and payload on as they are.

use std::fmt;

/// Bytes of a head.
pub(crate) const HEAD: usize = 16;

/// In place of a destination: every rank.
pub(crate) const EVERYBODY: u32 = u32::MAX;

/// Longest payload in bytes.
pub const MESSAGE_MAX: usize = 1 << 30;

/// One message of a batch, as claimed by whoever sent the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u32,
    pub(crate) source: u32,
    pub(crate) to: u32,
    pub(crate) bytes: &'a [u8],
}

impl Message<'_> {
    /// Appends it.
    #[inline]
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        // Lengths are checked where messages enter: `MESSAGE_MAX` fits.
        #[expect(clippy::cast_possible_truncation, reason = "at most MESSAGE_MAX")]
        let len = self.bytes.len() as u32;
        // One value, not four stores: whoever copies it soon afterwards would wait for all of them.
        let head = [self.to, self.source, self.kind, len];
        let head = head.iter().fold(0, |head, word| head << 32 | u128::from(*word));
        out.reserve(HEAD + self.bytes.len());
        out.extend_from_slice(&head.to_le_bytes());
        out.extend_from_slice(self.bytes);
    }

    /// Bytes in a batch.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        HEAD + self.bytes.len()
    }

    /// Whether it is for every rank.
    pub(crate) fn is_broadcast(&self) -> bool {
        self.to == EVERYBODY
    }
}

/// The messages of a batch, one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Messages<'a> {
    rest: &'a [u8],
}

/// A batch that does not hold whole messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a batch ends in the middle of a message")
    }
}

impl<'a> Messages<'a> {
    pub(crate) fn of(batch: &'a [u8]) -> Self {
        Self { rest: batch }
    }

    /// What has not been read.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let Some((head, rest)) = self.rest.split_first_chunk::<HEAD>() else {
            self.rest = &[];
            return Some(Err(Malformed));
        };
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let Some((bytes, rest)) =
            usize::try_from(word(0)).ok().and_then(|len| rest.split_at_checked(len))
        else {
            self.rest = &[];
            return Some(Err(Malformed));
        };
        self.rest = rest;
        Some(Ok(Message { kind: word(4), source: word(8), to: word(12), bytes }))
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_written_is_read(
            messages in prop::collection::vec((any::<[u32; 3]>(), prop::collection::vec(any::<u8>(), 0..40)), 0..20),
        ) {
            let mut batch = Vec::new();
            let messages: Vec<_> = messages
                .iter()
                .map(|([kind, source, to], bytes)| Message { kind: *kind, source: *source, to: *to, bytes })
                .collect();
            for message in &messages {
                message.write(&mut batch);
            }
            let read: Result<Vec<_>, _> = Messages::of(&batch).collect();
            prop_assert_eq!(read.unwrap(), messages);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic_and_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Messages::of(&bytes).count() <= 1 + bytes.len() / HEAD);
        }
    }

    #[test]
    fn a_batch_that_is_cut_anywhere_is_malformed_or_shorter() {
        let mut batch = Vec::new();
        Message { kind: 0, source: 1, to: 2, bytes: b"" }.write(&mut batch);
        Message { kind: 1, source: 1, to: 2, bytes: b"three" }.write(&mut batch);
        for len in 0..batch.len() {
            let whole = matches!(len, 0 | HEAD);
            assert_eq!(
                Messages::of(&batch[..len]).all(|message| message.is_ok()),
                whole,
                "{len} bytes"
            );
        }
    }
}
