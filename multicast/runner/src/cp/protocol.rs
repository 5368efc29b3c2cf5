//! What a sender asks its receivers, beside what travels in the group.

use std::time::Duration;

use hg_multicast::Failure;
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
    /// What people call them.
    pub(crate) names: Vec<String>,
    /// The receiver's own place.
    pub(crate) own: u32,
}

/// Why a group has failed, for people, who know its members by these names.
pub(crate) fn words(failure: &Failure, names: &[String]) -> String {
    let name = |member: u32| names.get(member as usize).map(String::as_str);
    let who = name(failure.member).unwrap_or(failure.address.as_str());
    format!("{who}: {}", reason(failure, names))
}

/// The same of somebody whose name stands in front of it already.
pub(crate) fn reason(failure: &Failure, names: &[String]) -> String {
    let (why, numbers) = (&failure.why, 0_u32..);
    // So it says who has lost it.
    let told = numbers.zip(names).find_map(|(member, name)| {
        Some(format!("{name} {}", why.strip_prefix(&format!("member {member} "))?))
    });
    told.unwrap_or_else(|| why.clone())
}

/// How long a sign of life may take.
pub(crate) const SIGN_WITHIN: Duration = Duration::from_secs(2);
/// Bytes of a part, about: as many are in memory of each receiver, twice, and of the sender, [`WINDOW`] times.
pub(crate) const PART: usize = 32 << 20;
/// Longest part that a receiver takes: a block more than a sender begins one with, and its records.
pub(crate) const PART_MAX: u64 = 64 << 20;
/// Parts under way at a time.
pub(crate) const WINDOW: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_called_by_the_names_of_their_hosts() {
        let names = ["the sender", "node1", "node2"].map(str::to_owned);
        let failed = |member, why: &str| {
            let address = "tcp://10.0.0.1:5".parse().unwrap();
            words(&Failure { member, address, why: why.to_owned() }, &names)
        };
        assert_eq!(failed(2, "its process has ended"), "node2: its process has ended");
        assert_eq!(
            failed(0, "member 2 does not reach it: cut off"),
            "the sender: node2 does not reach it: cut off"
        );
        assert_eq!(failed(9, "member 99 is odd"), "tcp://10.0.0.1:5: member 99 is odd");
    }
}
