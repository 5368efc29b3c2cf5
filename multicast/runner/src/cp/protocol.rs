//! What a sender asks its receivers, beside what travels in the group.

use std::time::Duration;

use hg_multicast_copy::offer::{Held, Offer, Trouble};
use serde::{Deserialize, Serialize};

/// A sender's own random number: a receiver serves one sender at a time.
pub(crate) type Session = [u8; 16];

/// A copy begins, or begins again: what is there of it already?
#[hg::rpc(name = "multicast-cp.offer")]
pub(crate) fn offer(session: Session, offer: Offer) -> Result<Vec<Held>, Trouble>;

/// These entries are there as they should be, and those will not come. What else has no bytes is made.
#[hg::rpc(name = "multicast-cp.settle")]
pub(crate) fn settle(session: Session, same: Vec<u32>, lost: Vec<u32>) -> Result<(), Trouble>;

/// The group by which the bytes come.
#[hg::rpc(name = "multicast-cp.join")]
pub(crate) fn join(session: Session, members: Members) -> Result<(), Trouble>;

/// All has been sent, and the group is closed: has all come?
#[hg::rpc(name = "multicast-cp.finish")]
pub(crate) fn finish(session: Session) -> Result<(), Trouble>;

/// Is anybody there? Both sides answer at once, whatever they are at work with.
#[hg::rpc(name = "multicast-cp.here")]
pub(crate) fn here();

/// The members of a group, of which the sender is the first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Members {
    pub(crate) group: [u8; 16],
    pub(crate) block: u32,
    pub(crate) addresses: Vec<String>,
    /// The receiver's own place.
    pub(crate) own: u32,
}

/// How long a sign of life may take.
pub(crate) const SIGN_WITHIN: Duration = Duration::from_secs(2);
/// Bytes of a part, about: as many are in memory of each receiver, twice, and of the sender, [`WINDOW`] times.
pub(crate) const PART: usize = 32 << 20;
/// Longest part that a receiver takes: a block more than a sender begins one with, and its records.
pub(crate) const PART_MAX: u64 = 64 << 20;
/// Parts under way at a time.
pub(crate) const WINDOW: usize = 3;
