//! The frames of an open connection, and the limits of everything in them.
//!
//! # Layout of a header (little-endian)
//! | offset | size | field   | meaning |
//! |-------:|-----:|---------|---------|
//! |      0 |    4 | `len`   | bytes of the body, which follows |
//! |      4 |    1 | `kind`  | see [`Kind`] |
//! |      5 |    1 | `side`  | which end opened the link: 0 the end that dialled, 1 the end that accepted |
//! |      6 |    2 | `epoch` | how often that end had opened a link before on this connection |
//! |      8 |    8 | `word`  | tag, serial of a transfer, or credits: messages (low half), bytes (high half) |
//!
//! A connection carries at most two links, one opened by each end: see [`crate::link`].

use hg_na_link::{ACCESS_LEN, VERDICT_LEN};
use hg_na_parts::credits::{Amount, OWED_PART};

/// Bytes of a header.
pub(crate) const HEADER: usize = 16;
/// Longest unexpected or expected message in bytes.
pub(crate) const MESSAGE_MAX: usize = 256 << 10;
/// Longest control message in bytes.
pub(crate) const CONTROL_MAX: usize = 256;
/// Unexpected messages that one peer may have sent and the receiver not yet taken.
pub(crate) const WINDOW: u32 = 256;
/// The same of their bytes, and for expected messages.
pub(crate) const WINDOW_BYTES: u32 = 2 << 20;
/// Expected messages that one peer may have sent and the receiver not yet looked at.
pub(crate) const EXPECTED_WINDOW: u32 = 128;
/// Longest piece of a put or get in one frame.
pub(crate) const PIECE_MAX: usize = 1 << 20;
/// Puts, and gets, of one link at a time.
pub(crate) const TRANSFERS_MAX: usize = 256;

/// Bytes of the protocol's own frames (verdicts, credits, announcements) that wait for a socket before the connection is
/// read no more: until its peer reads. One that keeps its limits never makes so many wait, also when it reads nothing.
pub(crate) const OWN_BYTES_MAX: u64 = 256 << 10;

const _: () = {
    assert!(HEADER == 16);
    assert!(MESSAGE_MAX <= (WINDOW_BYTES - WINDOW_BYTES / OWED_PART) as usize);
    assert!(ACCESS_LEN == 56 && VERDICT_LEN == 12);
    // Of each of two links: a put or get of either side has one announcement, one cancellation and one verdict; a lane has
    // one credit for each part of its window, and one that was on its way.
    let transfer = (HEADER + ACCESS_LEN) + HEADER + (HEADER + VERDICT_LEN);
    let credits = 2 * (OWED_PART as usize + 1) * HEADER;
    assert!((2 * (2 * TRANSFERS_MAX * transfer + credits)) as u64 <= OWN_BYTES_MAX);
};

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// An unexpected message.
    Unexpected = 1,
    /// An expected message; the word is its tag.
    Expected = 2,
    /// A control message.
    Control = 3,
    /// Unexpected messages were taken: the word says how many, and their bytes.
    Credit = 4,
    /// The same of expected ones.
    ExpectedCredit = 5,
    /// Announces a put; its data follows in pieces. The word is its serial.
    Put = 6,
    /// Asks for a get; the word is its serial.
    Get = 7,
    /// Bytes of a put, in order.
    PutData = 8,
    /// Bytes of a get, in order.
    GetData = 9,
    /// The owner's verdict on a put or get; nothing of it follows.
    End = 10,
    /// The initiator has lost interest in a transfer.
    Cancel = 11,
    /// Opens the sender's link.
    Open = 12,
    /// Closes a link, either's.
    Close = 13,
    /// The sender closes the connection in good order; nothing follows.
    Goodbye = 14,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        const ALL: [Kind; 14] = [
            Kind::Unexpected,
            Kind::Expected,
            Kind::Control,
            Kind::Credit,
            Kind::ExpectedCredit,
            Kind::Put,
            Kind::Get,
            Kind::PutData,
            Kind::GetData,
            Kind::End,
            Kind::Cancel,
            Kind::Open,
            Kind::Close,
            Kind::Goodbye,
        ];
        ALL.into_iter().find(|kind| *kind as u8 == byte)
    }

    /// Shortest and longest body.
    fn bounds(self) -> (usize, usize) {
        match self {
            Self::Unexpected | Self::Expected => (0, MESSAGE_MAX),
            Self::Control => (0, CONTROL_MAX),
            Self::Put | Self::Get => (ACCESS_LEN, ACCESS_LEN),
            Self::PutData | Self::GetData => (1, PIECE_MAX),
            Self::End => (VERDICT_LEN, VERDICT_LEN),
            Self::Credit
            | Self::ExpectedCredit
            | Self::Cancel
            | Self::Open
            | Self::Close
            | Self::Goodbye => (0, 0),
        }
    }

    /// Whether its body goes into registered memory.
    pub(crate) fn is_data(self) -> bool {
        matches!(self, Self::PutData | Self::GetData)
    }
}

/// Which of a connection's two links a frame belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkId {
    /// 0: opened by the end that dialled; 1: by the end that accepted.
    pub(crate) side: u8,
    /// How often that end had opened one before.
    pub(crate) epoch: u16,
}

/// A checked header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) len: u32,
    pub(crate) kind: Kind,
    pub(crate) link: LinkId,
    pub(crate) word: u64,
}

impl Header {
    /// Length of the body.
    pub(crate) fn body(&self) -> usize {
        self.len as usize
    }

    /// The wire form.
    #[inline]
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4] = self.kind as u8;
        bytes[5] = self.link.side;
        bytes[6..8].copy_from_slice(&self.link.epoch.to_le_bytes());
        bytes[8..].copy_from_slice(&self.word.to_le_bytes());
        bytes
    }

    /// Reads and checks the wire form.
    ///
    /// # Errors
    /// What is wrong with it.
    #[inline]
    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Result<Self, &'static str> {
        let [len_0, len_1, len_2, len_3, kind, side, epoch_0, epoch_1, word @ ..] = *bytes;
        let kind = Kind::from_byte(kind).ok_or("a frame of unknown kind")?;
        let len = u32::from_le_bytes([len_0, len_1, len_2, len_3]);
        let (min, max) = kind.bounds();
        if len as usize > max {
            return Err("a frame that is too long");
        }
        if (len as usize) < min {
            return Err("a frame that is too short");
        }
        if side > 1 {
            return Err("a frame of a third link");
        }
        let link = LinkId { side, epoch: u16::from_le_bytes([epoch_0, epoch_1]) };
        Ok(Self { len, kind, link, word: u64::from_le_bytes(word) })
    }
}

/// Messages and bytes of a credit, as one word.
pub(crate) fn credit_word(Amount { messages, bytes }: Amount) -> u64 {
    u64::from(messages) | u64::from(bytes) << 32
}

/// The two halves of a credit's word.
pub(crate) fn credit_of(word: u64) -> Amount {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    let (messages, bytes) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
    Amount { messages, bytes }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whatever_is_accepted_survives_its_wire_form(bytes: [u8; HEADER], kind in 1u8..15) {
            let mut bytes = bytes;
            bytes[4] = kind;
            bytes[5] &= 1;
            let (mut short, mut middle) = (bytes, bytes);
            short[1..4].fill(0);
            middle[3] = 0;
            middle[2] &= 31;
            for bytes in [bytes, middle, short] {
                if let Ok(header) = Header::decode(&bytes) {
                    prop_assert_eq!(header.encode(), bytes);
                    let most = if header.kind.is_data() { PIECE_MAX } else { MESSAGE_MAX };
                    prop_assert!(header.body() <= most, "{header:?}");
                }
            }
        }

        #[test]
        fn credits_survive_their_word(messages in any::<u32>(), bytes in any::<u32>()) {
            let amount = Amount { messages, bytes };
            prop_assert_eq!(credit_of(credit_word(amount)), amount);
        }
    }

    #[test]
    fn unknown_kinds_sides_and_lengths_are_refused() {
        let link = LinkId { side: 0, epoch: 7 };
        let good = Header { len: 8, kind: Kind::Unexpected, link, word: 1 }.encode();
        assert!(Header::decode(&good).is_ok());
        for (place, value) in [(4, 0), (4, 15), (5, 2), (3, 1)] {
            let mut bad = good;
            bad[place] = value;
            assert!(Header::decode(&bad).is_err(), "byte {place} = {value}");
        }
        let empty = Header { len: 0, kind: Kind::PutData, link, word: 1 };
        assert!(Header::decode(&empty.encode()).is_err());
    }
}
