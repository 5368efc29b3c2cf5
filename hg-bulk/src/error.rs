//! How a transfer can fail, ordered by what the caller can do.

use std::fmt;

use hg_na::{Error as NaError, GoneReason, Rights};

/// Why a transfer has not moved everything. Whatever it has moved before stays where it was put.
///
/// Shown by `{:?}`, as where `main` returns it, it is the same sentence with the name of its variant.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The deadline has passed.
    #[error("the deadline of the transfer has passed")]
    DeadlineExceeded,
    /// The caller has cancelled the transfer.
    #[error("the transfer was cancelled")]
    Cancelled,
    /// The owner of the remote memory is gone, and the memory with it.
    #[error("the owner of the memory is gone: {reason}")]
    PeerGone {
        /// What happened to it.
        reason: GoneReason,
    },
    /// The memory was unregistered by its owner, or never registered. Ask the owner for a new descriptor.
    #[error("{}", NaError::StaleDescriptor)]
    Stale,
    /// One of the two memories does not grant what the transfer needs.
    #[error("the memory grants {granted}, the transfer needs {needed}")]
    Denied {
        /// Rights of the memory.
        granted: Rights,
        /// Rights that the transfer needs.
        needed: Rights,
    },
    /// The range does not lie inside the memory.
    #[error("range of {len} bytes at {offset} is outside of memory of {size} bytes")]
    OutOfRange {
        /// First byte of the range.
        offset: u64,
        /// Length of the range in bytes.
        len: u64,
        /// Size of the memory in bytes.
        size: u64,
    },
    /// The two ranges are not equally long. Cut them to the same length.
    #[error(
        "the local range has {local} bytes, the remote one {remote}: cut them to the same length"
    )]
    Unequal {
        /// Length of the local range in bytes.
        local: u64,
        /// Length of the remote range in bytes.
        remote: u64,
    },
    /// The transfer could not be made, or not to its end.
    #[error("the transfer could not be made: {0}")]
    NotMade(NaError),
    /// `wait` was called in a handler that runs on the progress thread, where it could never end.
    /// Use an `async fn` or a blocking handler.
    #[error(
        "waiting inside this handler would block the progress that it waits for: `.await` it in an `async fn` handler, or `wait` in one with `#[hg::rpc(blocking)]`"
    )]
    WouldDeadlock,
    /// The engine was closed. Open a new one.
    #[error("{}", NaError::Closed)]
    Closed,
}

impl fmt::Debug for TransferError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::Cancelled => "Cancelled",
            Self::PeerGone { .. } => "PeerGone",
            Self::Stale => "Stale",
            Self::Denied { .. } => "Denied",
            Self::OutOfRange { .. } => "OutOfRange",
            Self::Unequal { .. } => "Unequal",
            Self::NotMade(error) => return write!(out, "{self} [NotMade: {}]", error.kind()),
            Self::WouldDeadlock => "WouldDeadlock",
            Self::Closed => "Closed",
        };
        write!(out, "{self} [{kind}]")
    }
}

impl From<NaError> for TransferError {
    fn from(error: NaError) -> Self {
        match error {
            NaError::Cancelled => Self::Cancelled,
            NaError::Closed => Self::Closed,
            NaError::PeerGone(reason) => Self::PeerGone { reason },
            NaError::UnknownPeer => Self::PeerGone { reason: GoneReason::Closed },
            NaError::StaleDescriptor => Self::Stale,
            NaError::Denied { granted, needed } => Self::Denied { granted, needed },
            NaError::OutOfRange { offset, len, size } => Self::OutOfRange { offset, len, size },
            other => Self::NotMade(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_words_of_the_sentence() {
        let denied = TransferError::Denied { granted: Rights::WRITE, needed: Rights::READ };
        let said = "the memory grants WRITE, the transfer needs READ";
        assert_eq!(denied.to_string(), said);
    }

    #[test]
    fn what_the_caller_can_mend_comes_with_what_to_do() {
        let unequal = TransferError::Unequal { local: 1, remote: 2 };
        let said = "the local range has 1 bytes, the remote one 2: cut them to the same length";
        assert_eq!(unequal.to_string(), said);
        let stale = TransferError::from(NaError::StaleDescriptor).to_string();
        assert!(stale.ends_with(": ask its owner for a new one"), "{stale}");
        let busy = NaError::RegionBusy.to_string();
        assert!(busy.ends_with(" drop its ranges, then try again"), "{busy}");
    }

    #[test]
    fn what_main_prints_of_an_error_is_its_sentence_and_its_kind() {
        let said = format!("{:?}", TransferError::Closed);
        assert_eq!(said, "the engine was closed: open a new one [Closed]");
        let said = format!("{:?}", TransferError::from(NaError::Forked));
        assert!(said.starts_with("the transfer could not be made: this engine was opened"));
        assert!(said.ends_with(" [NotMade: Forked]"), "{said}");
    }
}
