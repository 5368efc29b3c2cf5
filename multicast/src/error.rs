//! Why something was refused, and why a group has failed.

use hg::Address;

use crate::machine::{BLOCKS_MAX, SIZE_MAX};

/// Why something could not be begun.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The engine could not be opened, an address not be looked up, memory not be registered.
    #[error(transparent)]
    Engine(#[from] hg::Error),
    /// No random numbers.
    #[error("the system gives no random numbers: {0}")]
    Random(#[source] getrandom::Error),
    /// A thread cannot be started.
    #[error("a thread cannot be started")]
    Thread(#[source] std::io::Error),
    /// A group needs two members or more, each once, and this process among them.
    #[error("{0}")]
    Members(String),
    /// This process is in a group of this id already.
    #[error("this process is in this group already")]
    SameId,
    /// Only the root, member 0, sends.
    #[error("only the root sends, and this is member {0}")]
    NotRoot(u32),
    /// What stands in front of an object is too long.
    #[error("metadata of {len} bytes is over the limit of {max}")]
    MetadataTooLong {
        /// What was given.
        len: usize,
        /// [`METADATA_MAX`](crate::METADATA_MAX).
        max: usize,
    },
    /// It has more blocks or bytes than an object can have. Give it a greater [`block_size`](crate::Options::block_size).
    #[error(
        "{size} bytes in blocks of {block_size} are over the limits of {BLOCKS_MAX} blocks and {SIZE_MAX} bytes"
    )]
    TooLarge {
        /// What was given.
        size: u64,
        /// The size of the group's blocks.
        block_size: u64,
    },
    /// Many objects wait for their turn. Wait for one of them.
    #[error("{0} objects are under way, which is the limit")]
    TooMany(usize),
    /// The object cannot be read.
    #[error("the object cannot be read")]
    Read(#[source] std::io::Error),
    /// The group has failed.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The group, or all of this process's multicast, was closed.
    #[error("the group is closed")]
    Closed,
    /// A group that has not failed is not formed again.
    #[error("the group has not failed")]
    NotFailed,
    /// The ranks of the job did not agree.
    #[cfg(feature = "job")]
    #[error(transparent)]
    Job(#[from] hg_job::Error),
}

/// Why a group has failed. All survivors are told the same member, unless several fail at a time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("member {member} ({address}): {why}")]
pub struct Failure {
    /// Whose fault it is.
    pub member: u32,
    /// Where it was.
    pub address: Address,
    /// In words.
    pub why: String,
}
