//! The networks that daemons own: one both, one the first alone, one the second alone, so that two of the three reach only that one.

use hg_na::Address;

use super::{NODES, OWNER, Random};
use crate::{
    machine::{Network, Switch},
    wire::{FRAME_MAX, FRAME_MIN},
};

/// Those of each node, the preferred one first.
const OWNED: [&[usize]; NODES] = [&[1, 0], &[0], &[1]];
const SCHEMES: [&str; 2] = ["tcp", "verbs"];

fn own(at: usize, network: usize) -> Address {
    format!("{}://node{at}:1", SCHEMES[network]).parse().unwrap()
}

/// One of a node's addresses, or all.
pub(super) fn address(at: usize, random: &mut Random) -> String {
    let all: Vec<_> = OWNED[at].iter().map(|network| own(at, *network).to_string()).collect();
    let pick = random.below(all.len() + 1);
    all.get(pick).cloned().unwrap_or_else(|| all.join("~"))
}

/// A node's daemon, over networks of any length of frames.
pub(super) fn switch(at: usize, random: &mut Random) -> Switch {
    let network = |network: &usize| Network {
        address: own(at, *network),
        frame_max: [FRAME_MIN, 20_000, FRAME_MAX][random.below(3)],
    };
    let networks = OWNED[at].iter().map(network).collect();
    let mut switch = Switch::new(networks, Some(OWNER)).unwrap();
    switch.unanswered_max = 2;
    switch
}

/// Whom a daemon reaches at this address, which of his networks that is, and the longest frame that both take there.
pub(super) fn reached(
    switches: &[Switch],
    from: usize,
    address: &Address,
) -> Option<(usize, usize, usize)> {
    let by = switches[from].network_of(address);
    (0..NODES).find_map(|there| {
        let network = OWNED[there].iter().position(|it| own(there, *it) == *address)?;
        let [near, far] = [(from, by), (there, network)].map(|(at, it)| &switches[at].networks[it]);
        let is_one = near.address.scheme() == far.address.scheme();
        is_one.then(|| (there, network, near.frame_max.min(far.frame_max)))
    })
}
