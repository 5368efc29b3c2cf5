//! What a copy consists of, as the sender says it and a receiver checks it.

use std::{collections::HashSet, fmt};

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::path::Below;

/// A copy: everything that a receiver is to make, folders before what is in them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Bytes of a block.
    pub block: u32,
    /// Whether files that are there are replaced.
    pub force: bool,
    /// Whether times are kept, and modes whatever the receiver's `umask` is.
    pub preserve: bool,
    /// Where it goes, below the receiver's folder; made where it is not there.
    pub into: Option<Below>,
    /// What there is.
    pub entries: Vec<Entry>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub path: Below,
    /// What it is.
    pub what: What,
    /// The twelve bits of `chmod`.
    pub mode: u32,
    /// When it was changed last: seconds, nanoseconds.
    pub mtime: (i64, u32),
}

/// What something is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// A folder.
    Folder,
    /// A file of so many bytes.
    File(u64),
    /// A link, and what it points to; it is made as it is, and never followed out of the receiver's folder.
    Link(ByteBuf),
}

/// A sum of 128 bits, of a block or of a file: XXH3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum(pub [u8; 16]);

impl Sum {
    /// Of a block's bytes.
    #[must_use]
    pub fn of(block: &[u8]) -> Self {
        Self(twox_hash::XxHash3_128::oneshot(block).to_le_bytes())
    }

    /// Of a file with blocks of these sums.
    #[must_use]
    pub fn of_file(size: u64, blocks: &[Self]) -> Self {
        let mut bytes = size.to_le_bytes().to_vec();
        blocks.iter().for_each(|sum| bytes.extend_from_slice(&sum.0));
        Self::of(&bytes)
    }
}

/// What a receiver has already of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The entry's number.
    pub entry: u32,
    /// Whether the file has its name already; otherwise an interrupted copy has left it.
    pub is_target: bool,
    /// Of each block, as it lies there.
    pub sums: Vec<Sum>,
}

/// What went wrong with a path, in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Trouble {
    /// With what.
    pub path: String,
    /// How.
    pub why: String,
}

impl Trouble {
    /// In words.
    pub fn new(path: impl fmt::Display, why: impl fmt::Display) -> Self {
        Self { path: path.to_string(), why: why.to_string() }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&one_line(&format!("{}: {}", self.path, self.why)))
    }
}

/// Without what a terminal obeys: the names of files may hold anything, and a host may say anything.
#[must_use]
pub fn one_line(text: &str) -> String {
    let mut line = String::new();
    for each in text.chars() {
        if each.is_control() {
            line.extend(each.escape_debug());
        } else {
            line.push(each);
        }
    }
    line
}

impl Offer {
    /// Whether a receiver can take it: what came is a claim before this.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), Trouble> {
        let wrong = |why: String| Err(Trouble::new("the sender's list", why));
        if !(BLOCK_MIN..=BLOCK_MAX).contains(&self.block) {
            return wrong(format!(
                "blocks of {} bytes are not between {BLOCK_MIN} and {BLOCK_MAX}",
                self.block
            ));
        }
        if u32::try_from(self.entries.len()).is_err() {
            return wrong("it has more entries than can be numbered".to_owned());
        }
        let (mut paths, mut blocks) = (HashSet::new(), 0_u64);
        for entry in &self.entries {
            if !paths.insert(&entry.path) {
                return Err(Trouble::new(&entry.path, "is there twice in the sender's list"));
            }
            if let What::File(size) = entry.what {
                blocks = blocks.saturating_add(size.div_ceil(self.block.into()));
            }
        }
        if blocks > BLOCKS_MAX {
            let why =
                format!("{blocks} blocks are over {BLOCKS_MAX}: copy with a greater --block-size");
            return wrong(why);
        }
        Ok(())
    }

    /// Blocks of a file of this size.
    #[must_use]
    pub fn blocks(&self, size: u64) -> u32 {
        u32::try_from(size.div_ceil(self.block.into())).unwrap_or(u32::MAX)
    }

    /// Where a block begins in a file of this size, and how long it is; `None`: there is none of this number.
    #[must_use]
    pub fn range(&self, size: u64, block: u32) -> Option<(u64, usize)> {
        let from = u64::from(block) * u64::from(self.block);
        let rest = size.checked_sub(from).filter(|rest| *rest > 0)?;
        let len = rest.min(self.block.into());
        Some((from, usize::try_from(len).expect("a block's length is a u32")))
    }
}

/// Least bytes of a block.
pub const BLOCK_MIN: u32 = 4096;
/// Most bytes of a block.
pub const BLOCK_MAX: u32 = 16 << 20;
/// Blocks of a copy, of each of which a receiver has a sum in memory: 256 MiB of sums, 16 TiB of blocks of 1 MiB.
pub const BLOCKS_MAX: u64 = 1 << 24;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn offer(entries: &[(&str, What)]) -> Offer {
        let entry = |(path, what): &(&str, What)| Entry {
            path: Below::new(*path).unwrap(),
            what: what.clone(),
            mode: if *what == What::Folder { 0o755 } else { 0o644 },
            mtime: (1_000_000, 5),
        };
        let entries = entries.iter().map(entry).collect();
        Offer { block: BLOCK_MIN, force: false, preserve: false, into: None, entries }
    }

    #[test]
    fn a_list_that_cannot_be_taken_is_refused_in_words() {
        let said = |offer: Offer| offer.check().unwrap_err().to_string();
        assert_eq!(offer(&[("a", What::Folder), ("a/b", What::File(3))]).check(), Ok(()));
        let twice = offer(&[("a", What::File(1)), ("a", What::Folder)]);
        assert_eq!(said(twice), "a: is there twice in the sender's list");
        assert!(said(offer(&[("a", What::File(u64::MAX))])).contains("--block-size"));
        assert!(said(Offer { block: 1, ..offer(&[]) }).contains("blocks of 1 bytes"));
    }

    #[test]
    fn blocks_cover_a_file_once() {
        let offer = offer(&[]);
        for size in [0, 1, 4095, 4096, 4097, 10_000] {
            let ranges: Vec<_> = (0..).map_while(|block| offer.range(size, block)).collect();
            assert_eq!(ranges.len(), offer.blocks(size) as usize);
            let end = ranges.iter().fold(0, |end, (from, len)| {
                assert_eq!(*from, end);
                end + *len as u64
            });
            assert_eq!(end, size);
        }
    }
}
