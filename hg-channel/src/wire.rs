//! What travels: messages of one end to another, and the records in them. All numbers are little-endian.
//!
//! # A message
//! | offset | size | field | meaning |
//! |-------:|-----:|-------|---------|
//! | 0 | 1 | `kind` | [`Kind`] |
//! | 1 | 1 | `asks` | bit 0: the sender waits to hear that all of this has been consumed |
//! | | | `waited` | bit 1: this has waited for room in the window |
//! | 2 | 1 | `doubled` | how often the receiver of the opposite stream has doubled its window |
//! | 3 | 1 | | 0 |
//! | 4 | 4 | `consumed` | position of that stream up to which it has consumed it: the lower half |
//! | 8 | | body | |
//!
//! | kind | as | body |
//! |---|---|---|
//! | `Hello` | unexpected message, the first of a connection | token of the job (16), number of the sending end (4), window (4) |
//! | `Records` | unexpected message | records |
//! | `Consumed` | unexpected message, behind the `Hello` of its connection | none |
//! | | control message, which may overtake that | as `Hello` |
//! | `Leave` | control message: the sender would close this idle connection | lower half of: written (4), consumed (4) |
//! | `Left` | control message: whoever sends it uses this connection no more, if nothing was sent meanwhile | the same |
//! | `Stay` | control message, the answer to a `Left` after which it is wanted again: whoever sends it goes on using it | that of the `Left` |
//!
//! # A record
//! | offset | size | field | meaning |
//! |-------:|-----:|-------|---------|
//! | 0 | 4 | `tag` | the application's |
//! | 4 | 4 | `len` | bytes that follow |
//! | 8 | `len` | | |
//!
//! A *position* counts bytes of records with their headers, from the beginning of the stream; half of it travels, since a window
//! is far shorter than the other half.

use crate::error::Broken;

/// Bytes that a message begins with.
pub(crate) const HEADER: usize = 8;
/// Bytes that a record begins with.
pub const RECORD: usize = 8;
/// Bytes of a `Hello` or a `Consumed`.
pub(crate) const SIGNED: usize = HEADER + 24;
/// Bytes of a `Leave`, a `Left` or a `Stay`.
pub(crate) const LEAVE: usize = HEADER + 8;

/// Lower halves of where an end is with both streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Positions {
    pub(crate) written: u32,
    pub(crate) consumed: u32,
}

impl Positions {
    pub(crate) fn write(self, into: &mut [u8; LEAVE]) {
        into[HEADER..][..4].copy_from_slice(&self.written.to_le_bytes());
        into[HEADER + 4..].copy_from_slice(&self.consumed.to_le_bytes());
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Broken> {
        Ok(Self { written: word(bytes, HEADER)?, consumed: word(bytes, HEADER + 4)? })
    }
}

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Hello = 1,
    Records = 2,
    Consumed = 3,
    Leave = 4,
    Left = 5,
    Stay = 6,
}

/// What the receiver of a stream tells its sender: more may be on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    /// Half of the position up to which it has consumed it.
    pub(crate) consumed: u32,
    /// How often it has doubled the window.
    pub(crate) doubled: u8,
}

/// The header of a message, as it was claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) asks: bool,
    pub(crate) waited: bool,
    pub(crate) told: Told,
}

impl Header {
    #[inline]
    pub(crate) fn write(self, into: &mut [u8]) {
        let flags = u64::from(self.waited) << 1 | u64::from(self.asks);
        let Told { consumed, doubled } = self.told;
        let word = u64::from(consumed) << 32 | u64::from(doubled) << 16;
        let word = word | flags << 8 | self.kind as u64;
        into[..HEADER].copy_from_slice(&word.to_le_bytes());
    }

    #[inline]
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Broken> {
        let word = u64::from_le_bytes(*bytes.first_chunk::<HEADER>().ok_or(Broken::TooShort)?);
        let kind = match word & 0xff {
            1 => Kind::Hello,
            2 => Kind::Records,
            3 => Kind::Consumed,
            4 => Kind::Leave,
            5 => Kind::Left,
            6 => Kind::Stay,
            _ => return Err(Broken::Kind),
        };
        Ok(Self::of_word(kind, word))
    }

    #[inline(always)]
    fn of_word(kind: Kind, word: u64) -> Self {
        let [_, flags, doubled, ..] = word.to_le_bytes();
        let told = Told { consumed: upper_half(word), doubled };
        Self { kind, asks: flags & 1 != 0, waited: flags & 2 != 0, told }
    }
}

/// The header of a message of this kind. `None`: it is another one, or none. Apart from [`Header::read`], since what most messages are is to stay in
/// registers.
#[inline(always)]
pub(crate) fn header_of(kind: Kind, bytes: &[u8]) -> Option<Header> {
    let word = u64::from_le_bytes(*bytes.first_chunk::<HEADER>()?);
    (word & 0xff == kind as u64).then_some(Header::of_word(kind, word))
}

/// Four bytes of a body, where they are.
pub(crate) fn word(bytes: &[u8], at: usize) -> Result<u32, Broken> {
    let word = bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or(Broken::TooShort)?;
    Ok(u32::from_le_bytes(*word))
}

/// The half of a position that travels.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the lower half is what travels")]
pub(crate) const fn half(position: u64) -> u32 {
    position as u32
}

#[inline]
const fn upper_half(word: u64) -> u32 {
    (word >> 32) as u32
}

/// One record of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The application's.
    pub tag: u32,
    /// What was written.
    pub bytes: &'a [u8],
}

/// Takes the record in front off a block's bytes; `None`: there is none left.
///
/// # Errors
/// The bytes are no records: a peer that breaks the protocol.
#[inline]
pub fn next_record<'a>(left: &mut &'a [u8]) -> Result<Option<Record<'a>>, Broken> {
    let Some((head, rest)) = left.split_first_chunk::<RECORD>() else {
        return if left.is_empty() { Ok(None) } else { Err(Broken::TooShort) };
    };
    let word = u64::from_le_bytes(*head);
    let (tag, len) = (half(word), upper_half(word) as usize);
    let (bytes, rest) = rest.split_at_checked(len).ok_or(Broken::TooShort)?;
    *left = rest;
    Ok(Some(Record { tag, bytes }))
}

/// Writes the header of a record.
#[inline]
pub(crate) fn write_record(into: &mut [u8], tag: u32, len: u32) {
    let word = u64::from(len) << 32 | u64::from(tag);
    into[..RECORD].copy_from_slice(&word.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn records_are_read_as_they_were_written(
            records in prop::collection::vec((any::<u32>(), prop::collection::vec(any::<u8>(), 0..70)), 0..20),
        ) {
            let mut bytes = Vec::new();
            for (tag, body) in &records {
                let mut head = [0; RECORD];
                write_record(&mut head, *tag, u32::try_from(body.len()).unwrap());
                bytes.extend_from_slice(&head);
                bytes.extend_from_slice(body);
            }
            let (mut left, mut read) = (bytes.as_slice(), Vec::new());
            while let Some(record) = next_record(&mut left).unwrap() {
                read.push((record.tag, record.bytes.to_vec()));
            }
            prop_assert_eq!(read, records);
        }

        #[test]
        fn any_bytes_are_records_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut left = bytes.as_slice();
            let mut most = bytes.len() / RECORD + 1;
            while let Ok(Some(_)) = next_record(&mut left) {
                prop_assert!(most > 0);
                most -= 1;
            }
            let _ = Header::read(&bytes);
        }

        #[test]
        fn a_header_is_read_as_it_was_written(asks: bool, waited: bool, consumed: u32, doubled: u8) {
            let told = Told { consumed, doubled };
            for kind in [
                Kind::Hello,
                Kind::Records,
                Kind::Consumed,
                Kind::Leave,
                Kind::Left,
                Kind::Stay,
            ] {
                let (header, mut bytes) = (Header { kind, asks, waited, told }, [0; HEADER]);
                header.write(&mut bytes);
                prop_assert_eq!(Header::read(&bytes).unwrap(), header);
                prop_assert_eq!(header_of(kind, &bytes), Some(header));
                let other = if kind == Kind::Records { Kind::Hello } else { Kind::Records };
                prop_assert_eq!(header_of(other, &bytes), None);
            }
        }
    }
}
