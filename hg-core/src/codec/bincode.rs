//! [`Bincode`]: the format of `bincode` 1.3 with integers of fixed size, little-endian.

use std::{cell::Cell, io, marker::PhantomData};

use ::bincode::{BincodeRead, DefaultOptions, Deserializer, ErrorKind, Options, Result as Read};
use serde::{
    Deserialize, Serialize,
    de::{DeserializeSeed, Visitor},
};

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
    fn lengthen(encoded: &mut [u8], len: usize) -> bool {
        match (encoded.last_chunk_mut(), u64::try_from(len)) {
            (Some(present @ &mut [0, 0, 0, 0, 0, 0, 0, 0]), Ok(len)) => {
                *present = len.to_le_bytes();
                true
            }
            _ => false,
        }
    }

    #[inline]
    fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, CodecError> {
        let elements = Cell::new(bytes.len());
        let seed = Bounded::new(PhantomData, Bounds::of_message(&elements));
        let mut left = bytes;
        let reader = Reader { left: &mut left };
        let mut deserializer = Deserializer::with_bincode_read(reader, options());
        let value = seed.deserialize(&mut deserializer).map_err(malformed)?;
        if left.is_empty() { Ok(value) } else { Err(left_over()) }
    }
}

/// No byte limit: what is read is bounded by its slice, what is written by the room for it.
#[inline]
fn options() -> impl Options {
    DefaultOptions::new().with_fixint_encoding()
}

#[cold]
fn refused(error: ::bincode::Error) -> CodecError {
    CodecError::unencodable(&error)
}

#[cold]
fn malformed(error: ::bincode::Error) -> CodecError {
    CodecError::malformed(&error)
}

#[cold]
fn left_over() -> CodecError {
    malformed(Box::new(ErrorKind::Custom("bytes are left over".to_owned())))
}

/// Takes fields off a slice. bincode's own does the same, behind a function that is not inlined.
struct Reader<'r, 'a> {
    left: &'r mut &'a [u8],
}

impl<'a> Reader<'_, 'a> {
    #[inline(always)]
    fn take(&mut self, len: usize) -> io::Result<&'a [u8]> {
        let (field, left) = self.left.split_at_checked(len).ok_or(io::ErrorKind::UnexpectedEof)?;
        *self.left = left;
        Ok(field)
    }
}

impl io::Read for Reader<'_, '_> {
    #[inline(always)]
    fn read(&mut self, field: &mut [u8]) -> io::Result<usize> {
        self.read_exact(field)?;
        Ok(field.len())
    }

    #[inline(always)]
    fn read_exact(&mut self, field: &mut [u8]) -> io::Result<()> {
        field.copy_from_slice(self.take(field.len())?);
        Ok(())
    }
}

impl<'a> BincodeRead<'a> for Reader<'_, 'a> {
    #[inline(always)]
    fn forward_read_str<V: Visitor<'a>>(&mut self, len: usize, visitor: V) -> Read<V::Value> {
        let text = str::from_utf8(self.take(len)?).map_err(ErrorKind::InvalidUtf8Encoding)?;
        visitor.visit_borrowed_str(text)
    }

    #[inline(always)]
    fn get_byte_buffer(&mut self, len: usize) -> Read<Vec<u8>> {
        Ok(self.take(len)?.to_vec())
    }

    #[inline(always)]
    fn forward_read_bytes<V: Visitor<'a>>(&mut self, len: usize, visitor: V) -> Read<V::Value> {
        visitor.visit_borrowed_bytes(self.take(len)?)
    }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_byte_string_that_was_lengthened_in_place_is_the_one_that_is_encoded_whole(
            number in any::<u64>(), bytes in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let whole = (number, serde_bytes::Bytes::new(&bytes));
            let mut encoded = vec![0; Bincode::size(&whole).unwrap()];
            Bincode::encode(&whole, &mut encoded).unwrap();
            let mut head = [0; 16];
            Bincode::encode(&(number, serde_bytes::Bytes::new(b"")), &mut head).unwrap();
            prop_assert!(Bincode::lengthen(&mut head, bytes.len()));
            prop_assert_eq!([&head[..], &bytes[..]].concat(), encoded);
        }
    }

    #[test]
    fn what_does_not_end_with_an_empty_byte_string_is_left_as_it_is() {
        assert!(!Bincode::lengthen(&mut [0; 7], 1));
        let mut one = [0, 1, 0, 0, 0, 0, 0, 0, 0];
        assert!(!Bincode::lengthen(&mut one, 5));
        assert_eq!(one[1], 1);
    }
}
