//! Which way a message goes: a pure function of the map from ranks to nodes.
//!
//! ```text
//!   SRC --shared memory--> SRCREP --network--> DSTREP --shared memory--> DST
//! ```
//! Between two nodes there is one pair of representatives, the same for both directions: towards node n, the rank
//! of this node with local index (n mod ranks of this node); on node n, the rank with local index (this node mod
//! ranks of node n). Hops are skipped where sender and representative coincide, and inside a node messages go
//! directly. So a process needs a queue for each rank of its node and for each node that it represents, instead of
//! one for each rank. The rule is that of deltafs-nexus.

mod plan;
mod start;

use std::{ops::Range, sync::Arc};

use hg_job::NodeMap;

pub use self::{
    plan::{Extremes, Plan, Process},
    start::{SimulatedStart, Start},
};

/// How a message came to the process that routes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Came {
    /// It was sent here.
    FromHere,
    /// From a rank of this node, in an origin queue.
    FromNode,
    /// From the representative of another node.
    FromNetwork,
    /// From a rank of this node, in a relay queue: it is at its destination.
    Relayed,
}

/// Where a message goes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Next {
    /// Nowhere: this is its destination.
    Deliver,
    /// To a rank of this node, which is its destination or represents this node towards the destination's.
    Origin {
        /// The rank.
        rank: u32,
    },
    /// To the representative of another node.
    Network {
        /// The rank.
        rank: u32,
        /// Its node.
        node: u32,
    },
    /// From the network to its destination on this node.
    Relay {
        /// The rank.
        rank: u32,
    },
}

/// A message that must not be here: whoever sent it routes by another map, or is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message to rank {to} must not come to rank {me} this way")]
pub struct Misrouted {
    /// The message's destination.
    pub to: u32,
    /// This rank.
    pub me: u32,
}

/// The routes of one process.
#[derive(Debug, Clone)]
pub struct Routes {
    me: u32,
    node: u32,
    local: u32,
    map: Arc<NodeMap>,
}

impl Routes {
    /// # Panics
    /// The map has no rank `me`.
    #[must_use]
    pub fn new(map: Arc<NodeMap>, me: u32) -> Self {
        assert!(me < map.size(), "rank {me} of {}", map.size());
        Self { me, node: map.node_of(me), local: map.local_rank(me), map }
    }

    /// This rank.
    #[must_use]
    pub fn me(&self) -> u32 {
        self.me
    }

    /// The node of this rank.
    #[must_use]
    pub fn node(&self) -> u32 {
        self.node
    }

    /// The map that all of this comes from.
    #[must_use]
    pub fn map(&self) -> &Arc<NodeMap> {
        &self.map
    }

    /// Where a message to `to` goes from here.
    ///
    /// # Errors
    /// [`Misrouted`]: it has come a way that leads nowhere, or there is no such rank.
    pub fn next(&self, came: Came, to: u32) -> Result<Next, Misrouted> {
        let wrong = Err(Misrouted { to, me: self.me });
        if to == self.me {
            return Ok(Next::Deliver);
        }
        if to >= self.map.size() {
            return wrong;
        }
        let node = self.map.node_of(to);
        match came {
            Came::FromHere if node == self.node => Ok(Next::Origin { rank: to }),
            Came::FromNetwork if node == self.node => Ok(Next::Relay { rank: to }),
            Came::FromHere | Came::FromNode if node != self.node => {
                let rank = self.representative(node);
                match came {
                    _ if rank == self.me => {
                        Ok(Next::Network { rank: self.counterpart(node), node })
                    }
                    Came::FromHere => Ok(Next::Origin { rank }),
                    Came::FromNode | Came::FromNetwork | Came::Relayed => wrong,
                }
            }
            Came::FromHere | Came::FromNode | Came::FromNetwork | Came::Relayed => wrong,
        }
    }

    /// The other ranks of this node, ascending.
    pub fn neighbours(&self) -> impl Iterator<Item = u32> + '_ {
        self.map.ranks_of(self.node).iter().copied().filter(|rank| *rank != self.me)
    }

    /// The other nodes that this rank represents its node towards, ascending.
    pub fn represented(&self) -> impl Iterator<Item = u32> + '_ {
        let step = self.map.ranks_of(self.node).len();
        let nodes: Range<u32> = self.local..self.map.nodes().max(self.local);
        nodes.step_by(step).filter(|node| *node != self.node)
    }

    /// Whom this rank is connected to, ascending: the other ranks of its node, and the counterparts in those that it represents
    /// its own towards. They are connected to it as well.
    #[must_use]
    pub fn peers(&self) -> Vec<u32> {
        let others = self.represented().map(|node| self.counterpart(node));
        let mut peers: Vec<u32> = self.neighbours().chain(others).collect();
        // Two lists in order, as a rule: the stable sort merges them.
        peers.sort();
        peers
    }

    /// The rank of this node that represents it towards `node`.
    #[must_use]
    pub fn representative(&self, node: u32) -> u32 {
        nth(self.map.ranks_of(self.node), node)
    }

    /// The rank of `node` that represents it towards this node.
    #[must_use]
    pub fn counterpart(&self, node: u32) -> u32 {
        nth(self.map.ranks_of(node), self.node)
    }
}

/// The rank with local index (number mod ranks).
fn nth(ranks: &[u32], number: u32) -> u32 {
    ranks[number as usize % ranks.len()]
}

#[cfg(test)]
mod tests;
