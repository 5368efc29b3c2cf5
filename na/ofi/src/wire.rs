//! What travels: frames through libfabric, and records on the lifeline. Both sides' numbers are claims until they
//! are checked here and in `link`.
//!
//! # Frame (little-endian)
//! | offset | size | field | meaning |
//! |---:|---:|---|---|
//! | 0 | 4 | `link` | place of the connection in the receiver's table |
//! | 4 | 1 | `kind` | see [`Kind`] |
//! | 5 | 1 | `more` | 1: the message goes on in the next frame of this kind |
//! | 6 | 2 | | zero |
//! | 8 | 8 | `key` | random; the receiver gave it to this sender, and to nobody else |
//! | 16 | 8 | `tag` | of an expected message; else the operation's number |
//! | 24 | 8 | `taken` | frames of each lane that the sender has taken so far, modulo 2^16 |
//! | 32 | ... | | the bytes |
//!
//! # Record (little-endian): length of the rest in 4 bytes, kind in 1, then
//! | kind | | content |
//! |---:|---|---|
//! | 1 | `Hello` | a [`Greeting`]; the side that connected |
//! | 2 | `Welcome` | a [`Greeting`]; the side that accepted |
//! | 3 | `Refuse` | a sentence |
//! | 4 | `Goodbye` | frames that were sent through libfabric in all, 8 bytes |
//! | 5, 6 | `Ping`, `Pong` | nothing: whether the other side makes progress |

use crate::fabric::Fault;

/// Bytes before a frame's content.
pub(crate) const HEADER: usize = 32;
/// Kinds of frames that have credits of their own.
pub(crate) const LANES: usize = 4;
/// Frames of one lane that one side may send before the other has taken any.
pub(crate) const WINDOW: u16 = 64;
/// Longest record.
pub(crate) const RECORD_MAX: usize = 1024;
const MAGIC: [u8; 8] = *b"hg-ofi\x00\x03";

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
    pub(crate) link: u32,
    pub(crate) kind: Kind,
    pub(crate) more: bool,
    pub(crate) key: u64,
    pub(crate) tag: u64,
    pub(crate) taken: [u16; LANES],
}

impl Header {
    /// Writes it.
    pub(crate) fn encode(&self, into: &mut [u8; HEADER]) {
        into[..4].copy_from_slice(&self.link.to_le_bytes());
        into[4] = self.kind as u8;
        into[5] = u8::from(self.more);
        into[6..8].fill(0);
        into[8..16].copy_from_slice(&self.key.to_le_bytes());
        into[16..24].copy_from_slice(&self.tag.to_le_bytes());
        for (place, taken) in into[24..].chunks_exact_mut(2).zip(self.taken) {
            place.copy_from_slice(&taken.to_le_bytes());
        }
    }

    /// Reads it off a frame.
    pub(crate) fn decode(frame: &[u8]) -> Option<(Self, &[u8])> {
        let (header, content) = frame.split_first_chunk::<HEADER>()?;
        let mut reader = Reader(header);
        let link = reader.u32()?;
        let [kind, more, zero, also_zero] = reader.array()?;
        let (key, tag) = (reader.u64()?, reader.u64()?);
        let mut taken = [0; LANES];
        for lane in &mut taken {
            *lane = u16::from_le_bytes(reader.array()?);
        }
        let kind = *KINDS.get(usize::from(kind))?;
        if more > 1 || zero != 0 || also_zero != 0 {
            return None;
        }
        Some((Self { link, kind, more: more == 1, key, tag, taken }, content))
    }
}

/// What each side tells the other first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// Place of this connection in the greeter's table.
    pub(crate) link: u32,
    /// What frames for it must carry.
    pub(crate) key: u64,
    /// Longest frame that it takes.
    pub(crate) frame: u32,
    /// Whether it moves memory from and to what others lend it ([`Kind::GetLent`]).
    pub(crate) one_sided: bool,
    /// Its provider, and how it is used; both sides need the same.
    pub(crate) provider: String,
    /// The address of its endpoint.
    pub(crate) name: Vec<u8>,
}

impl Greeting {
    fn encode(&self, into: &mut Vec<u8>) {
        into.extend(MAGIC);
        into.extend(self.link.to_le_bytes());
        into.extend(self.key.to_le_bytes());
        into.extend(self.frame.to_le_bytes());
        into.extend(u32::from(self.one_sided).to_le_bytes());
        for text in [self.provider.as_bytes(), &self.name] {
            let len = u16::try_from(text.len()).expect("names are short");
            into.extend(len.to_le_bytes());
            into.extend(text);
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.array::<8>()? != MAGIC {
            return None;
        }
        let (link, key, frame) = (reader.u32()?, reader.u64()?, reader.u32()?);
        let one_sided = reader.u32()? & 1 != 0;
        let provider = String::from_utf8(reader.counted()?.to_vec()).ok()?;
        let name = reader.counted()?.to_vec();
        reader.0.is_empty().then_some(Self { link, key, frame, one_sided, provider, name })
    }
}

/// What is said on the lifeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record {
    Hello(Greeting),
    Welcome(Greeting),
    Refuse(String),
    Goodbye(u64),
    Ping,
    Pong,
}

impl Record {
    /// The wire form.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        match self {
            Self::Hello(greeting) => {
                bytes.push(1);
                greeting.encode(&mut bytes);
            }
            Self::Welcome(greeting) => {
                bytes.push(2);
                greeting.encode(&mut bytes);
            }
            Self::Refuse(why) => {
                bytes.push(3);
                bytes.extend(why.bytes().take(REFUSAL_MAX));
            }
            Self::Goodbye(count) => {
                bytes.push(4);
                bytes.extend(count.to_le_bytes());
            }
            Self::Ping => bytes.push(5),
            Self::Pong => bytes.push(6),
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
            (1, greeting) => Greeting::decode(greeting).map(Self::Hello),
            (2, greeting) => Greeting::decode(greeting).map(Self::Welcome),
            (3, why) => {
                let why = String::from_utf8_lossy(why);
                Some(Self::Refuse(why.chars().filter(|it| !it.is_control()).collect()))
            }
            (4, count) => Some(Self::Goodbye(u64::from_le_bytes(count.try_into().ok()?))),
            (5, []) => Some(Self::Ping),
            (6, []) => Some(Self::Pong),
            _ => None,
        }
    }
}

/// Longest sentence of a refusal in bytes.
const REFUSAL_MAX: usize = 400;

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

    fn counted(&mut self) -> Option<&'a [u8]> {
        let len = usize::from(u16::from_le_bytes(self.array()?));
        let (first, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(first)
    }
}

/// A peer's provider fails in ways that are worth a word.
pub(crate) fn broken_way(fault: Fault) -> String {
    format!("libfabric: {fault}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting() -> Greeting {
        Greeting {
            link: 7,
            key: 1 << 63,
            frame: 4096,
            one_sided: true,
            provider: "shm".into(),
            name: vec![1, 2, 3],
        }
    }

    #[test]
    fn headers_survive_their_wire_form_and_wrong_ones_are_refused() {
        let header = Header {
            link: 9,
            kind: Kind::PutData,
            more: true,
            key: 5,
            tag: 6,
            taken: [1, 2, 3, 65_535],
        };
        let mut bytes = [0xFF; HEADER];
        header.encode(&mut bytes);
        let frame = [&bytes[..], b"content"].concat();
        assert_eq!(Header::decode(&frame), Some((header, &b"content"[..])));
        assert_eq!(Header::decode(&bytes[..31]), None);
        for (place, wrong) in [(4, 12), (5, 2), (6, 1), (7, 1)] {
            let mut bytes = bytes;
            bytes[place] = wrong;
            assert_eq!(Header::decode(&bytes), None, "byte {place}");
        }
    }

    #[test]
    fn records_survive_their_wire_form_in_any_cut() {
        let records = [
            Record::Hello(greeting()),
            Record::Welcome(greeting()),
            Record::Refuse("because".into()),
            Record::Goodbye(77),
            Record::Ping,
            Record::Pong,
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
        let mut cut = Record::Hello(greeting()).encode();
        cut.truncate(cut.len() - 1);
        assert_eq!(Record::take(&mut cut.clone()), Ok(None));
        cut[0] -= 1;
        assert!(Record::take(&mut cut).is_err());
    }
}
