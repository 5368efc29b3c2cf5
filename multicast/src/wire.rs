//! What travels between members, how they get to know each other, and where an offered block is.

use hg::bulk::Descriptor;
use serde::{Deserialize, Serialize};

use crate::{id::GroupId, machine::Message};

/// Where an offered block is, and what its bytes have to sum up to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Source {
    pub(crate) place: Place,
    /// XXH3-64 of the block, where the root wants one.
    pub(crate) checksum: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Place {
    /// Here: it is small.
    Inline(#[serde(with = "serde_bytes")] Vec<u8>),
    /// In the memory of whoever offers it.
    At { memory: Descriptor, offset: u64 },
}

/// Why nobody is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("it is not in this group")]
pub(crate) struct Unknown;

/// One member tells another one something; they have met.
#[hg::rpc(name = "hydrargyrum.multicast.tell")]
pub(crate) fn tell(group: GroupId, from: u32, message: Message<Source>);

/// Two processes get to know each other.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Meeting {
    /// I am this member, and want to tell something.
    Meet { from: u32, challenge: u128 },
    /// Whoever was asked with this challenge: say this number.
    Prove { challenge: u128, nonce: u128 },
    /// The number.
    Proof { nonce: u128 },
}

/// Before one member of the group tells another one something, whatever the group.
#[hg::rpc(name = "hydrargyrum.multicast.meet")]
pub(crate) fn meet(group: GroupId, meeting: Meeting);

/// Answered when the target ends all its multicast: what ends otherwise has died.
#[hg::rpc(name = "hydrargyrum.multicast.watch")]
pub(crate) fn watch(group: GroupId, from: u32) -> Result<(), Unknown>;
