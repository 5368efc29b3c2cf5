//! What the processes of a shuffle call at each other.

use serde::{Deserialize, Serialize};

use crate::{Hop, route::Came};

/// In front of everything: which shuffle, and who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct From {
    /// Of the shuffle's name.
    pub(crate) shuffle: u64,
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

/// Why a batch was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum Refused {
    #[error("it belongs to no shuffle of this process")]
    Unknown,
    #[error("it does not hold whole messages")]
    Malformed,
    #[error("it holds a message that must not come this way: the ranks route by different maps")]
    Misrouted,
    #[error("its number is not the next one")]
    OutOfOrder,
    #[error("the shuffle is closed")]
    Closed,
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
