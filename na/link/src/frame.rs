//! The header of a frame, for transports whose frames stand alone (`na/ofi`, `na/verbs`). What a peer wrote in one is a claim until
//! [`crate::lanes`] has checked it.
//!
//! # Layout (little-endian)
//! | offset | size | field | meaning |
//! |---:|---:|---|---|
//! | 0 | 1 | `kind` | see [`Kind`] |
//! | 1 | 1 | `more` | 1: the message goes on in the next frame of this kind |
//! | 2 | 2 | | zero |
//! | 4 | 4 | `link` | place of the connection in the receiver's table; zero where the transport knows it otherwise |
//! | 8 | 8 | `tag` | of an expected message; else the operation's number |
//! | 16 | 8 | `taken` | frames of each lane that the sender has taken so far, modulo 2^16 |
//! | 24 | ... | | what the transport adds, then the bytes |

/// Bytes of a header.
pub const HEADER: usize = 24;
/// Kinds of frames that have credits of their own: control, expected, unexpected, transfers.
pub const LANES: usize = 4;
/// The lane of transfers, behind those of messages.
pub const TRANSFERS: usize = 3;
/// Frames of one lane that one side may send before the other has taken any.
pub const WINDOW: u16 = 64;
/// Longest message in bytes: of several frames where they are shorter.
pub const MESSAGE_MAX: usize = 16 << 10;
/// Longest control message in bytes.
pub const CONTROL_MAX: usize = 1024;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only the header counts.
    Credit = 0,
    /// A control message, or a part of one.
    Control = 1,
    /// An expected message.
    Expected = 2,
    /// An unexpected message.
    Unexpected = 3,
    /// Asks for bytes: what, from where, how many.
    Get = 4,
    /// Announces bytes: where, how many; then the first of them.
    Put = 5,
    /// Bytes of a get, from the owner, in order: the last one ends it.
    GetData = 6,
    /// Bytes of a put, from the initiator, in order.
    PutData = 7,
    /// The owner's verdict: of every put, of a get that failed or had no byte, of what was lent.
    Ended = 8,
    /// The initiator has given an operation up.
    Abort = 9,
    /// Asks the owner to write into memory that the initiator has lent.
    GetLent = 10,
    /// Asks the owner to read from it.
    PutLent = 11,
}

const KINDS: [Kind; 12] = [
    Kind::Credit,
    Kind::Control,
    Kind::Expected,
    Kind::Unexpected,
    Kind::Get,
    Kind::Put,
    Kind::GetData,
    Kind::PutData,
    Kind::Ended,
    Kind::Abort,
    Kind::GetLent,
    Kind::PutLent,
];

impl Kind {
    /// The lane whose credits it costs.
    #[must_use]
    pub fn lane(self) -> Option<usize> {
        match self {
            Self::Credit => None,
            Self::Control => Some(0),
            Self::Expected => Some(1),
            Self::Unexpected => Some(2),
            Self::Get
            | Self::Put
            | Self::GetData
            | Self::PutData
            | Self::Ended
            | Self::Abort
            | Self::GetLent
            | Self::PutLent => Some(TRANSFERS),
        }
    }
}

/// The header of a frame, without the place that it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub kind: Kind,
    /// Whether the message goes on.
    pub more: bool,
    /// Of an expected message; else the operation's number.
    pub tag: u64,
    /// Frames of each lane that the sender has taken.
    pub taken: [u16; LANES],
}

impl Header {
    /// Writes it, with the receiver's name of the connection.
    #[inline]
    pub fn encode(&self, link: u32, into: &mut [u8; HEADER]) {
        *into = [0; HEADER];
        (into[0], into[1]) = (self.kind as u8, u8::from(self.more));
        into[4..8].copy_from_slice(&link.to_le_bytes());
        into[8..16].copy_from_slice(&self.tag.to_le_bytes());
        for (place, taken) in into[16..].chunks_exact_mut(2).zip(self.taken) {
            place.copy_from_slice(&taken.to_le_bytes());
        }
    }

    /// Reads it off a frame: the name of the connection, the header, and what follows.
    #[inline]
    #[must_use]
    pub fn decode(frame: &[u8]) -> Option<(u32, Self, &[u8])> {
        let (header, content) = frame.split_first_chunk::<HEADER>()?;
        let mut reader = Reader(header);
        let [kind, more, zero, also_zero] = reader.array()?;
        let (link, tag) = (reader.u32()?, reader.u64()?);
        let mut taken = [0; LANES];
        for lane in &mut taken {
            *lane = u16::from_le_bytes(reader.array()?);
        }
        let kind = *KINDS.get(usize::from(kind))?;
        if more > 1 || zero != 0 || also_zero != 0 {
            return None;
        }
        Some((link, Self { kind, more: more == 1, tag, taken }, content))
    }
}

/// Takes numbers off a slice.
#[derive(Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// So many bytes.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    /// A number of four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// A number of eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Bytes behind their number, of two bytes.
    pub fn counted(&mut self) -> Option<&'a [u8]> {
        let len = usize::from(u16::from_le_bytes(self.array()?));
        let (first, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_their_wire_form_and_wrong_ones_are_refused() {
        let header = Header { kind: Kind::PutData, more: true, tag: 6, taken: [1, 2, 3, 65_535] };
        let mut bytes = [0xFF; HEADER];
        header.encode(9, &mut bytes);
        let frame = [&bytes[..], b"content"].concat();
        assert_eq!(Header::decode(&frame), Some((9, header, &b"content"[..])));
        assert_eq!(Header::decode(&bytes[..HEADER - 1]), None);
        for (place, wrong) in [(0, 12), (1, 2), (2, 1), (3, 1)] {
            let mut bytes = bytes;
            bytes[place] = wrong;
            assert_eq!(Header::decode(&bytes), None, "byte {place}");
        }
    }
}
