//! What the processes of a shuffle call at each other.

use hg::CallError;
use serde::{Deserialize, Serialize};

use crate::{Hop, message::Malformed, route::Came, secret::Id};

/// In front of everything: in which shuffle, and who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct From {
    /// Of this rank and the called one: who has not met the ranks does not know it.
    pub(crate) shuffle: Id,
    pub(crate) rank: u32,
}

/// The kind of queue that a batch comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Lane {
    Origin,
    Relay,
    Network,
}

impl Lane {
    /// How its messages have come when they arrive.
    pub(crate) fn came(self) -> Came {
        match self {
            Self::Origin => Came::FromNode,
            Self::Network => Came::FromNetwork,
            Self::Relay => Came::Relayed,
        }
    }

    /// The lane of a hop; none delivers.
    pub(crate) fn of_hop(hop: Hop) -> Option<Self> {
        match hop {
            Hop::Origin => Some(Self::Origin),
            Hop::Relay => Some(Self::Relay),
            Hop::Network => Some(Self::Network),
            Hop::Delivery => None,
        }
    }

    pub(crate) fn hop(self) -> Hop {
        match self {
            Self::Origin => Hop::Origin,
            Self::Relay => Hop::Relay,
            Self::Network => Hop::Network,
        }
    }
}

/// Why a rank did not take a batch, said of that rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum Refused {
    #[error("it has no such shuffle")]
    Unknown,
    #[error("it got a batch that does not hold whole messages")]
    Malformed,
    #[error("it got a message that must not come this way: the ranks route by different maps")]
    Misrouted,
    #[error("it got a batch out of order")]
    OutOfOrder,
    #[error("it has closed the shuffle")]
    Closed,
}

impl std::convert::From<Malformed> for Refused {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// Why a rank failed, in words of ranks and messages: how they travel is nobody's business who reads it.
pub(crate) fn why(error: &CallError<Refused>) -> String {
    match error {
        CallError::Handler(refused) => refused.to_string(),
        CallError::PeerGone { reason, .. } => reason.to_string(),
        CallError::DeadlineExceeded(_) => "it did not answer in time".to_owned(),
        CallError::Cancelled | CallError::Closed => "this rank has ended the shuffle".to_owned(),
        CallError::NoSuchRpc { .. } => Refused::Unknown.to_string(),
        CallError::Rejected(why) => format!("it does not take messages: {why}"),
        CallError::SignatureMismatch(_) => "it runs another version".to_owned(),
        CallError::Decode(why) | CallError::Incompatible(why) => {
            format!("it runs another version: {why}")
        }
        CallError::Panicked(why) => format!("it panicked: {why}"),
        CallError::NotMade(why) => format!("nothing can be sent to it: {why}"),
        // What only a handler that waits is told, and a shuffle has none.
        other => other.to_string(),
    }
}

/// A batch: its number in its queue, and its messages. Answered when none of them waits any more.
#[hg::rpc(name = "hydrargyrum.shuffle.batch")]
pub(crate) fn batch(from: From, lane: Lane, number: u64, messages: &[u8]) -> Result<(), Refused>;

/// Answered when every rank has arrived.
#[hg::rpc(name = "hydrargyrum.shuffle.arrive")]
pub(crate) fn arrive(from: From) -> Result<(), Refused>;

/// Answered when the target closes its shuffle in good order: what ends otherwise is a failure.
#[hg::rpc(name = "hydrargyrum.shuffle.watch")]
pub(crate) fn watch(from: From) -> Result<(), Refused>;

/// A rank has failed; passed on to everybody.
#[hg::rpc(name = "hydrargyrum.shuffle.failed")]
pub(crate) fn failed(from: From, rank: u32, lane: Option<Lane>, why: String);

/// After a failure: nothing more comes from there in this kind of queue.
#[hg::rpc(name = "hydrargyrum.shuffle.over")]
pub(crate) fn over(from: From, lane: Lane);

#[cfg(test)]
mod tests {
    use hg::{GoneReason, Started};

    use super::*;

    #[test]
    fn no_reason_speaks_of_calls_handlers_or_targets() {
        let text = || "a sentence".to_owned();
        let errors = [
            CallError::Handler(Refused::Unknown),
            CallError::Handler(Refused::Malformed),
            CallError::Handler(Refused::Misrouted),
            CallError::Handler(Refused::OutOfOrder),
            CallError::Handler(Refused::Closed),
            CallError::PeerGone { reason: GoneReason::Exited, started: Started::Unknown },
            CallError::DeadlineExceeded(Started::No),
            CallError::Cancelled,
            CallError::Closed,
            CallError::NoSuchRpc { name: "hydrargyrum.shuffle.batch" },
            CallError::Rejected(text()),
            CallError::Decode(text()),
            CallError::Incompatible(text()),
            CallError::SignatureMismatch(Box::new(hg::SignatureMismatch {
                name: "hydrargyrum.shuffle.batch",
                caller: "",
                target: text(),
            })),
            CallError::Panicked(text()),
            CallError::NotMade(hg::Error::Again),
        ];
        for error in errors {
            let said = why(&error);
            let words = ["call", "handler", "target", "RPC"];
            assert!(!words.iter().any(|word| said.contains(word)), "{said}");
        }
        let gone = CallError::PeerGone { reason: GoneReason::Exited, started: Started::No };
        assert_eq!(why(&gone), "its process has ended");
    }
}
