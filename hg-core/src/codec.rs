//! How arguments and results become bytes: one trait over serde, two formats.
//!
//! | codec        | id | integers            | feature              | for                             |
//! |--------------|---:|---------------------|----------------------|---------------------------------|
//! | `Bincode`    |  1 | fixed size          | `bincode`, on        | speed: a field is one store     |
//! | `Postcard`   |  2 | 7 bits in each byte | `postcard`           | slow networks and small numbers |
//!
//! With both features on, messages are in `Postcard`: whoever names it wants it, and `bincode` is on by default.
//!
//! Both write straight into the outgoing message and read borrowed from the received one. Neither
//! describes itself: both sides must agree on the types, and on the codec, whose id they exchange.
//! Types that need a self-describing format (`#[serde(untagged)]`, `flatten`) are refused.
//!
//! # What a peer can do to a decoder
//! Nothing but make it fail: it reads only the bytes given, allocates in proportion to them, recurses
//! at most 128 levels deep, and does not panic (`codec/bounded.rs`). A byte string, string or sequence for which
//! there is no memory is refused ([`CodecError::NoMemory`]); many small values that exhaust it end the process, as
//! everywhere in Rust.

#[cfg(feature = "bincode")]
mod bincode;
mod bounded;
#[cfg(feature = "postcard")]
mod postcard;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

#[cfg(feature = "bincode")]
pub use self::bincode::Bincode;
#[cfg(feature = "postcard")]
pub use self::postcard::Postcard;

/// The codec of this build: [`Bincode`], since nobody has asked for `postcard`.
#[cfg(all(feature = "bincode", not(feature = "postcard")))]
pub type Default = Bincode;
/// The codec of this build: [`Postcard`], since somebody has asked for it; `bincode` is on by default.
#[cfg(feature = "postcard")]
pub type Default = Postcard;

/// [`Codec::ID`] of this build's codec.
pub const ID: u8 = <Default as Codec>::ID;

#[cfg(not(any(feature = "bincode", feature = "postcard")))]
compile_error!("a codec is needed: enable the feature `bincode` or `postcard`");

/// A format of messages.
///
/// # Examples
/// ```
/// use hg_core::codec::{self, Codec};
///
/// let mut message = [0; 64];
/// let used = codec::Default::encode(&(2_i64, "three"), &mut message)?;
/// let (number, word): (i64, &str) = codec::Default::decode(&message[..used])?;
/// assert_eq!((number, word), (2, "three"));
/// # Ok::<(), codec::CodecError>(())
/// ```
pub trait Codec: Copy + fmt::Debug + Send + Sync + 'static {
    /// Travels in the handshake. Never reused for another format.
    const ID: u8;
    /// What an error message calls it.
    const NAME: &'static str;

    /// The bytes that [`Codec::encode`] will write.
    fn size<T: Serialize + ?Sized>(value: &T) -> Result<usize, CodecError>;

    /// Writes `value` to the beginning of `into` and says how many bytes that took. Allocates
    /// nothing. When it fails, `into` holds garbage.
    fn encode<T: Serialize + ?Sized>(value: &T, into: &mut [u8]) -> Result<usize, CodecError>;

    /// Makes the empty byte string that an encoded value ends with one of `len` bytes, which follow behind it: so they
    /// are written where they belong before their number is known. `false`: this format cannot do that, or the value
    /// does not end so.
    fn lengthen(encoded: &mut [u8], len: usize) -> bool {
        let _ = (encoded, len);
        false
    }

    /// Reads a value that takes all of `bytes`, borrowing from it where the type does.
    ///
    /// Strings, byte strings and everything that they own are allocated only after their bytes were
    /// found to be there; sequences and maps may not have more elements, all together, than the message has bytes.
    fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, CodecError>;
}

/// Why a value and its bytes do not match.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The value does not fit. Ask for [`Codec::size`] bytes, or send it as bulk data.
    #[error("the value does not fit in {room} bytes")]
    TooLong {
        /// Bytes that there were.
        room: usize,
    },
    /// The type cannot be written in this format: a bug of its `Serialize`, or a sequence of unknown
    /// length.
    #[error("the value cannot be encoded: {0}")]
    Unencodable(Box<str>),
    /// The bytes are no such value: the other side uses other types or another codec, or is broken.
    #[error("not a valid message: {0}")]
    Malformed(Box<str>),
    /// The value needs more memory than this process can have.
    #[error("there is no memory for {len} bytes of it")]
    NoMemory {
        /// Bytes that were refused.
        len: usize,
    },
}

impl CodecError {
    #[cold]
    fn unencodable(reason: &dyn fmt::Display) -> Self {
        Self::Unencodable(shortened(reason))
    }

    #[cold]
    fn malformed(reason: &dyn fmt::Display) -> Self {
        match bounded::take_refused() {
            Some(len) => Self::NoMemory { len },
            None => Self::Malformed(shortened(reason)),
        }
    }
}

/// A reason may quote what the peer sent: as many bytes of it as help, not as many as it likes.
fn shortened(reason: &dyn fmt::Display) -> Box<str> {
    let mut text = reason.to_string();
    text.truncate(text.floor_char_boundary(REASON_MAX));
    text.into_boxed_str()
}

/// What to say to whoever speaks the codec of this number, and not this build's.
#[cold]
pub(crate) fn differ(theirs: u8) -> String {
    const NAMES: [(u8, &str); 2] = [(1, "bincode"), (2, "postcard")];
    let name = NAMES.iter().find(|(id, _)| *id == theirs).map_or("unknown", |(_, name)| name);
    let (ours, id) = (Default::NAME, Default::ID);
    format!("one speaks codec {theirs} ({name}), the other codec {id} ({ours})")
}

/// Longest reason in a [`CodecError`], in bytes.
const REASON_MAX: usize = 200;
