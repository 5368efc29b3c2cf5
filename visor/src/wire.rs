//! What travels between applications and daemons, and between daemons: one frame a message.
//!
//! # Layout (little-endian)
//! | offset | size | field | meaning |
//! |---:|---:|---|---|
//! | 0 | 1 | `kind` | [`Kind`] |
//! | 1 | 1 | `lane` | of `Data`: the applications' business |
//! | 2 | 2 | 0 | |
//! | 4 | 4 | `id` | of the connection on this leg; [`YOURS`]: the receiver has chosen it |
//! | 8 | 8 | `word` | by kind |
//! | 16 | ... | body | by kind; of `Data`, as long as was agreed for its connection ([`FRAME_MIN`]) |

use hg_na::{GoneReason, Identity, Message};

/// Of this wire.
pub(crate) const VERSION: u32 = 4;
/// Bytes of a header.
pub(crate) const HEADER_LEN: usize = 16;
/// Longest frame in bytes: a piece of a put or a get, of 64 KiB. What applications send as messages is shorter.
pub(crate) const FRAME_MAX: usize = (64 << 10) + HEADER_LEN;
/// The least that every network takes and every connection may use: the longest message of an application.
pub(crate) const FRAME_MIN: usize = 16 << 10;
/// What `Data` frames of one connection and direction that were not taken yet may [cost].
pub(crate) const WINDOW: u32 = 512 << 10;
/// Bytes that a frame which waits needs beside its own: its place in a queue, which has room for twice as many.
pub(crate) const FRAME_COST: u32 = 176;
/// A word that gives bytes back gives so many at least.
pub(crate) const RETURN_MIN: u32 = WINDOW / 4;
/// Marks an id that the receiver of the frame has chosen.
pub(crate) const YOURS: u32 = 1 << 31;
/// Longest sentence in bytes; what is longer is cut.
const SENTENCE_MAX: usize = 240;

const _: () = assert!(RETURN_MIN >= cost(FRAME_MAX), "one frame more than is owed always fits");

/// What a frame of this length counts, in bytes of memory of whoever keeps it.
#[expect(clippy::cast_possible_truncation, reason = "a frame that is longer is taken by nobody")]
pub(crate) const fn cost(len: usize) -> u32 {
    (if len < FRAME_MAX { len } else { FRAME_MAX }) as u32 + FRAME_COST
}

/// How long frames of a connection may be, as the word of `Open`, `Incoming` and `Opened` says it.
///
/// # Errors
/// What its sender has done wrong.
pub(crate) fn frame_len(word: u64, most: usize) -> Result<usize, &'static str> {
    let len = usize::try_from(word).ok().filter(|len| (FRAME_MIN..=most).contains(len));
    len.ok_or("a length of frames that was not offered")
}

/// An enum whose values are numbers on the wire, and are read from them.
macro_rules! numbered {
    ($(#[$about:meta])* $name:ident { $($(#[$each:meta])* $value:ident $(= $number:literal)?,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum $name { $($(#[$each])* $value $(= $number)?,)* }

        impl $name {
            pub(crate) fn of(number: u8) -> Option<Self> {
                [$(Self::$value),*].into_iter().find(|known| *known as u8 == number)
            }
        }
    };
}
pub(crate) use numbered;

numbered! {
    /// What a frame is.
    Kind {
        /// First frame of whoever comes.
        Hello = 1,
        /// The application is known by the address in the body.
        Welcome,
        /// It is not: [`Refusal`] in the word, a sentence in the body.
        Refused,
        /// Asks for a connection.
        Open,
        /// Somebody has opened a connection to the receiver.
        Incoming,
        /// The connection that was asked for is there.
        Opened,
        /// What an application sends to the other.
        Data,
        /// `Data` that costs so many bytes was taken.
        Window,
        /// The last frame of a connection: why.
        Close,
        /// Asks for a report.
        Status,
        /// Asks for an end in good order, in so many milliseconds at most; 0: in its own time.
        Drain,
        /// Text for whoever has asked; a word of 1: it is not as he wanted it.
        Report,
    }
}

/// The first bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) lane: u8,
    pub(crate) id: u32,
    pub(crate) word: u64,
}

impl Header {
    pub(crate) fn new(kind: Kind, id: u32, word: u64) -> Self {
        Self { kind, lane: 0, id, word }
    }

    /// The wire form.
    pub(crate) fn encode(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = self.kind as u8;
        bytes[1] = self.lane;
        bytes[4..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..].copy_from_slice(&self.word.to_le_bytes());
        bytes
    }

    /// Reads a frame; gives its body, too.
    ///
    /// # Errors
    /// What its sender has done wrong.
    pub(crate) fn decode(frame: &[u8]) -> Result<(Self, &[u8]), &'static str> {
        if frame.len() > FRAME_MAX {
            return Err("a frame that is too long");
        }
        let (head, body) = frame.split_first_chunk::<HEADER_LEN>().ok_or("a frame cut short")?;
        let [kind, lane, 0, 0, i0, i1, i2, i3, word @ ..] = *head else {
            return Err("a frame with bytes that mean nothing");
        };
        let kind = Kind::of(kind).ok_or("a frame of an unknown kind")?;
        if kind != Kind::Data && lane != 0 {
            return Err("a lane where there is none");
        }
        let id = u32::from_le_bytes([i0, i1, i2, i3]);
        Ok((Self { kind, lane, id, word: u64::from_le_bytes(word) }, body))
    }

    /// A frame in memory of its own.
    pub(crate) fn frame(self, body: &[u8]) -> Message {
        let mut message = Message::copied(&[0; HEADER_LEN]);
        if HEADER_LEN + body.len() > hg_na::INLINE_MAX {
            message = Message::from([&self.encode()[..], body].concat());
        } else {
            message.make_inline(HEADER_LEN + body.len())[HEADER_LEN..].copy_from_slice(body);
            message.as_mut_slice()[..HEADER_LEN].copy_from_slice(&self.encode());
        }
        message
    }
}

/// Gives a frame another id.
#[cfg(any(feature = "daemon", test))]
pub(crate) fn rename(frame: &mut Message, id: u32) {
    if let Some(place) = frame.as_mut_slice().get_mut(4..8) {
        place.copy_from_slice(&id.to_le_bytes());
    }
}

/// The next id that its chooser has not given to a connection.
pub(crate) fn next_id(last: u32, is_taken: impl Fn(u32) -> bool) -> u32 {
    let mut id = last;
    loop {
        id = (id + 1) & !YOURS;
        if !is_taken(id) {
            return id;
        }
    }
}

/// Whoever says hello.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello<'a> {
    /// Whether others may open connections to it.
    pub(crate) listens: bool,
    /// By what name; a daemon has none.
    pub(crate) name: &'a str,
}

impl<'a> Hello<'a> {
    pub(crate) fn frame(&self) -> Message {
        let mut body = VERSION.to_le_bytes().to_vec();
        body.push(u8::from(self.listens));
        body.extend(self.name.as_bytes());
        Header::new(Kind::Hello, 0, 0).frame(&body)
    }

    /// # Errors
    /// What its sender has done wrong.
    #[cfg(any(feature = "daemon", test))]
    pub(crate) fn decode(body: &'a [u8]) -> Result<Self, &'static str> {
        let (version, rest) = body.split_first_chunk::<4>().ok_or("a greeting cut short")?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err("a greeting of another version");
        }
        let (listens, name) = match rest.split_first() {
            Some((listens @ (0 | 1), name)) => (*listens == 1, name),
            _ => return Err("a greeting cut short"),
        };
        let name = std::str::from_utf8(name).map_err(|_| "a greeting that is no text")?;
        Ok(Self { listens, name })
    }
}

/// Why an application is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Somebody else has the name.
    NameInUse = 1,
    /// The sentence says.
    Other = 2,
}

impl Refusal {
    #[cfg(any(feature = "daemon", test))]
    pub(crate) fn frame(self, sentence: &str) -> Message {
        Header::new(Kind::Refused, 0, self as u64).frame(cut(sentence).as_bytes())
    }

    pub(crate) fn of(word: u64) -> Self {
        if word == Self::NameInUse as u64 { Self::NameInUse } else { Self::Other }
    }
}

/// Who an application is, as its daemon knows from the kernel: a byte of flags, user, process.
#[cfg(any(feature = "daemon", test))]
pub(crate) fn encode_identity(identity: &Identity) -> [u8; 9] {
    let mut bytes = [0; 9];
    bytes[0] = u8::from(identity.uid.is_some()) | u8::from(identity.pid.is_some()) << 1;
    bytes[1..5].copy_from_slice(&identity.uid.unwrap_or_default().to_le_bytes());
    bytes[5..].copy_from_slice(&identity.pid.unwrap_or_default().to_le_bytes());
    bytes
}

/// Reads it.
pub(crate) fn decode_identity(body: &[u8]) -> Option<Identity> {
    let [flags @ 0..4, u0, u1, u2, u3, p0, p1, p2, p3] = *body else { return None };
    let mut identity = Identity::default();
    identity.uid = (flags & 1 != 0).then_some(u32::from_le_bytes([u0, u1, u2, u3]));
    identity.pid = (flags & 2 != 0).then_some(u32::from_le_bytes([p0, p1, p2, p3]));
    Some(identity)
}

/// A `Close` with its reason.
pub(crate) fn close(id: u32, reason: &GoneReason) -> Message {
    let (code, sentence) = match reason {
        GoneReason::Exited => (1, ""),
        GoneReason::Closed => (2, ""),
        GoneReason::Unreachable(why) => (3, &**why),
        GoneReason::Refused(why) => (4, &**why),
        GoneReason::Exhausted(why) => (5, &**why),
        GoneReason::Misbehaved(why) => (6, &**why),
        GoneReason::TimedOut => (7, ""),
        _ => (2, ""),
    };
    Header::new(Kind::Close, id, code).frame(cut(sentence).as_bytes())
}

/// Reads the reason of a `Close`: what it says is shown, and nothing else is done with it.
pub(crate) fn reason(word: u64, body: &[u8]) -> GoneReason {
    let sentence = || std::sync::Arc::from(cut(&String::from_utf8_lossy(body)));
    match word {
        1 => GoneReason::Exited,
        3 => GoneReason::Unreachable(sentence()),
        4 => GoneReason::Refused(sentence()),
        5 => GoneReason::Exhausted(sentence()),
        6 => GoneReason::Misbehaved(sentence()),
        7 => GoneReason::TimedOut,
        _ => GoneReason::Closed,
    }
}

/// As much of a sentence as is sent.
fn cut(sentence: &str) -> &str {
    &sentence[..sentence.floor_char_boundary(SENTENCE_MAX)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reasons_and_greetings_survive_their_wire_form() {
        for reason in [
            GoneReason::Exited,
            GoneReason::Closed,
            GoneReason::Unreachable("x".into()),
            GoneReason::Refused("no".into()),
            GoneReason::Exhausted("full".into()),
            GoneReason::Misbehaved("bad".into()),
            GoneReason::TimedOut,
        ] {
            let frame = close(7, &reason);
            let (header, body) = Header::decode(frame.as_slice()).unwrap();
            assert_eq!((header.kind, header.id), (Kind::Close, 7));
            assert_eq!(super::reason(header.word, body), reason);
        }
        let hello = Hello { listens: true, name: "a/0" };
        let frame = hello.frame();
        let (_, body) = Header::decode(frame.as_slice()).unwrap();
        assert_eq!(Hello::decode(body), Ok(hello));
        let identity = Identity::process(7, 1000);
        assert_eq!(decode_identity(&encode_identity(&identity)), Some(identity));
    }

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

        #[test]
        fn a_renamed_frame_differs_in_its_id_alone(body in proptest::collection::vec(any::<u8>(), 0..80)) {
            let header = Header { kind: Kind::Data, lane: 3, id: 1, word: 9 };
            let mut frame = header.frame(&body);
            rename(&mut frame, YOURS | 5);
            prop_assert_eq!(
                Header::decode(frame.as_slice()).unwrap(),
                (Header { id: YOURS | 5, ..header }, &body[..])
            );
        }
    }
}
