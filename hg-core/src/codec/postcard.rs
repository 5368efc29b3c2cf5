//! [`Postcard`]: the format of `postcard` 1, integers of variable length.

use std::cell::Cell;

use ::postcard::{Deserializer, Error, experimental::serialized_size, to_slice};
use serde::{Deserialize, Serialize};

use super::{
    Codec, CodecError,
    bounded::{Bounded, Bounds},
};

/// The compact codec: small numbers take one byte, at the price of a branch per byte.
///
/// Every integer over 8 bits, every length and every variant is a LEB128 number, signed ones zigzag.
#[derive(Clone, Copy, Debug)]
pub struct Postcard;

impl Codec for Postcard {
    const ID: u8 = 2;
    const NAME: &'static str = "postcard";

    #[inline]
    fn size<T: Serialize + ?Sized>(value: &T) -> Result<usize, CodecError> {
        serialized_size(value).map_err(|error| CodecError::unencodable(&error))
    }

    #[inline]
    fn encode<T: Serialize + ?Sized>(value: &T, into: &mut [u8]) -> Result<usize, CodecError> {
        let room = into.len();
        match to_slice(value, into) {
            Ok(used) => Ok(used.len()),
            Err(Error::SerializeBufferFull) => Err(CodecError::TooLong { room }),
            Err(error) => Err(CodecError::unencodable(&error)),
        }
    }

    #[inline]
    fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, CodecError> {
        let mut deserializer = Deserializer::from_bytes(bytes);
        let elements = Cell::new(bytes.len());
        let bounds = Bounds::of_message(&elements);
        let value = T::deserialize(Bounded::new(&mut deserializer, bounds))
            .map_err(|error| CodecError::malformed(&error))?;
        match deserializer.finalize() {
            Ok([]) => Ok(value),
            Ok(rest) => Err(CodecError::malformed(&format_args!("{} bytes too many", rest.len()))),
            Err(error) => Err(CodecError::malformed(&error)),
        }
    }
}
