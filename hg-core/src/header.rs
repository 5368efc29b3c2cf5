//! The header of every RPC message: one module behind two functions, so that a second dialect can stand beside it.
//!
//! # Layout (little-endian; the first 20 bytes are the same in every version)
//! | offset | size | field     | meaning                                                       |
//! |-------:|-----:|-----------|---------------------------------------------------------------|
//! |      0 |    2 | magic     | [`MAGIC`]                                                     |
//! |      2 |    1 | version   | [`VERSION`]                                                   |
//! |      3 |    1 | kind      | [`Kind`]                                                      |
//! |      4 |    1 | flags     | which extensions follow, and what the payload is              |
//! |      5 |    1 | code      | requests: codec; answers: status; else 0                      |
//! |      6 |    2 | reserved  | 0                                                             |
//! |      8 |    4 | length    | bytes of payload after the header and its extensions          |
//! |     12 |    8 | id        | chosen by the origin, echoed by the answer                    |
//! |     20 |    8 | rpc       | requests only: name and signature, [`crate::rpc::Rpc::wire_id`] |
//! |    ... |      | extensions in the order of their flag bits                                |
//!
//! An 8-byte call's request (28 + 16 bytes) and its answer fit in one slot of `na/sm`.

use std::time::Duration;

use hg_na::INLINE_MAX;

use crate::{
    codec::{self, Codec as _},
    error::Status,
    rpc::RpcId,
};

/// First two bytes of every message: `Hg`.
pub const MAGIC: u16 = u16::from_le_bytes(*b"Hg");
/// Version of the layout, and of what its fields mean: raised with every release that changes either.
pub const VERSION: u8 = 2;
/// Bytes that every message begins with.
pub const PREFIX_LEN: usize = 20;
/// Bytes of a request's header without extensions.
pub const REQUEST_LEN: usize = 28;
/// Bytes of an answer's header without extensions.
pub const ANSWER_LEN: usize = PREFIX_LEN;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A call that is answered.
    Request = 1,
    /// A call that is not answered.
    OneWay = 2,
    /// The answer to a request.
    Answer = 3,
    /// The origin does not want the answer any more.
    Cancel = 4,
    /// A last sentence before the connection is closed.
    Fault = 5,
    /// The target has taken the arguments of a one-way call that traveled by bulk.
    ArgumentsTaken = 6,
    /// The origin has taken a result that traveled by bulk, or does not want it.
    ResultTaken = 7,
    /// Its sender has drained: what it has begun is answered, and it begins nothing any more.
    Drained = 8,
}

impl Kind {
    /// All of them, by their numbers from 1 on.
    const ALL: [Self; 8] = [
        Self::Request,
        Self::OneWay,
        Self::Answer,
        Self::Cancel,
        Self::Fault,
        Self::ArgumentsTaken,
        Self::ResultTaken,
        Self::Drained,
    ];

    /// Whether it is a call of either kind.
    #[inline]
    #[must_use]
    pub const fn is_request(self) -> bool {
        matches!(self, Self::Request | Self::OneWay)
    }

    #[inline]
    fn from_wire(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte).wrapping_sub(1)).copied()
    }
}

// Flags.

/// An extension, as the next one.
const DEADLINE: u8 = 1;
const CHECKSUM: u8 = 8;
/// No extension: the payload is a descriptor of the memory that holds the arguments or the result.
const BULK: u8 = 16;
/// Requests; no extension: the payload begins with the descriptors of frozen memory among the arguments.
const FROZEN: u8 = 32;
const KNOWN_FLAGS: u8 = DEADLINE | CHECKSUM | BULK | FROZEN;

#[inline]
const fn extensions_len(flags: u8) -> usize {
    let deadline = if flags & DEADLINE != 0 { DEADLINE_LEN } else { 0 };
    let checksum = if flags & CHECKSUM != 0 { CHECKSUM_LEN } else { 0 };
    deadline + checksum
}

/// Time remaining in nanoseconds, `u64`.
const DEADLINE_LEN: usize = 8;
/// CRC32C of header, extensions (this one as zero) and payload.
const CHECKSUM_LEN: usize = 4;

/// Everything that a header says, without the payload's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What the message is.
    pub kind: Kind,
    /// Requests: the codec; answers: the status.
    pub code: u8,
    /// Chosen by the origin.
    pub id: u64,
    /// Requests: the RPC; otherwise 0.
    pub rpc: RpcId,
    /// Time that the call may still take, in nanoseconds.
    pub remaining_ns: Option<u64>,
    /// Whether a CRC32C is carried.
    pub checksum: bool,
    /// Whether the payload only describes where the arguments or the result are: they travel by bulk.
    pub bulk: bool,
    /// Whether the payload begins with the descriptors of frozen memory among the arguments.
    pub frozen: bool,
}

impl Header {
    /// An answer's without extensions.
    const PLAIN: Self = Self {
        kind: Kind::Answer,
        code: 0,
        id: 0,
        rpc: RpcId(0),
        remaining_ns: None,
        checksum: false,
        bulk: false,
        frozen: false,
    };

    /// The header of a request or of a one-way call.
    #[inline]
    #[must_use]
    pub fn request(kind: Kind, id: u64, rpc: RpcId) -> Self {
        Self { kind, code: codec::Default::ID, id, rpc, ..Self::PLAIN }
    }

    /// The header of an answer.
    #[inline]
    #[must_use]
    pub fn answer(id: u64, status: u8, checksum: bool) -> Self {
        Self { code: status, id, checksum, ..Self::PLAIN }
    }

    /// The header of a control message.
    #[must_use]
    pub fn control(kind: Kind, id: u64) -> Self {
        Self { kind, ..Self::answer(id, 0, false) }
    }

    #[inline]
    fn flags(&self) -> u8 {
        let deadline = if self.remaining_ns.is_some() { DEADLINE } else { 0 };
        let checksum = if self.checksum { CHECKSUM } else { 0 };
        let bulk = if self.bulk { BULK } else { 0 };
        let frozen = if self.frozen { FROZEN } else { 0 };
        deadline | checksum | bulk | frozen
    }

    /// Whether the target takes memory of the origin's before it runs the handler.
    #[inline]
    #[must_use]
    pub fn lends(&self) -> bool {
        self.bulk | self.frozen
    }

    #[inline]
    const fn fixed_len(kind: Kind) -> usize {
        if kind.is_request() { REQUEST_LEN } else { PREFIX_LEN }
    }

    /// Bytes of this header with its extensions.
    #[inline]
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        Self::fixed_len(self.kind) + extensions_len(self.flags())
    }

    /// Writes the header over the first [`Header::encoded_len`] bytes; what follows is the payload, already written.
    ///
    /// # Panics
    /// When the message is shorter than the header: the caller's own bug.
    #[inline(always)]
    pub fn encode(&self, message: &mut [u8]) {
        self.encode_in(self.encoded_len(), message);
    }

    /// The same where [`Header::encoded_len`] was asked before.
    #[inline(always)]
    pub fn encode_in(&self, len: usize, message: &mut [u8]) {
        self.encode_fixed(self.flags(), len, message);
        if let Some(remaining) = self.remaining_ns {
            let at = Self::fixed_len(self.kind);
            message[at..at + DEADLINE_LEN].copy_from_slice(&remaining.to_le_bytes());
        }
        if self.checksum {
            seal(message, len);
        }
    }

    /// A message of it and this payload.
    #[must_use]
    pub fn message(&self, payload: &[u8]) -> Vec<u8> {
        let mut message = vec![0; self.encoded_len()];
        message.extend_from_slice(payload);
        self.encode(&mut message);
        message
    }

    /// What every header has; `len` is its whole length.
    #[inline(always)]
    fn encode_fixed(&self, flags: u8, len: usize, message: &mut [u8]) {
        assert!(message.len() >= len, "a message has room for its header");
        let payload =
            u32::try_from(message.len() - len).expect("a transport's message is under 4 GiB");
        let (kind, flags, code) =
            (u64::from(self.kind as u8), u64::from(flags), u64::from(self.code));
        let word = FIXED_BITS | kind << 24 | flags << 32 | code << 40;
        if Self::fixed_len(self.kind) == REQUEST_LEN
            && let Some(fixed) = message.first_chunk_mut::<REQUEST_LEN>()
        {
            fixed[20..28].copy_from_slice(&self.rpc.0.to_le_bytes());
        }
        if let Some(prefix) = message.first_chunk_mut::<PREFIX_LEN>() {
            prefix[0..8].copy_from_slice(&word.to_le_bytes());
            prefix[8..12].copy_from_slice(&payload.to_le_bytes());
            prefix[12..20].copy_from_slice(&self.id.to_le_bytes());
        }
    }

    /// Changes what a request's header says of the time that is left, where it says that.
    pub fn set_remaining(message: &mut [u8], left: Duration) {
        let flags = message.get(4).copied().unwrap_or(0);
        let at = Self::fixed_len(Kind::Request);
        if flags & DEADLINE == 0 || message.len() < at + extensions_len(flags) {
            return;
        }
        let left = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
        message[at..at + DEADLINE_LEN].copy_from_slice(&left.to_le_bytes());
        if flags & CHECKSUM != 0 {
            seal(message, at + extensions_len(flags));
        }
    }

    /// Reads a header and checks everything that it claims. The payload follows at the offset returned.
    ///
    /// # Errors
    /// What is wrong, and, where the message is long enough to tell, whom to answer.
    #[inline(always)]
    pub fn decode(message: &[u8]) -> Result<(Self, usize), Malformed> {
        let Some((prefix, _)) = message.split_first_chunk::<PREFIX_LEN>() else {
            return Err(Malformed::TooShort { len: message.len() });
        };
        let word = u64::from_le_bytes(eight(&prefix[0..8]));
        let id = u64::from_le_bytes(eight(&prefix[12..20]));
        let claimed = u32::from_le_bytes([prefix[8], prefix[9], prefix[10], prefix[11]]);
        let kind = match Kind::from_wire(prefix[3]) {
            Some(kind) if word & FIXED_MASK == FIXED_BITS => kind,
            _ => return Err(bad_prefix(prefix, id)),
        };
        let flags = prefix[4];
        let len = Self::fixed_len(kind) + extensions_len(flags);
        if len as u64 + u64::from(claimed) != message.len() as u64 {
            return Err(bad_length(message.len() < len, prefix, id));
        }
        let mut header = Self { kind, code: prefix[5], id, ..Self::PLAIN };
        if Self::fixed_len(kind) == REQUEST_LEN {
            header.rpc = RpcId(u64::from_le_bytes(eight(&message[20..28])));
        }
        if flags != 0 {
            let bad = |why| Malformed::Bad { answer_to: answer_to(prefix, id), why };
            header.decode_extensions(flags, message).map_err(bad)?;
        }
        Ok((header, len))
    }

    /// The common case of [`Header::decode`] for requests: this build's codec, no extension but a deadline that has not
    /// passed; and where the payload begins. `None` says nothing about the message but that the long way is to be taken.
    #[inline(always)]
    #[must_use]
    pub fn decode_plain_request(message: &[u8]) -> Option<(Self, usize)> {
        let fixed = message.first_chunk::<REQUEST_LEN>()?;
        let word = u64::from_le_bytes(eight(&fixed[0..8]));
        let claimed = u32::from_le_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]);
        let (remaining_ns, len) = if word == PLAIN_REQUEST {
            (None, REQUEST_LEN)
        } else if word == PLAIN_REQUEST | DEADLINE_FLAG
            && let Some((_, extended)) = message.split_first_chunk::<REQUEST_LEN>()
            && let Some(remaining) = extended.first_chunk::<DEADLINE_LEN>()
            && remaining != &[0; DEADLINE_LEN]
        {
            (Some(u64::from_le_bytes(*remaining)), REQUEST_LEN + DEADLINE_LEN)
        } else {
            return None;
        };
        if len as u64 + u64::from(claimed) != message.len() as u64 {
            return None;
        }
        let id = u64::from_le_bytes(eight(&fixed[12..20]));
        let rpc = RpcId(u64::from_le_bytes(eight(&fixed[20..28])));
        Some((Self { remaining_ns, ..Self::request(Kind::Request, id, rpc) }, len))
    }

    /// Whether the first `len` bytes are the answer to `id` with status 0 and no extension: its payload
    /// begins at [`ANSWER_LEN`]. `false` says nothing but that [`Header::decode`] is to be asked.
    #[inline]
    #[must_use]
    pub fn is_plain_answer(slot: &[u8; INLINE_MAX], len: usize, id: u64) -> bool {
        let word = u64::from_le_bytes(eight(&slot[0..8]));
        let claimed = u32::from_le_bytes([slot[8], slot[9], slot[10], slot[11]]);
        // What lies behind the length is not looked at when the lengths agree.
        word == PLAIN_ANSWER
            && u64::from_le_bytes(eight(&slot[12..20])) == id
            && ANSWER_LEN as u64 + u64::from(claimed) == len as u64
    }

    #[cold]
    fn decode_extensions(&mut self, flags: u8, message: &[u8]) -> Result<(), &'static str> {
        let mut at = Self::fixed_len(self.kind);
        self.bulk = flags & BULK != 0;
        self.frozen = flags & FROZEN != 0;
        if flags & DEADLINE != 0 {
            self.remaining_ns = Some(u64::from_le_bytes(eight(&message[at..at + DEADLINE_LEN])));
            at += DEADLINE_LEN;
        }
        if flags & CHECKSUM != 0 {
            let (before, rest) = message.split_at(at);
            let (sum, after) = rest.split_at(CHECKSUM_LEN);
            let mut computed = crc32c::crc32c(before);
            computed = crc32c::crc32c_append(computed, &[0; CHECKSUM_LEN]);
            computed = crc32c::crc32c_append(computed, after);
            if sum != computed.to_le_bytes() {
                return Err("the checksum is wrong");
            }
            self.checksum = true;
        }
        Ok(())
    }
}

/// The bits of the first eight bytes that are the same in every message: magic, version, flags that are
/// unknown, and what is reserved.
const FIXED_MASK: u64 = u64::from_le_bytes([0xFF, 0xFF, 0xFF, 0, !KNOWN_FLAGS, 0, 0xFF, 0xFF]);
const FIXED_BITS: u64 = u64::from_le_bytes([b'H', b'g', VERSION, 0, 0, 0, 0, 0]);

/// The first eight bytes of a request without extensions, in this build's codec.
const PLAIN_REQUEST: u64 =
    FIXED_BITS | (Kind::Request as u64) << 24 | (codec::Default::ID as u64) << 40;
const DEADLINE_FLAG: u64 = (DEADLINE as u64) << 32;
/// The first eight bytes of an answer with status 0, without extensions.
const PLAIN_ANSWER: u64 = FIXED_BITS | (Kind::Answer as u64) << 24;

/// Writes the checksum of a message at the end of its header, which is so long.
#[cold]
fn seal(message: &mut [u8], len: usize) {
    message[len - CHECKSUM_LEN..len].fill(0);
    let sum = crc32c::crc32c(message);
    message[len - CHECKSUM_LEN..len].copy_from_slice(&sum.to_le_bytes());
}

#[cold]
fn bad_prefix(prefix: &[u8; PREFIX_LEN], id: u64) -> Malformed {
    let answer_to = answer_to(prefix, id);
    if prefix[0..2] != MAGIC.to_le_bytes() {
        Malformed::Magic
    } else if prefix[2] != VERSION {
        Malformed::Version { answer_to, theirs: prefix[2] }
    } else if Kind::from_wire(prefix[3]).is_none() {
        Malformed::Bad { answer_to, why: "the kind is unknown" }
    } else {
        Malformed::Bad { answer_to, why: "an unknown flag is set" }
    }
}

/// Whom to answer: the request, where it says that it is one.
fn answer_to(prefix: &[u8; PREFIX_LEN], id: u64) -> Option<u64> {
    (prefix[3] == Kind::Request as u8).then_some(id)
}

#[cold]
fn bad_length(is_short: bool, prefix: &[u8; PREFIX_LEN], id: u64) -> Malformed {
    let why =
        if is_short { "the header is cut short" } else { "the length differs from what arrived" };
    Malformed::Bad { answer_to: answer_to(prefix, id), why }
}

#[inline]
fn eight(bytes: &[u8]) -> [u8; 8] {
    bytes.try_into().expect("the caller cut eight bytes")
}

/// Why a message is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Not even a prefix.
    #[error("a message of {len} bytes is shorter than any header")]
    TooShort {
        /// Bytes that arrived.
        len: usize,
    },
    /// Not one of ours.
    #[error("the message does not begin with the magic number")]
    Magic,
    /// Of another version.
    #[error("one speaks version {theirs} of the protocol, the other version {VERSION}")]
    Version {
        /// Id to answer, where it says that it is a request.
        answer_to: Option<u64>,
        /// Version of the sender.
        theirs: u8,
    },
    /// Anything else.
    #[error("the header is malformed: {why}")]
    Bad {
        /// Id to answer, where it says that it is a request.
        answer_to: Option<u64>,
        /// What is wrong.
        why: &'static str,
    },
}

impl Malformed {
    /// What the sender of such a request, or of such an answer, is to be told by.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Version { .. } => Status::Incompatible,
            Self::TooShort { .. } | Self::Magic | Self::Bad { .. } => Status::Decode,
        }
    }

    /// The id of the request that can be told, when there is one.
    #[must_use]
    pub fn answer_to(&self) -> Option<u64> {
        match self {
            Self::Version { answer_to, .. } | Self::Bad { answer_to, .. } => *answer_to,
            Self::TooShort { .. } | Self::Magic => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_header() -> impl Strategy<Value = Header> {
        let kinds = prop_oneof![
            Just(Kind::Request),
            Just(Kind::OneWay),
            Just(Kind::Answer),
            Just(Kind::Cancel),
            Just(Kind::Fault),
            Just(Kind::ArgumentsTaken),
            Just(Kind::ResultTaken),
            Just(Kind::Drained)
        ];
        let flags = any::<(bool, bool, bool)>();
        // Most answers carry code 0: the short ways are for them.
        let code = prop_oneof![Just(0), any::<u8>()];
        (kinds, code, any::<u64>(), any::<u64>(), any::<Option<u64>>(), flags).prop_map(
            |(kind, code, id, rpc, remaining_ns, (checksum, bulk, frozen))| {
                let rpc = if matches!(kind, Kind::Request | Kind::OneWay) { rpc } else { 0 };
                Header { kind, code, id, rpc: RpcId(rpc), remaining_ns, checksum, bulk, frozen }
            },
        )
    }

    proptest! {
        #[test]
        fn a_header_survives_its_wire_form(header in any_header(), payload: Vec<u8>) {
            let bytes = header.message(&payload);
            let (decoded, at) = Header::decode(&bytes).unwrap();
            prop_assert_eq!(decoded, header);
            prop_assert_eq!(&bytes[at..], &payload[..]);
        }

        #[test]
        fn the_short_ways_agree_with_the_long_one(header in any_header(), payload: Vec<u8>, id: u64) {
            let bytes = header.message(&payload);
            if let Some(plain) = Header::decode_plain_request(&bytes) {
                prop_assert_eq!(Header::decode(&bytes), Ok(plain));
            }
            let mut slot = [0xFF; INLINE_MAX];
            let Some(start) = slot.get_mut(..bytes.len()) else {
                // Longer than a slot: it never comes in one.
                return Ok(());
            };
            start.copy_from_slice(&bytes);
            for id in [id, header.id] {
                let (long, at) = Header::decode(&bytes).unwrap();
                let is_plain = long.kind == Kind::Answer && long.code == 0 && long.id == id && at == ANSWER_LEN && !long.bulk && !long.frozen;
                prop_assert_eq!(Header::is_plain_answer(&slot, bytes.len(), id), is_plain);
            }
        }

        #[test]
        fn an_answer_cut_to_a_slot_is_not_plain(id: u64, payload in prop::collection::vec(any::<u8>(), INLINE_MAX..100)) {
            let bytes = Header::answer(id, 0, false).message(&payload);
            let slot = bytes.first_chunk().unwrap();
            prop_assert!(!Header::is_plain_answer(slot, INLINE_MAX, id));
        }

        #[test]
        fn a_message_cut_short_is_refused(header in any_header(), payload: Vec<u8>, cut: prop::sample::Index) {
            let bytes = header.message(&payload);
            prop_assert!(Header::decode(&bytes[..cut.index(bytes.len())]).is_err());
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
            let _ = Header::decode(&bytes);
        }

        #[test]
        fn a_flipped_bit_never_passes_the_checksum(header in any_header(), payload: Vec<u8>, at: prop::sample::Index) {
            let header = Header { checksum: true, ..header };
            let mut bytes = header.message(&payload);
            let bit = at.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok((decoded, _)) = Header::decode(&bytes) {
                prop_assert!(!decoded.checksum, "the flag itself was flipped");
            }
        }
    }

    #[test]
    fn a_foreign_version_tells_whom_to_answer() {
        let mut bytes = Header::request(Kind::Request, 7, RpcId(9)).message(b"");
        bytes[2] = 9;
        let malformed = Header::decode(&bytes).unwrap_err();
        assert_eq!(malformed.answer_to(), Some(7));
    }

    #[test]
    fn an_eight_byte_call_fits_in_one_slot() {
        let request = Header::request(Kind::Request, 1, RpcId(2));
        assert!(request.encoded_len() + 16 + DEADLINE_LEN <= hg_na::INLINE_MAX);
        assert!(Header::answer(1, 0, false).encoded_len() + 8 <= hg_na::INLINE_MAX - 8);
    }
}
