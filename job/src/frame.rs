//! What ranks and the hub say to one another.
//!
//! # Layout
//! A frame is `u32 length`, then that many bytes: `u8 kind` and the fields in order, little-endian. A text
//! or a list of bytes is `u32 length` and its bytes, a list of ranks `u32 count` and as many `u32`.
//!
//! | kind | up (rank or hub to the hub above) | fields                               |
//! |-----:|-----------------------------------|--------------------------------------|
//! |    1 | `Hello`                           | magic, token, rank, size, host       |
//! |    2 | `Gather`                          | channel, `u64` number, `u8` what, values |
//! |    3 | `Abort`                           | `u8` code, why                       |
//! |    4 | `Bye`                             |                                      |
//! |    5 | `Who`                             | channel, `u64` number                |
//!
//! Of a hub only, which speaks for all ranks below it:
//!
//! | kind | up        | fields                                                       |
//! |-----:|-----------|--------------------------------------------------------------|
//! |    6 | `Hosts`   | `u32` count, and as many hosts, each with the number of ranks |
//! |    7 | `Broken`  | `u8` kind, then its fields                                   |
//! |    8 | `Left`    | rank                                                         |
//! |    9 | `Missing` | channel, `u64` number, ranks                                 |
//!
//! | kind | down (hub to rank) | fields                                      |
//! |-----:|--------------------|---------------------------------------------|
//! |    1 | `Welcome`          | node of each rank: `u32` count, and as many times a node and a number of ranks |
//! |    2 | `Refused`          | why                                         |
//! |    3 | `Gathered`         | channel, `u64` number, values               |
//! |    4 | `Broken`           | `u8` kind, then its fields                  |
//! |    5 | `Missing`          | channel, `u64` number, ranks                |
//! |    6 | `Who`              | channel, `u64` number; to a hub only        |
//!
//! Both ways, 10 `Post`: channel, `u64` number, `u32` count, and as many letters: from, `u32` count of runs (first, step, count),
//! value. And 11 `Taken`, without fields: a `Post` has been passed on, and another one may come. A rank says it of none.
//!
//! What was read is checked here for its form; `hub::state` and `link` check what it means.

mod bytes;

use std::sync::Arc;

use self::bytes::{Reader, Writer};
use crate::tree::Run;

/// The longest value of an all-gather.
pub const VALUE_MAX: usize = 16 << 20;
/// The longest name of a channel, in bytes.
pub const CHANNEL_MAX: usize = 128;
/// The longest frame before its sender has said who it is.
pub(crate) const HELLO_MAX: usize = 1024;
/// Bytes of the length in front of each frame.
pub(crate) const FRAME_HEAD: usize = 4;
/// The longest frame of a rank.
pub(crate) const UP_MAX: usize = VALUE_MAX + 1024;
/// Bytes of a [`Post`] with one letter: kind, channel, number, and count, sender, count of runs and length of the value; of a run.
const LETTER_HEAD: usize = 1 + (4 + CHANNEL_MAX) + 8 + 4 * 4;
const RUN_LEN: usize = 12;
const _: () = assert!(VALUE_MAX + LETTER_HEAD + RUN_LEN <= UP_MAX);
/// The longest frame of the hub.
pub(crate) const DOWN_MAX: usize = 1 << 30;
/// The longest reason of an abort; more is cut off.
pub(crate) const WHY_MAX: usize = 1024;

/// Opens a `Hello`: this protocol in its third version.
const MAGIC: u32 = u32::from_le_bytes(*b"hgJ\x03");

/// What a collective call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Gather,
    Barrier,
    /// Everybody gets the value of rank 0.
    Share,
}

impl What {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gather => "all-gather",
            Self::Barrier => "barrier",
            Self::Share => "share",
        }
    }
}

/// The first frame of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    pub token: Vec<u8>,
    pub rank: u32,
    pub size: u32,
    /// What decides whether two ranks share a node: equal or not, nothing else.
    pub host: String,
}

/// A value for some ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Letter {
    pub from: u32,
    pub to: Vec<Run>,
    pub value: Arc<[u8]>,
}

impl Letter {
    /// Bytes of it in a frame.
    pub(crate) fn len(&self) -> usize {
        letter_len(self.to.len(), self.value.len())
    }
}

/// Bytes of a letter with so many runs, whose value has so many.
pub(crate) fn letter_len(runs: usize, value: usize) -> usize {
    3 * 4 + RUN_LEN * runs + value
}

/// Values for some ranks, of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Post {
    pub channel: String,
    pub number: u64,
    pub letters: Vec<Letter>,
}

/// From a rank, or a hub, to the hub above.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Up {
    Hello(Hello),
    /// Of an all-gather a value for each rank, of what rank 0 shares its own.
    Gather {
        channel: String,
        number: u64,
        what: What,
        values: Vec<Vec<u8>>,
    },
    Abort {
        code: u8,
        why: String,
    },
    Bye,
    Who {
        channel: String,
        number: u64,
    },
    Hosts(Vec<(String, u32)>),
    Broken(Broken),
    Left {
        rank: u32,
    },
    Missing {
        channel: String,
        number: u64,
        ranks: Vec<u32>,
    },
    Post(Post),
    Taken,
}

/// From the hub to a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Down {
    Welcome { nodes: Vec<u32> },
    Refused { why: String },
    Gathered { channel: String, number: u64, values: Vec<Vec<u8>> },
    Broken(Broken),
    Missing { channel: String, number: u64, ranks: Vec<u32> },
    Who { channel: String, number: u64 },
    Post(Post),
    Taken,
}

/// Why the ranks cannot work together any more. The first reason stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Broken {
    /// These did not join in time.
    NeverCame { ranks: Vec<u32> },
    /// It ended before it joined.
    Early { rank: u32 },
    /// It ended, or was cut off, without a `Bye`.
    Lost { rank: u32 },
    /// It said `Bye`, and others go on.
    Left { rank: u32 },
    /// It wants everybody to end.
    Aborted { by: u32, code: u8, why: String },
    /// Ranks called different things.
    Disagree { why: String },
}

/// Bytes that are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("bytes that are no message of a job")]
pub(crate) struct Garbage;

impl Up {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        match self {
            Self::Hello(hello) => {
                out.u8(1).u32(MAGIC).bytes(&hello.token).u32(hello.rank).u32(hello.size);
                out.bytes(hello.host.as_bytes());
            }
            Self::Gather { channel, number, what, values } => {
                let what = match what {
                    What::Gather => 0,
                    What::Barrier => 1,
                    What::Share => 2,
                };
                out.u8(2).call(channel, *number).u8(what).values(values);
            }
            Self::Abort { code, why } => {
                out.u8(3).u8(*code).bytes(why.as_bytes());
            }
            Self::Bye => {
                out.u8(4);
            }
            Self::Who { channel, number } => {
                out.u8(5).call(channel, *number);
            }
            Self::Hosts(hosts) => {
                out.u8(6).length(hosts.len());
                for (host, count) in hosts {
                    out.bytes(host.as_bytes()).u32(*count);
                }
            }
            Self::Broken(broken) => broken.encode(out.u8(7)),
            Self::Left { rank } => {
                out.u8(8).u32(*rank);
            }
            Self::Missing { channel, number, ranks } => {
                out.u8(9).call(channel, *number).ranks(ranks);
            }
            Self::Post(post) => post.encode(&mut out),
            Self::Taken => {
                out.u8(TAKEN);
            }
        }
        out.finish()
    }

    /// The frame without its length.
    pub(crate) fn decode(body: &[u8]) -> Result<Self, Garbage> {
        let mut body = Reader(body);
        let up = match body.u8()? {
            1 if body.u32()? == MAGIC => Self::Hello(Hello {
                token: body.bytes()?.to_vec(),
                rank: body.u32()?,
                size: body.u32()?,
                host: body.text()?,
            }),
            2 => Self::Gather {
                channel: body.channel()?,
                number: body.u64()?,
                what: match body.u8()? {
                    0 => What::Gather,
                    1 => What::Barrier,
                    2 => What::Share,
                    _ => return Err(Garbage),
                },
                values: body.list(|body| Ok(body.bytes()?.to_vec()))?,
            },
            3 => Self::Abort { code: body.u8()?, why: body.text()? },
            4 => Self::Bye,
            5 => Self::Who { channel: body.channel()?, number: body.u64()? },
            6 => Self::Hosts(body.list(|body| Ok((body.text()?, body.u32()?)))?),
            7 => Self::Broken(Broken::decode(&mut body)?),
            8 => Self::Left { rank: body.u32()? },
            9 => Self::Missing {
                channel: body.channel()?,
                number: body.u64()?,
                ranks: body.ranks()?,
            },
            POST => Self::Post(Post::decode(&mut body)?),
            TAKEN => Self::Taken,
            _ => return Err(Garbage),
        };
        body.end(up)
    }
}

impl Down {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        match self {
            Self::Welcome { nodes } => {
                let runs = nodes.chunk_by(|one, next| one == next);
                out.u8(1).length(runs.clone().count());
                for run in runs {
                    out.u32(run[0]).length(run.len());
                }
            }
            Self::Refused { why } => {
                out.u8(2).bytes(why.as_bytes());
            }
            Self::Gathered { channel, number, values } => {
                out.u8(3).call(channel, *number).values(values);
            }
            Self::Broken(broken) => broken.encode(out.u8(4)),
            Self::Missing { channel, number, ranks } => {
                out.u8(5).call(channel, *number).ranks(ranks);
            }
            Self::Who { channel, number } => {
                out.u8(6).call(channel, *number);
            }
            Self::Post(post) => post.encode(&mut out),
            Self::Taken => {
                out.u8(TAKEN);
            }
        }
        out.finish()
    }

    /// The frame without its length.
    pub(crate) fn decode(body: &[u8]) -> Result<Self, Garbage> {
        let mut body = Reader(body);
        let down = match body.u8()? {
            1 => Self::Welcome { nodes: body.nodes()? },
            2 => Self::Refused { why: body.text()? },
            3 => Self::Gathered {
                channel: body.channel()?,
                number: body.u64()?,
                values: body.list(|body| Ok(body.bytes()?.to_vec()))?,
            },
            4 => Self::Broken(Broken::decode(&mut body)?),
            5 => Self::Missing {
                channel: body.channel()?,
                number: body.u64()?,
                ranks: body.ranks()?,
            },
            6 => Self::Who { channel: body.channel()?, number: body.u64()? },
            POST => Self::Post(Post::decode(&mut body)?),
            TAKEN => Self::Taken,
            _ => return Err(Garbage),
        };
        body.end(down)
    }
}

/// The kinds of a [`Post`] and of the word that it was taken, both ways.
const POST: u8 = 10;
const TAKEN: u8 = 11;

impl Post {
    /// One value for some ranks: in as many frames as it takes, none longer than [`UP_MAX`], each for some of them.
    pub(crate) fn in_frames(
        channel: String,
        number: u64,
        letter: Letter,
    ) -> impl Iterator<Item = Self> {
        let room = UP_MAX.saturating_sub(LETTER_HEAD + letter.value.len()) / RUN_LEN;
        let Letter { from, to, value } = letter;
        let parts: Vec<Vec<Run>> = to.chunks(room.max(1)).map(<[Run]>::to_vec).collect();
        parts.into_iter().map(move |to| {
            let letter = Letter { from, to, value: Arc::clone(&value) };
            Self { channel: channel.clone(), number, letters: vec![letter] }
        })
    }

    fn encode(&self, out: &mut Writer) {
        out.u8(POST).call(&self.channel, self.number).length(self.letters.len());
        for Letter { from, to, value } in &self.letters {
            out.u32(*from).length(to.len());
            for run in to {
                out.u32(run.first).u32(run.step).u32(run.count);
            }
            out.bytes(value);
        }
    }

    fn decode(body: &mut Reader<'_>) -> Result<Self, Garbage> {
        let run = |body: &mut Reader<'_>| {
            Ok(Run { first: body.u32()?, step: body.u32()?, count: body.u32()? })
        };
        let letter = |body: &mut Reader<'_>| {
            Ok(Letter { from: body.u32()?, to: body.list(run)?, value: body.bytes()?.into() })
        };
        Ok(Self { channel: body.channel()?, number: body.u64()?, letters: body.list(letter)? })
    }
}

impl Broken {
    fn encode(&self, out: &mut Writer) {
        match self {
            Self::NeverCame { ranks } => out.u8(1).ranks(ranks),
            Self::Early { rank } => out.u8(2).u32(*rank),
            Self::Lost { rank } => out.u8(3).u32(*rank),
            Self::Left { rank } => out.u8(4).u32(*rank),
            Self::Aborted { by, code, why } => out.u8(5).u32(*by).u8(*code).bytes(why.as_bytes()),
            Self::Disagree { why } => out.u8(6).bytes(why.as_bytes()),
        };
    }

    fn decode(body: &mut Reader<'_>) -> Result<Self, Garbage> {
        Ok(match body.u8()? {
            1 => Self::NeverCame { ranks: body.ranks()? },
            2 => Self::Early { rank: body.u32()? },
            3 => Self::Lost { rank: body.u32()? },
            4 => Self::Left { rank: body.u32()? },
            5 => Self::Aborted { by: body.u32()?, code: body.u8()?, why: body.text()? },
            6 => Self::Disagree { why: body.text()? },
            _ => return Err(Garbage),
        })
    }
}

/// Takes the next whole frame off the front: its body and how many bytes that were. `None`: not yet whole.
pub(crate) fn split(bytes: &[u8], max: usize) -> Result<Option<(&[u8], usize)>, Garbage> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > max {
        return Err(Garbage);
    }
    Ok(rest.get(..length).map(|body| (body, 4 + length)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn body(frame: &[u8]) -> &[u8] {
        let (body, used) = split(frame, DOWN_MAX).unwrap().unwrap();
        assert_eq!(used, frame.len());
        body
    }

    fn post() -> Post {
        let to = vec![Run { first: 1, step: 2, count: 3 }, Run { first: 9, step: 1, count: 1 }];
        let letter = Letter { from: 4, to, value: [1, 2, 3].into() };
        Post { channel: "p".into(), number: 5, letters: vec![letter] }
    }

    #[test]
    fn a_value_for_any_ranks_leaves_in_frames_that_are_taken() {
        let runs: Vec<_> = (0..1000).map(|it| Run { first: 9 * it, step: 2, count: 3 }).collect();
        for (len, count) in [(0, 1), (UP_MAX - 5000, 3), (VALUE_MAX, 14)] {
            let letter = Letter { from: 1, to: runs.clone(), value: vec![7; len].into() };
            let channel = "c".repeat(CHANNEL_MAX);
            let posts: Vec<_> = Post::in_frames(channel, 5, letter).collect();
            assert_eq!(posts.len(), count);
            let mut to = Vec::new();
            for post in posts {
                let frame = Up::Post(post.clone()).encode();
                let (body, _) = split(&frame, UP_MAX).unwrap().unwrap();
                assert!(Up::decode(body) == Ok(Up::Post(post.clone())));
                let [letter] = &post.letters[..] else { panic!("one letter") };
                assert!(letter.value.len() == len && letter.from == 1 && post.number == 5);
                to.extend_from_slice(&letter.to);
            }
            assert_eq!(to, runs);
        }
    }

    #[test]
    fn every_kind_survives_the_wire() {
        let hello = Hello { token: vec![1, 2], rank: 3, size: 4, host: "a.b".into() };
        let ups = [
            Up::Hello(hello),
            Up::Gather {
                channel: "x".into(),
                number: 9,
                what: What::Gather,
                values: vec![vec![0, 255], vec![]],
            },
            Up::Gather { channel: String::new(), number: 0, what: What::Barrier, values: vec![] },
            Up::Gather { channel: String::new(), number: 0, what: What::Share, values: vec![] },
            Up::Hosts(vec![("a.b".into(), 3), (String::new(), 1)]),
            Up::Broken(Broken::Lost { rank: 2 }),
            Up::Left { rank: 7 },
            Up::Missing { channel: "x".into(), number: 1, ranks: vec![4] },
            Up::Post(post()),
            Up::Taken,
            Up::Abort { code: 7, why: "because".into() },
            Up::Bye,
            Up::Who { channel: "x".into(), number: 1 << 40 },
        ];
        for up in ups {
            assert_eq!(Up::decode(body(&up.encode())), Ok(up));
        }
        let brokens = [
            Broken::NeverCame { ranks: vec![1, 5] },
            Broken::Early { rank: 1 },
            Broken::Lost { rank: 2 },
            Broken::Left { rank: 3 },
            Broken::Aborted { by: 4, code: 3, why: "so".into() },
            Broken::Disagree { why: "no".into() },
        ];
        let mut downs = vec![
            Down::Welcome { nodes: vec![0, 0, 1] },
            Down::Refused { why: "size".into() },
            Down::Gathered { channel: "c".into(), number: 1, values: vec![vec![], vec![1]] },
            Down::Missing { channel: String::new(), number: 2, ranks: vec![] },
            Down::Who { channel: "c".into(), number: 3 },
            Down::Post(post()),
            Down::Taken,
        ];
        downs.extend(brokens.map(Down::Broken));
        for down in downs {
            assert_eq!(Down::decode(body(&down.encode())), Ok(down));
        }
    }

    #[test]
    fn a_frame_is_taken_only_when_it_is_whole_and_not_too_long() {
        let frame = Up::Bye.encode();
        for end in 0..frame.len() {
            assert_eq!(split(&frame[..end], 10), Ok(None));
        }
        assert_eq!(split(&[11, 0, 0, 0], 10), Err(Garbage));
        assert_eq!(split(b"GET / HTTP/1.1\r\n", HELLO_MAX), Err(Garbage));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_garbage(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(up) = Up::decode(&bytes) {
                prop_assert_eq!(&up.encode()[4..], &bytes[..]);
            }
            if let Ok(down) = Down::decode(&bytes) {
                prop_assert_eq!(&down.encode()[4..], &bytes[..]);
            }
        }

        #[test]
        fn a_damaged_frame_is_never_more_than_refused(at in 0_usize..40, byte in any::<u8>()) {
            let mut frame = Down::Gathered {
                channel: "ab".into(), number: 1, values: vec![vec![1; 4], vec![2; 5]],
            }.encode();
            let at = at % frame.len();
            frame[at] = byte;
            if let Ok(Some((body, _))) = split(&frame, 1 << 16) {
                let _ = Down::decode(body);
            }
        }
    }
}
