//! A part of a copy: blocks of one or of many files in one object, which says itself what is in it.
//!
//! # Layout   (little-endian)
//! | offset        | size | field     | meaning                                                             |
//! |--------------:|-----:|-----------|---------------------------------------------------------------------|
//! |             0 |    4 | `blocks`  | how many blocks there are                                           |
//! |             4 |    4 | `ends`    | how many files end with this part                                   |
//! |             8 |   24 | a block   | entry, number of the block in it, sum; `blocks` times               |
//! | + 24 `blocks` |   20 | an end    | entry, sum of the file; `ends` times                                |
//! | + 20 `ends`   |      | bytes     | of each block, one after the other; as long as the entry's size says |

use crate::offer::{Offer, Sum, What};

/// One that is made.
#[derive(Debug, Default)]
pub struct Writer {
    blocks: Vec<u8>,
    ends: Vec<u8>,
    bytes: Vec<u8>,
}

/// One that came: claims about what is in it, checked as they are read.
#[derive(Debug)]
pub struct Reader<'a> {
    blocks: &'a [[u8; BLOCK]],
    ends: &'a [[u8; END]],
    bytes: &'a [u8],
}

/// A block that came.
#[derive(Debug, PartialEq, Eq)]
pub struct Block<'a> {
    /// The entry's number.
    pub entry: u32,
    /// The block's number in it.
    pub block: u32,
    /// Where it begins there.
    pub from: u64,
    /// What it should sum up to.
    pub sum: Sum,
    /// What it holds.
    pub bytes: &'a [u8],
}

/// What came is no part of the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what came is no part of this copy")]
pub struct Malformed;

impl Writer {
    /// Appends a block, which `read` fills; it is not there when that fails.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn block<E>(
        &mut self,
        (entry, block): (u32, u32),
        len: usize,
        read: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Sum, E> {
        let from = self.bytes.len();
        self.bytes.resize(from + len, 0);
        if let Err(error) = read(&mut self.bytes[from..]) {
            self.bytes.truncate(from);
            return Err(error);
        }
        let sum = Sum::of(&self.bytes[from..]);
        self.blocks.extend_from_slice(&entry.to_le_bytes());
        self.blocks.extend_from_slice(&block.to_le_bytes());
        self.blocks.extend_from_slice(&sum.0);
        Ok(sum)
    }

    /// Says that a file is whole with this part.
    pub fn end(&mut self, entry: u32, sum: Sum) {
        self.ends.extend_from_slice(&entry.to_le_bytes());
        self.ends.extend_from_slice(&sum.0);
    }

    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        HEAD + self.blocks.len() + self.ends.len() + self.bytes.len()
    }

    /// Whether nothing was appended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.ends.is_empty()
    }

    /// The object.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        let count =
            |bytes: &[u8], each| u32::try_from(bytes.len() / each).expect("a part has few blocks");
        let mut object = Vec::with_capacity(self.len());
        object.extend_from_slice(&count(&self.blocks, BLOCK).to_le_bytes());
        object.extend_from_slice(&count(&self.ends, END).to_le_bytes());
        object.extend_from_slice(&self.blocks);
        object.extend_from_slice(&self.ends);
        object.extend_from_slice(&self.bytes);
        object
    }
}

impl<'a> Reader<'a> {
    /// Of what came.
    ///
    /// # Errors
    /// It is too short for what it says.
    pub fn new(object: &'a [u8]) -> Result<Self, Malformed> {
        let (head, rest) = object.split_first_chunk::<HEAD>().ok_or(Malformed)?;
        let number = |at: usize| {
            u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize
        };
        let (blocks, ends) = (number(0).checked_mul(BLOCK), number(4).checked_mul(END));
        let (blocks, rest) = rest.split_at_checked(blocks.ok_or(Malformed)?).ok_or(Malformed)?;
        let (ends, bytes) = rest.split_at_checked(ends.ok_or(Malformed)?).ok_or(Malformed)?;
        Ok(Self { blocks: blocks.as_chunks().0, ends: ends.as_chunks().0, bytes })
    }

    /// The blocks, each of a file of the offer and inside of it.
    ///
    /// # Errors
    /// One is not, or there are fewer or more bytes than those of all blocks.
    pub fn blocks(&self, offer: &Offer) -> Result<Vec<Block<'a>>, Malformed> {
        let (mut blocks, mut rest) = (Vec::new(), self.bytes);
        for claim in self.blocks {
            let (entry, block, sum) = (number(claim, 0), number(claim, 4), sum(&claim[8..]));
            let What::File(size) = offer.entries.get(entry as usize).ok_or(Malformed)?.what else {
                return Err(Malformed);
            };
            let (from, len) = offer.range(size, block).ok_or(Malformed)?;
            let (bytes, after) = rest.split_at_checked(len).ok_or(Malformed)?;
            rest = after;
            blocks.push(Block { entry, block, from, sum, bytes });
        }
        if rest.is_empty() { Ok(blocks) } else { Err(Malformed) }
    }

    /// The files that end, and their sums.
    ///
    /// # Errors
    /// One is no file of the offer.
    pub fn ends(&self, offer: &Offer) -> Result<Vec<(u32, Sum)>, Malformed> {
        let end = |claim: &[u8; END]| {
            let entry = number(claim, 0);
            let found = offer.entries.get(entry as usize);
            let is_file = found.is_some_and(|found| matches!(found.what, What::File(_)));
            is_file.then(|| (entry, sum(&claim[4..]))).ok_or(Malformed)
        };
        self.ends.iter().map(end).collect()
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn sum(bytes: &[u8]) -> Sum {
    Sum(*bytes.first_chunk().expect("both kinds of records end with a sum"))
}

const HEAD: usize = 8;
const BLOCK: usize = 24;
const END: usize = 20;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::offer::tests::offer;

    fn example() -> (Offer, Vec<u8>) {
        let offer = offer(&[("d", What::Folder), ("d/a", What::File(5000)), ("b", What::File(3))]);
        let mut writer = Writer::default();
        for (at, len) in [((1, 1), 904), ((1, 0), 4096), ((2, 0), 3)] {
            let fill = |bytes: &mut [u8]| -> Result<(), ()> {
                bytes.fill(7);
                Ok(())
            };
            assert_eq!(writer.block(at, len, fill), Ok(Sum::of(&vec![7; len])));
        }
        assert_eq!(writer.block((2, 0), 3, |_| Err("gone")), Err("gone"));
        writer.end(2, Sum([9; 16]));
        (offer, writer.finish())
    }

    #[test]
    fn what_was_written_is_read() {
        let (offer, object) = example();
        let reader = Reader::new(&object).unwrap();
        let blocks = reader.blocks(&offer).unwrap();
        let places: Vec<_> =
            blocks.iter().map(|it| (it.entry, it.block, it.from, it.bytes.len())).collect();
        assert_eq!(places, [(1, 1, 4096, 904), (1, 0, 0, 4096), (2, 0, 0, 3)]);
        assert!(blocks.iter().all(|block| Sum::of(block.bytes) == block.sum));
        assert_eq!(reader.ends(&offer), Ok(vec![(2, Sum([9; 16]))]));
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_block_outside_of_its_file(
            bytes in prop::collection::vec(any::<u8>(), 0..64),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut: prop::sample::Index,
            is_random: bool,
        ) {
            let (offer, mut object) = example();
            if is_random {
                object = bytes;
            } else {
                for (at, byte) in changes {
                    let at = at.index(108);
                    object[at] = byte;
                }
                object.truncate(cut.index(object.len() + 1));
            }
            let Ok(reader) = Reader::new(&object) else { return Ok(()) };
            for block in reader.blocks(&offer).unwrap_or_default() {
                let What::File(size) = offer.entries[block.entry as usize].what else { panic!("no file") };
                prop_assert!(!block.bytes.is_empty() && block.from + block.bytes.len() as u64 <= size);
            }
            for (entry, _) in reader.ends(&offer).unwrap_or_default() {
                prop_assert!(matches!(offer.entries[entry as usize].what, What::File(_)));
            }
        }
    }
}
