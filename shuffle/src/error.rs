//! Errors, ordered by what the caller can do.

use std::fmt;

/// Why a shuffle did not do what it was asked.
///
/// Shown by `{:?}`, as where `main` returns it, it is the same sentence with the name of its variant.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no room for the message now; only `try_enqueue` says so.
    #[error("no room for the message now: try again, or use `enqueue`, which waits")]
    Again,
    /// Only in a callback: messages that callbacks have sent wait for room, more of them than
    /// [`Options::callback_bytes_max`](crate::Options::callback_bytes_max), and none of them leaves. This one was not
    /// taken. Callbacks that send more than they are sent do so from a thread of their own.
    #[error(
        "{bytes} bytes of messages that callbacks have sent wait for room, and {why}: send them from another thread"
    )]
    CallbackFull {
        /// Bytes that wait.
        bytes: u64,
        /// Why they will not leave.
        why: String,
    },
    /// The message is longer than [`MESSAGE_MAX`](crate::MESSAGE_MAX).
    #[error("a message of {len} bytes is over the limit of {max}")]
    TooLong {
        /// Its bytes.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The job has fewer ranks.
    #[error("there is no rank {rank}: the job has {size}")]
    NoSuchRank {
        /// The rank that was named.
        rank: u32,
        /// Ranks of the job.
        size: u32,
    },
    /// An option has a value that cannot work.
    #[error("option `{name}`: {why}")]
    BadOption {
        /// Its name.
        name: &'static str,
        /// What is wrong with its value.
        why: String,
    },
    /// The shuffle did not come to be: a transport or setting that cannot work here, or ranks that did not come together.
    #[error("the shuffle cannot begin: {0}")]
    Setup(String),
    /// A rank or the way to it is gone; this shuffle sends nothing more.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The shuffle was shut down; or one of its callbacks has asked for what would wait for callbacks (a flush, a barrier, the end).
    #[error("the shuffle was shut down, or this waits for callbacks and was called in one")]
    Closed,
}

impl fmt::Debug for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Again => "Again",
            Self::CallbackFull { .. } => "CallbackFull",
            Self::TooLong { .. } => "TooLong",
            Self::NoSuchRank { .. } => "NoSuchRank",
            Self::BadOption { .. } => "BadOption",
            Self::Setup(_) => "Setup",
            Self::Failed(_) => "Failed",
            Self::Closed => "Closed",
        };
        write!(out, "{self} [{kind}]")
    }
}

/// What has ended a shuffle before its time. Every rank learns of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "rank {rank} failed ({hop}): {why}; {in_doubt} messages of this rank are in doubt, {dropped} were dropped here"
)]
pub struct Failure {
    /// The rank that does not answer any more.
    pub rank: u32,
    /// Where that was noticed.
    pub hop: Hop,
    /// Messages sent by this rank since the last complete `flush_all` whose way leads through a failed rank, less those
    /// that were dropped here: they were delivered once or not at all. Each other one arrives.
    pub in_doubt: u64,
    /// Messages sent by this rank that had not left it when their next hop was gone: they are not delivered.
    pub dropped: u64,
    /// What was noticed.
    pub why: String,
}

/// A hop of the way of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Hop {
    /// Inside the sender's node.
    Origin,
    /// From node to node.
    Network,
    /// Inside the destination's node.
    Relay,
    /// At the destination itself.
    Delivery,
}

impl fmt::Display for Hop {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Origin => "the hop inside the sender's node",
            Self::Network => "the hop between nodes",
            Self::Relay => "the hop inside the destination's node",
            Self::Delivery => "delivery",
        })
    }
}

/// What is said of a rank whose callback has panicked.
pub(crate) const PANICKED: &str = "its callback panicked";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_main_prints_of_an_error_is_its_sentence_and_its_kind() {
        let said = format!("{:?}", Error::NoSuchRank { rank: 4, size: 4 });
        assert_eq!(said, "there is no rank 4: the job has 4 [NoSuchRank]");
    }
}
