//! What ranks and the hub say to one another.
//!
//! # Layout
//! A frame is `u32 length`, then that many bytes: `u8 kind` and the fields in order, little-endian. A text
//! or a list of bytes is `u32 length` and its bytes, a list of ranks `u32 count` and as many `u32`.
//!
//! | kind | up (rank to hub) | fields                                        |
//! |-----:|------------------|-----------------------------------------------|
//! |    1 | `Hello`          | magic, token, rank, size, host                |
//! |    2 | `Gather`         | channel, `u64` number, `u8` what, value       |
//! |    3 | `Abort`          | `u8` code, why                                |
//! |    4 | `Bye`            |                                               |
//! |    5 | `Who`            | channel, `u64` number                         |
//!
//! | kind | down (hub to rank) | fields                                      |
//! |-----:|--------------------|---------------------------------------------|
//! |    1 | `Welcome`          | node of each rank                           |
//! |    2 | `Refused`          | why                                         |
//! |    3 | `Gathered`         | channel, `u64` number, values               |
//! |    4 | `Broken`           | `u8` kind, then its fields                  |
//! |    5 | `Missing`          | channel, `u64` number, ranks                |
//!
//! What was read is checked here for its form; `hub::state` and `link` check what it means.

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
/// The longest frame of the hub.
pub(crate) const DOWN_MAX: usize = 1 << 30;
/// The longest reason of an abort; more is cut off.
pub(crate) const WHY_MAX: usize = 1024;

/// Opens a `Hello`: this protocol in its first version.
const MAGIC: u32 = u32::from_le_bytes(*b"hgJ\x01");

/// What a collective call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Gather,
    Barrier,
}

impl What {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gather => "all-gather",
            Self::Barrier => "barrier",
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

/// From a rank to the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Up {
    Hello(Hello),
    Gather { channel: String, number: u64, what: What, value: Vec<u8> },
    Abort { code: u8, why: String },
    Bye,
    Who { channel: String, number: u64 },
}

/// From the hub to a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Down {
    Welcome { nodes: Vec<u32> },
    Refused { why: String },
    Gathered { channel: String, number: u64, values: Vec<Vec<u8>> },
    Broken(Broken),
    Missing { channel: String, number: u64, ranks: Vec<u32> },
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
            Self::Gather { channel, number, what, value } => {
                let what = u8::from(*what == What::Barrier);
                out.u8(2).bytes(channel.as_bytes()).u64(*number).u8(what).bytes(value);
            }
            Self::Abort { code, why } => {
                out.u8(3).u8(*code).bytes(why.as_bytes());
            }
            Self::Bye => {
                out.u8(4);
            }
            Self::Who { channel, number } => {
                out.u8(5).bytes(channel.as_bytes()).u64(*number);
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
                    _ => return Err(Garbage),
                },
                value: body.bytes()?.to_vec(),
            },
            3 => Self::Abort { code: body.u8()?, why: body.text()? },
            4 => Self::Bye,
            5 => Self::Who { channel: body.channel()?, number: body.u64()? },
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
                out.u8(1).ranks(nodes);
            }
            Self::Refused { why } => {
                out.u8(2).bytes(why.as_bytes());
            }
            Self::Gathered { channel, number, values } => {
                out.u8(3).bytes(channel.as_bytes()).u64(*number).length(values.len());
                for value in values {
                    out.bytes(value);
                }
            }
            Self::Broken(broken) => broken.encode(out.u8(4)),
            Self::Missing { channel, number, ranks } => {
                out.u8(5).bytes(channel.as_bytes()).u64(*number).ranks(ranks);
            }
        }
        out.finish()
    }

    /// The frame without its length.
    pub(crate) fn decode(body: &[u8]) -> Result<Self, Garbage> {
        let mut body = Reader(body);
        let down = match body.u8()? {
            1 => Self::Welcome { nodes: body.ranks()? },
            2 => Self::Refused { why: body.text()? },
            3 => {
                let (channel, number) = (body.channel()?, body.u64()?);
                let count = body.u32()?;
                let mut values = Vec::new();
                for _ in 0..count {
                    values.push(body.bytes()?.to_vec());
                }
                Self::Gathered { channel, number, values }
            }
            4 => Self::Broken(Broken::decode(&mut body)?),
            5 => Self::Missing {
                channel: body.channel()?,
                number: body.u64()?,
                ranks: body.ranks()?,
            },
            _ => return Err(Garbage),
        };
        body.end(down)
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

struct Writer(Vec<u8>);

impl Writer {
    fn new() -> Self {
        Self(vec![0; 4])
    }

    fn u8(&mut self, number: u8) -> &mut Self {
        self.0.push(number);
        self
    }

    fn u32(&mut self, number: u32) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn u64(&mut self, number: u64) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn length(&mut self, length: usize) -> &mut Self {
        self.u32(u32::try_from(length).expect("limits keep lengths below 4 GiB"))
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.length(bytes.len());
        self.0.extend_from_slice(bytes);
        self
    }

    fn ranks(&mut self, ranks: &[u32]) -> &mut Self {
        self.length(ranks.len());
        for rank in ranks {
            self.u32(*rank);
        }
        self
    }

    fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len() - 4).expect("limits keep frames below 4 GiB");
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Garbage> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(Garbage)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u8(&mut self) -> Result<u8, Garbage> {
        Ok(self.array::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32, Garbage> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Garbage> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn bytes(&mut self) -> Result<&'a [u8], Garbage> {
        let length = self.u32()? as usize;
        let (first, rest) = self.0.split_at_checked(length).ok_or(Garbage)?;
        self.0 = rest;
        Ok(first)
    }

    fn text(&mut self) -> Result<String, Garbage> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| Garbage)
    }

    fn channel(&mut self) -> Result<String, Garbage> {
        let channel = self.text()?;
        if channel.len() <= CHANNEL_MAX { Ok(channel) } else { Err(Garbage) }
    }

    fn ranks(&mut self) -> Result<Vec<u32>, Garbage> {
        let count = self.u32()? as usize;
        let length = count.checked_mul(4).ok_or(Garbage)?;
        let (first, rest) = self.0.split_at_checked(length).ok_or(Garbage)?;
        self.0 = rest;
        Ok(first
            .chunks_exact(4)
            .map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
            .collect())
    }

    fn end<T>(&self, frame: T) -> Result<T, Garbage> {
        if self.0.is_empty() { Ok(frame) } else { Err(Garbage) }
    }
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

    #[test]
    fn every_kind_survives_the_wire() {
        let hello = Hello { token: vec![1, 2], rank: 3, size: 4, host: "a.b".into() };
        let ups = [
            Up::Hello(hello),
            Up::Gather { channel: "x".into(), number: 9, what: What::Gather, value: vec![0, 255] },
            Up::Gather { channel: String::new(), number: 0, what: What::Barrier, value: vec![] },
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
