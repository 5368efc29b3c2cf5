//! What travels: frames through queue pairs, and records on the lifeline. Both sides' numbers are claims until they are checked here and in
//! [`crate::way`].
//!
//! # Frame (little-endian)
//! | offset | size | field | meaning |
//! |---:|---:|---|---|
//! | 0 | 1 | `kind` | see [`Kind`] |
//! | 1 | 1 | `more` | 1: the message goes on in the next frame of this kind |
//! | 2 | 6 | | zero |
//! | 8 | 8 | `tag` | of an expected message; else the operation's number |
//! | 16 | 8 | `taken` | frames of each lane that the sender has taken so far, modulo 2^16 |
//! | 24 | ... | | the bytes |
//!
//! # Record (little-endian): length of the rest in 4 bytes, kind in 1, then
//! | kind | | content |
//! |---:|---|---|
//! | 1 | `Hello` | a [`Side`]; the end that connected |
//! | 2 | `Welcome` | a [`Side`]; the end that accepted, which receives from now on |
//! | 3 | `Refuse` | a sentence |
//! | 4 | `Goodbye` | frames that were sent in all, 8 bytes |
//! | 5 | `Ready` | nothing: the end that connected receives from now on |

use crate::card::Side;

/// Bytes before a frame's content.
pub(crate) const HEADER: usize = 24;
/// Kinds of frames that have credits of their own.
pub(crate) const LANES: usize = 4;
/// Frames of one lane that one side may send before the other has taken any.
pub(crate) const WINDOW: u16 = 64;
/// Longest record.
pub(crate) const RECORD_MAX: usize = 1024;
const MAGIC: [u8; 8] = *b"hg-vrb\x00\x01";

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
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
    /// Announces bytes: where, how many.
    Put = 5,
    /// Bytes of a get, from the owner, in order.
    GetData = 6,
    /// Bytes of a put, from the initiator, in order.
    PutData = 7,
    /// How a put ended, or why a get failed.
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
    pub(crate) fn lane(self) -> Option<usize> {
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
            | Self::PutLent => Some(3),
        }
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) more: bool,
    pub(crate) tag: u64,
    pub(crate) taken: [u16; LANES],
}

impl Header {
    /// Writes it at the beginning of a frame.
    pub(crate) fn encode(&self, into: &mut [u8; HEADER]) {
        *into = [0; HEADER];
        (into[0], into[1]) = (self.kind as u8, u8::from(self.more));
        into[8..16].copy_from_slice(&self.tag.to_le_bytes());
        for (place, taken) in into[16..].chunks_exact_mut(2).zip(self.taken) {
            place.copy_from_slice(&taken.to_le_bytes());
        }
    }

    /// Reads it off a frame.
    pub(crate) fn decode(frame: &[u8]) -> Option<(Self, &[u8])> {
        let (header, content) = frame.split_first_chunk::<HEADER>()?;
        let mut reader = Reader(header);
        let [kind, more, zeros @ ..] = reader.array::<8>()?;
        let tag = reader.u64()?;
        let mut taken = [0; LANES];
        for lane in &mut taken {
            *lane = u16::from_le_bytes(reader.array()?);
        }
        let kind = *KINDS.get(usize::from(kind))?;
        if more > 1 || zeros != [0; 6] {
            return None;
        }
        Some((Self { kind, more: more == 1, tag, taken }, content))
    }
}

/// What is said on the lifeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    Hello(Side),
    Welcome(Side),
    Refuse(String),
    Goodbye(u64),
    Ready,
}

impl Record {
    /// The wire form.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        match self {
            Self::Hello(side) => {
                bytes.push(1);
                encode_side(side, &mut bytes);
            }
            Self::Welcome(side) => {
                bytes.push(2);
                encode_side(side, &mut bytes);
            }
            Self::Refuse(why) => {
                bytes.push(3);
                bytes.extend(why.bytes().take(REFUSAL_MAX));
            }
            Self::Goodbye(count) => {
                bytes.push(4);
                bytes.extend(count.to_le_bytes());
            }
            Self::Ready => bytes.push(5),
        }
        let len = u32::try_from(bytes.len() - 4).expect("a record is short");
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes
    }

    /// Takes one record off the input. `Ok(None)`: it is not all there.
    ///
    /// # Errors
    /// Something that is no record.
    pub(crate) fn take(input: &mut Vec<u8>) -> Result<Option<Self>, &'static str> {
        let Some(len) = input.first_chunk::<4>() else { return Ok(None) };
        let len = usize::try_from(u32::from_le_bytes(*len)).unwrap_or(usize::MAX);
        if len == 0 || len > RECORD_MAX {
            return Err("a record of an impossible length");
        }
        let Some(record) = input.get(4..4 + len) else { return Ok(None) };
        let record = Self::decode(record).ok_or("a record that cannot be read")?;
        input.drain(..4 + len);
        Ok(Some(record))
    }

    fn decode(record: &[u8]) -> Option<Self> {
        let (kind, rest) = record.split_first()?;
        match (kind, rest) {
            (1, side) => decode_side(side).map(Self::Hello),
            (2, side) => decode_side(side).map(Self::Welcome),
            (3, why) => {
                let why = String::from_utf8_lossy(why);
                Some(Self::Refuse(why.chars().filter(|it| !it.is_control()).collect()))
            }
            (4, count) => Some(Self::Goodbye(u64::from_le_bytes(count.try_into().ok()?))),
            (5, []) => Some(Self::Ready),
            _ => None,
        }
    }
}

/// Longest sentence of a refusal in bytes.
const REFUSAL_MAX: usize = 400;

/// Magic (8), queue pair (4), first packet (4), GID (16), LID (2), longest packet (1), reads (1).
fn encode_side(side: &Side, into: &mut Vec<u8>) {
    into.extend(MAGIC);
    into.extend(side.number.to_le_bytes());
    into.extend(side.first_packet.to_le_bytes());
    into.extend(side.gid);
    into.extend(side.lid.to_le_bytes());
    into.extend([side.mtu, side.reads]);
}

fn decode_side(bytes: &[u8]) -> Option<Side> {
    let mut reader = Reader(bytes);
    if reader.array::<8>()? != MAGIC {
        return None;
    }
    let (number, first_packet, gid) = (reader.u32()?, reader.u32()?, reader.array()?);
    let lid = u16::from_le_bytes(reader.array()?);
    let [mtu, reads] = reader.array()?;
    // Codes of 256 to 4,096 bytes.
    let is_possible = reader.0.is_empty() && (1..=5).contains(&mtu);
    is_possible.then_some(Side { number, first_packet, gid, lid, mtu, reads })
}

/// Takes numbers off a slice.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side() -> Side {
        Side { number: 17, first_packet: 5, gid: [7; 16], lid: 3, mtu: 5, reads: 16 }
    }

    #[test]
    fn headers_survive_their_wire_form_and_wrong_ones_are_refused() {
        let header = Header { kind: Kind::PutData, more: true, tag: 6, taken: [1, 2, 3, 65_535] };
        let mut bytes = [0xFF; HEADER];
        header.encode(&mut bytes);
        let frame = [&bytes[..], b"content"].concat();
        assert_eq!(Header::decode(&frame), Some((header, &b"content"[..])));
        assert_eq!(Header::decode(&bytes[..HEADER - 1]), None);
        for (place, wrong) in [(0, 12), (1, 2), (2, 1), (7, 1)] {
            let mut bytes = bytes;
            bytes[place] = wrong;
            assert_eq!(Header::decode(&bytes), None, "byte {place}");
        }
    }

    #[test]
    fn records_survive_their_wire_form_in_any_cut() {
        let records = [
            Record::Hello(side()),
            Record::Welcome(side()),
            Record::Refuse("because".into()),
            Record::Goodbye(77),
            Record::Ready,
        ];
        let all: Vec<u8> = records.iter().flat_map(Record::encode).collect();
        let (mut input, mut seen) = (Vec::new(), Vec::new());
        for byte in all {
            input.push(byte);
            seen.extend(Record::take(&mut input).unwrap());
        }
        assert_eq!(seen, records);
        assert!(input.is_empty());
    }

    #[test]
    fn wrong_records_are_refused_before_they_are_read() {
        assert!(Record::take(&mut vec![0, 0, 0, 0, 1]).is_err());
        assert!(Record::take(&mut vec![0xFF, 0xFF, 0xFF, 0xFF]).is_err());
        assert!(Record::take(&mut vec![1, 0, 0, 0, 9]).is_err());
        let mut cut = Record::Hello(side()).encode();
        cut.truncate(cut.len() - 1);
        assert_eq!(Record::take(&mut cut.clone()), Ok(None));
        cut[0] -= 1;
        assert!(Record::take(&mut cut).is_err());
        assert!(Record::take(&mut Record::Hello(Side { mtu: 6, ..side() }).encode()).is_err());
    }
}
