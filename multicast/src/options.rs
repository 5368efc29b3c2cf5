//! How a group works. What the root says goes for its objects: receivers learn it with the first block.

use std::time::Duration;

use hg::Address;

use crate::{error::Error, machine::STEPPED_ROOM_MAX, schedule::Choice};

/// How a group works. The root's block size and schedule count.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Bytes of a block; `None`: by the size of the object ([`Group::block_size`](crate::Group::block_size)).
    pub block_size: Option<u64>,
    /// Who passes what on to whom.
    pub schedule: Choice,
    /// On which node each member is, for [`Choice::Hybrid`] and [`Choice::Auto`]; `None`: as their addresses say.
    pub nodes: Option<Vec<u32>>,
    /// Blocks that a member has on their way at a time, 1 to 8; large ones that are there but for their end come on top.
    pub in_flight: u32,
    /// Bytes that may wait for [`Group::receive`](crate::Group::receive) before no further object is begun here, which then holds up the
    /// group: allocated memory, and for each object its metadata, 256 bytes, and 25 bytes a block.
    pub untaken_bytes_max: u64,
    /// Whether blocks carry a checksum, which each receiver verifies.
    pub checksum: bool,
    /// How long the group waits for its members to join.
    pub join_within: Duration,
    /// Whether to note when each block comes and goes ([`Group::take_trace`](crate::Group::take_trace)).
    pub trace: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            block_size: None,
            schedule: Choice::Auto,
            nodes: None,
            in_flight: 1,
            untaken_bytes_max: 1 << 30,
            checksum: true,
            join_within: Duration::from_secs(30),
            trace: false,
        }
    }
}

impl Options {
    /// On which node each member is.
    pub(crate) fn check(&self, members: &[Address], own: u32) -> Result<Vec<u32>, Error> {
        let bad = |why: &str| Err(Error::Members(why.to_owned()));
        let mut sorted: Vec<_> = members.iter().collect();
        sorted.sort_unstable();
        let is_here = u64::from(own) < members.len() as u64;
        if members.len() < 2 || members.len() > u32::MAX as usize {
            return bad("a group has two members or more");
        }
        if sorted.windows(2).any(|two| two[0] == two[1]) {
            return bad("a member's address stands twice in the group");
        }
        if !is_here {
            return bad("this process is none of the members");
        }
        if self.in_flight == 0 || self.in_flight as usize > STEPPED_ROOM_MAX {
            return bad("1 to 8 blocks are offered at a time");
        }
        if self.block_size == Some(0) {
            return bad("a block has one byte or more");
        }
        match &self.nodes {
            Some(nodes) if nodes.len() != members.len() => bad("each member is on one node"),
            Some(nodes) => Ok(nodes.clone()),
            None => Ok(nodes_of(members)),
        }
    }
}

/// As the addresses say: shared memory is on one node, an address of several transports names its node, others stand alone.
fn nodes_of(members: &[Address]) -> Vec<u32> {
    let node = |address: &Address| match address.scheme() {
        "sm" => Some(String::new()),
        hg::na::UID => address.rest().split_once('#').map(|it| it.0.to_owned()),
        _ => None,
    };
    let names: Vec<_> = members.iter().map(node).collect();
    let first = |place: usize| {
        let same = |it: &Option<String>| it.is_some() && *it == names[place];
        names.iter().position(same).unwrap_or(place)
    };
    (0..names.len()).map(|place| u32::try_from(first(place)).unwrap_or(u32::MAX)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_whose_addresses_name_one_node_are_on_one() {
        let addresses = [
            "uid://n1#sm://a#tcp://10.0.0.1:1",
            "tcp://10.0.0.1:2",
            "uid://n2#sm://a#tcp://10.0.0.2:1",
            "sm://a",
            "uid://n1#sm://b#tcp://10.0.0.1:3",
            "tcp://10.0.0.1:4",
            "sm://b",
            "uid://n2#tcp://10.0.0.2:2",
        ];
        let members = addresses.map(|it| Address::new(it).unwrap());
        assert_eq!(nodes_of(&members), [0, 1, 2, 3, 0, 5, 3, 2]);
    }
}
