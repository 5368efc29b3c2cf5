//! What members tell one another. Whatever it says is a claim.

use serde::{Deserialize, Serialize};

use super::{BLOCKS_MAX, SIZE_MAX};
use crate::schedule::{Kind, WHOLE_BLOCKS_MAX};

/// Bytes that may stand in front of an object.
pub const METADATA_MAX: usize = 4096;
/// What an object that nobody has received takes, as it counts beside its own bytes.
const OBJECT_BYTES: u64 = 256;
/// What each of its blocks takes: its checksum, its place in the order in which they have come, and a bit.
const BLOCK_BYTES: u64 = 25;
/// Longest reason that is passed on, in bytes.
const WHY_MAX: usize = 512;
/// No root comes to numbers of objects from here.
pub(super) const NUMBERS_END: u64 = 1 << 63;

/// What an object is, with the first offer that a neighbour makes of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) size: u64,
    pub(crate) block_size: u64,
    pub(crate) kind: Kind,
    /// The members that it goes to, the root first; `None`: all.
    pub(crate) among: Option<Vec<u32>>,
    #[serde(with = "serde_bytes")]
    pub(crate) metadata: Vec<u8>,
}

impl Header {
    /// One at least: an object without a byte has an empty one.
    pub(crate) fn blocks(&self) -> u64 {
        self.size.div_ceil(self.block_size).max(1)
    }

    /// Whether who takes its blocks says only that the object is whole: straight from the root, and few.
    pub(crate) fn is_taken_whole(&self) -> bool {
        self.kind == Kind::Direct && self.blocks() <= WHOLE_BLOCKS_MAX
    }

    /// What it counts among the bytes that nobody has received, beside its memory.
    pub(crate) fn kept(&self) -> u64 {
        self.metadata.len() as u64 + OBJECT_BYTES + self.blocks() * BLOCK_BYTES
    }

    /// Where a block begins, and how long it is.
    pub(crate) fn range(&self, block: u64) -> (u64, u64) {
        let start = block * self.block_size;
        (start, self.block_size.min(self.size - start))
    }

    /// Whether it can be what it says it is, among so many members.
    pub(crate) fn is_sound(&self, members: u32) -> bool {
        let is_known = |among: &Vec<u32>| {
            among.first() == Some(&0)
                && among.windows(2).all(|two| two[0] < two[1])
                && among.last() < Some(&members)
        };
        is_possible(self.size, self.block_size)
            && self.metadata.len() <= METADATA_MAX
            && self.among.as_ref().is_none_or(is_known)
    }
}

/// Whether an object of this size can go by blocks of that one.
pub(crate) fn is_possible(size: u64, block_size: u64) -> bool {
    block_size > 0 && size <= SIZE_MAX && size.div_ceil(block_size) <= BLOCKS_MAX
}

/// A message; `S` says where an offered block is, which is the driver's business.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message<S> {
    /// To the root: this member is there. With a digest of what it was told of the group, and how many objects it has whole.
    Join { digest: u64, whole: u64 },
    /// From the root: who is there already?
    Call,
    /// From the root: all are there, and the next object is this one.
    Begin { next: u64 },
    /// Here is a block.
    Offer { object: u64, block: u64, header: Option<Header>, source: S },
    /// The block that was offered is here but for its end: who offers it may offer the next one, so that what is said about
    /// that one need not stand behind this one's bytes.
    Nearly { object: u64, block: u64 },
    /// The block that was offered is here, and need not be kept for this member.
    Took { object: u64, block: u64 },
    /// To the root: this many objects are whole here.
    Whole { count: u64 },
    /// From the root: every object is whole everywhere, and this was all.
    Closed { count: u64 },
    /// To the root: that was heard.
    Bye,
    /// A member has failed, or failed the group.
    Failed { member: u32, why: String },
    /// Something of that member could not be pulled: is its group alive?
    Ask,
    /// It is; so the fault is that member's. If it is not, the answer is why it has failed.
    Answer,
    /// The first of these members leads: the group goes on as this one, of them. Whoever hears it first from anybody tells the others.
    Reform { id: [u64; 2], members: Vec<u32> },
    /// To the root: a receiver that this one passes blocks to, or takes them from, has ended or is not reached from here.
    Unreachable { member: u32, why: String },
}

/// A reason that is passed on is no longer than this.
pub(super) fn bounded(why: &str) -> String {
    let end = why.char_indices().map(|it| it.0 + it.1.len_utf8()).take_while(|it| *it <= WHY_MAX);
    why[..end.last().unwrap_or(0)].to_owned()
}
