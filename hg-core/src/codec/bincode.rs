//! [`Bincode`]: the format of `bincode` 1.3 with integers of fixed size, little-endian.

use std::{io, marker::PhantomData};

use ::bincode::{DefaultOptions, ErrorKind, Options};
use serde::{Deserialize, Serialize};

use super::{
    Codec, CodecError,
    bounded::{Bounded, Bounds},
};

/// The default codec: fields one after another, integers at their full size, little-endian.
///
/// Lengths are `u64`, variants `u32`, `Option` and `bool` one byte. The size of a fixed-size value is
/// known when the program is compiled.
#[derive(Clone, Copy, Debug)]
pub struct Bincode;

impl Codec for Bincode {
    const ID: u8 = 1;
    const NAME: &'static str = "bincode";

    #[inline]
    fn size<T: Serialize + ?Sized>(value: &T) -> Result<usize, CodecError> {
        let size = options().serialized_size(value).map_err(refused)?;
        usize::try_from(size).map_err(|_| CodecError::TooLong { room: usize::MAX })
    }

    #[inline]
    fn encode<T: Serialize + ?Sized>(value: &T, into: &mut [u8]) -> Result<usize, CodecError> {
        let room = into.len();
        let mut writer = Writer { into, at: 0 };
        match options().serialize_into(&mut writer, value) {
            Ok(()) => Ok(writer.at),
            Err(error) => Err(match *error {
                ErrorKind::Io(_) => CodecError::TooLong { room },
                _ => refused(error),
            }),
        }
    }

    #[inline]
    fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, CodecError> {
        let seed = Bounded::new(PhantomData, Bounds::of_message(bytes.len()));
        options().deserialize_seed(seed, bytes).map_err(malformed)
    }
}

/// No byte limit: what is read is bounded by its slice (bincode ignores the limit there), what is
/// written by the room for it. Bytes left over are an error.
#[inline]
fn options() -> impl Options {
    DefaultOptions::new().with_fixint_encoding().reject_trailing_bytes()
}

#[cold]
fn refused(error: ::bincode::Error) -> CodecError {
    CodecError::unencodable(&error)
}

#[cold]
fn malformed(error: ::bincode::Error) -> CodecError {
    CodecError::malformed(&error)
}

/// Writes a whole field or nothing, so that a field of a known size is one store.
struct Writer<'a> {
    into: &'a mut [u8],
    at: usize,
}

impl io::Write for Writer<'_> {
    #[inline]
    fn write(&mut self, field: &[u8]) -> io::Result<usize> {
        self.write_all(field)?;
        Ok(field.len())
    }

    #[inline]
    fn write_all(&mut self, field: &[u8]) -> io::Result<()> {
        match self.into.get_mut(self.at..).and_then(|room| room.get_mut(..field.len())) {
            Some(room) => {
                room.copy_from_slice(field);
                self.at += field.len();
                Ok(())
            }
            None => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
