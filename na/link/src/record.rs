//! What is said on a lifeline, beside the frames: who is at its other end, and that it ends.
//!
//! # Record (little-endian): length of the rest in 4 bytes, kind in 1, then
//! | kind | | content |
//! |---:|---|---|
//! | 1 | `Hello` | the transport's [`Greeting`]; the end that connected |
//! | 2 | `Welcome` | the same; the end that accepted, which receives from now on |
//! | 3 | `Refuse` | a sentence |
//! | 4 | `Goodbye` | frames that were sent in all, 8 bytes |
//! | 5, 6 | `Ping`, `Pong` | nothing: whether the other side makes progress |
//! | 7 | `Ready` | nothing: the end that connected receives from now on, where it has to say so |
//! | 8 | `Keys` | a message of the key exchange, where there is a key: first of all, from each end |

/// Longest record.
pub const RECORD_MAX: usize = 1024;
/// Longest sentence of a refusal in bytes.
const REFUSAL_MAX: usize = 400;

/// What each side tells the other first: from a peer, claims.
pub trait Greeting: Sized {
    /// Appends its wire form, which is shorter than [`RECORD_MAX`].
    fn encode(&self, into: &mut Vec<u8>);

    /// Reads it. `None`: it is none.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

/// What is said on the lifeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record<G> {
    /// Of the end that connected.
    Hello(G),
    /// Of the end that accepted.
    Welcome(G),
    /// Why the other side is no peer.
    Refuse(String),
    /// This side has ended, after so many frames.
    Goodbye(u64),
    /// Whether the other side makes progress.
    Ping,
    /// It does.
    Pong,
    /// The end that connected receives.
    Ready,
    /// A message of the key exchange.
    Keys(Vec<u8>),
}

impl<G: Greeting> Record<G> {
    /// The wire form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
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
            Self::Ready => bytes.push(7),
            Self::Keys(message) => {
                bytes.push(8);
                bytes.extend(message);
            }
        }
        let len = u32::try_from(bytes.len() - 4).expect("a record is short");
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes
    }

    /// Takes one record off the input. `Ok(None)`: it is not all there.
    ///
    /// # Errors
    /// Something that is no record.
    pub fn take(input: &mut Vec<u8>) -> Result<Option<Self>, &'static str> {
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
            (1, greeting) => G::decode(greeting).map(Self::Hello),
            (2, greeting) => G::decode(greeting).map(Self::Welcome),
            (3, why) => {
                let why = String::from_utf8_lossy(why);
                Some(Self::Refuse(why.chars().filter(|it| !it.is_control()).collect()))
            }
            (4, count) => Some(Self::Goodbye(u64::from_le_bytes(count.try_into().ok()?))),
            (5, []) => Some(Self::Ping),
            (6, []) => Some(Self::Pong),
            (7, []) => Some(Self::Ready),
            (8, message) => Some(Self::Keys(message.to_vec())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq)]
    struct Name([u8; 3]);

    impl Greeting for Name {
        fn encode(&self, into: &mut Vec<u8>) {
            into.extend(self.0);
        }

        fn decode(bytes: &[u8]) -> Option<Self> {
            bytes.try_into().ok().map(Self)
        }
    }

    #[test]
    fn records_survive_their_wire_form_in_any_cut() {
        let records = [
            Record::Hello(Name(*b"one")),
            Record::Welcome(Name(*b"two")),
            Record::Refuse("because".into()),
            Record::Goodbye(77),
            Record::Ping,
            Record::Pong,
            Record::Ready,
            Record::Keys(vec![1, 2, 3]),
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
        let take = |mut bytes: Vec<u8>| Record::<Name>::take(&mut bytes);
        assert!(take(vec![0, 0, 0, 0, 1]).is_err());
        assert!(take(vec![0xFF, 0xFF, 0xFF, 0xFF]).is_err());
        assert!(take(vec![1, 0, 0, 0, 9]).is_err());
        let mut cut = Record::Hello(Name(*b"one")).encode();
        cut.truncate(cut.len() - 1);
        assert_eq!(take(cut.clone()), Ok(None));
        cut[0] -= 1;
        assert!(take(cut).is_err());
    }
}
