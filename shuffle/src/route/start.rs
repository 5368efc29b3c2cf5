//! What the start of a job costs the processes that its ranks are connected through: counted from the map, and counted in a
//! simulation of the real hubs.

use std::{fmt, sync::Arc};

use hg_job::{
    NodeMap,
    simulate::{Bounds, Expected, Load, Run, Simulation, headed},
};

use super::Routes;
use crate::secret;

/// What the start costs a process, counted from the map: connections, frames and bytes that it sends, addresses that it passes
/// on, and what waits at it. How frames are filled follows from their order, so some of it has a least and a most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Start(Expected);

impl Start {
    /// The most of each among the first processes at each height of the tree, which no other one of that height exceeds by more
    /// than what nodes differ in.
    #[must_use]
    pub fn new(map: &NodeMap) -> Self {
        let (mut ranks, mut rank) = (vec![0], 0);
        while let Some(part) = headed(rank, map.size()).1.get(1).filter(|part| part.len() > 1) {
            rank = part.start;
            ranks.push(rank);
        }
        let all = Self::of(map, &ranks);
        let most = |figure: &Figure| {
            let each = all.iter().map(figure.planned);
            each.fold(Bounds::default(), |one, other| Bounds {
                least: one.least.max(other.least),
                most: one.most.max(other.most),
            })
        };
        let [connections, frames, bytes, letters, waiting, held] = FIGURES.each_ref().map(most);
        let (connections, letters) = (connections.most, letters.most);
        let (waiting, held) = (waiting.most, held.most);
        Self(Expected { connections, letters, frames, bytes, waiting, held })
    }

    /// Of each of these ranks.
    #[must_use]
    pub fn of(map: &NodeMap, ranks: &[u32]) -> Vec<Self> {
        let nodes: Vec<u32> = (0..map.size()).map(|rank| map.node_of(rank)).collect();
        let (map, equal) = (Arc::new(map.clone()), ranks_of_each(&nodes));
        let peers = |rank| peers(&map, equal, rank);
        let (shared, value) = (secret::LEN, ADDRESS);
        let start = hg_job::simulate::Start { nodes: &nodes, shared, value, peers: &peers };
        start.expected(ranks).into_iter().map(Self).collect()
    }

    /// Each figure: its name, and its least and most.
    pub fn figures(&self) -> impl Iterator<Item = (&'static str, Bounds)> {
        FIGURES.iter().map(|figure| (figure.name, (figure.planned)(self)))
    }
}

/// The start of a shuffle, run through: all ranks join, rank 0 shares its secret, and addresses are exchanged.
#[derive(Debug)]
pub struct SimulatedStart(Simulation);

impl SimulatedStart {
    /// `seed` draws the order in which frames are handled.
    ///
    /// # Panics
    /// A rank did not get what it needs.
    #[must_use]
    pub fn run(map: &NodeMap, seed: u64) -> Self {
        let mut run = Simulation::join(map.size(), seed, |rank| map.node_of(rank));
        assert_eq!(run.nodes(), map.nodes(), "all have joined");
        run.share(&[0; secret::LEN]);
        assert_eq!(run.ended(), u64::from(map.size()), "all have the secret");
        let map = Arc::new(map.clone());
        let peers = |rank| Routes::new(Arc::clone(&map), rank).peers();
        run.exchange(&[b'a'; ADDRESS], peers);
        for (rank, came) in (0..).zip(run.came()) {
            assert_eq!(*came as usize, peers(rank).len(), "rank {rank} has all addresses");
        }
        Self(run)
    }

    /// Of one rank, the figures of [`Start::figures`].
    pub fn figures(&self, rank: u32) -> impl Iterator<Item = (&'static str, u64)> {
        let load = &self.0.loads()[rank as usize];
        FIGURES.iter().map(|figure| (figure.name, (figure.counted)(load)))
    }
}

impl fmt::Display for Start {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "the start costs the busiest process:")?;
        for (name, Bounds { least, most }) in self.figures() {
            let least = if least > 0 { least.to_string() } else { String::new() };
            writeln!(out, "{name:<34} {least:>14} {most:>14}")?;
        }
        Ok(())
    }
}

impl fmt::Display for SimulatedStart {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "the start, simulated:               busiest process       all processes")?;
        let loads = self.0.loads();
        for Figure { name, counted, .. } in &FIGURES {
            let most = loads.iter().map(counted).max().unwrap_or(0);
            let all: u64 = loads.iter().map(counted).sum();
            writeln!(out, "{name:<34} {most:>16} {all:>19}")?;
        }
        Ok(())
    }
}

/// How many ranks each node has, if all have as many, one behind the other.
fn ranks_of_each(nodes: &[u32]) -> Option<u32> {
    let ranks = u32::try_from(nodes.iter().take_while(|node| **node == 0).count()).ok()?;
    let are_equal = nodes.len().is_multiple_of(ranks as usize)
        && (0..).zip(nodes).all(|(rank, node): (u32, _)| rank / ranks == *node);
    are_equal.then_some(ranks)
}

/// [`Routes::peers`]; where nodes are `equal`, from their numbers: one by one they would take most of the time.
fn peers(map: &Arc<NodeMap>, equal: Option<u32>, rank: u32) -> Vec<Run> {
    let nodes = map.nodes();
    let Some(ranks) = equal else {
        return Run::of(&Routes::new(Arc::clone(map), rank).peers());
    };
    let (node, local) = (rank / ranks, rank % ranks);
    let run = |first, step, count| (count > 0).then_some(Run { first, step, count });
    // Of these nodes those that it represents its own towards.
    let others = |from: u32, to: u32| {
        let first = from + (local + ranks - from % ranks) % ranks;
        let count = to.saturating_sub(first).div_ceil(ranks);
        run(first * ranks + node % ranks, ranks * ranks, count)
    };
    let base = node * ranks;
    let own = [run(base, 1, local), run(rank + 1, 1, ranks - 1 - local)];
    Run::joined([others(0, node), own[0], own[1], others(node + 1, nodes)].into_iter().flatten())
}

/// What is counted, planned and simulated.
struct Figure {
    name: &'static str,
    planned: fn(&Start) -> Bounds,
    counted: fn(&Load) -> u64,
}

const FIGURES: [Figure; 6] = [
    Figure {
        name: "connections",
        planned: |start| exactly(start.0.connections),
        counted: |load| load.connections,
    },
    Figure { name: "frames sent", planned: |start| start.0.frames, counted: |load| load.frames },
    Figure { name: "bytes sent", planned: |start| start.0.bytes, counted: |load| load.bytes },
    Figure {
        name: "addresses passed on",
        planned: |start| exactly(start.0.letters),
        counted: |load| load.letters,
    },
    Figure {
        name: "bytes waiting at a time",
        planned: |start| at_most(start.0.waiting),
        counted: |load| load.waiting,
    },
    Figure {
        name: "bytes in its hub at a time",
        planned: |start| at_most(start.0.held),
        counted: |load| load.held,
    },
];

fn exactly(count: u64) -> Bounds {
    Bounds { least: count, most: count }
}

fn at_most(most: u64) -> Bounds {
    Bounds { least: 0, most }
}

/// Bytes of a rank's addresses, about.
const ADDRESS: usize = 64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn peers_of_equal_nodes_are_those_that_are_found_one_by_one(nodes in 1_u32..40, ranks in 1_u32..9) {
            let map = Arc::new(NodeMap::uniform(nodes, ranks).unwrap());
            let node_of: Vec<u32> = (0..map.size()).map(|rank| map.node_of(rank)).collect();
            prop_assert_eq!(ranks_of_each(&node_of), Some(ranks));
            for rank in 0..map.size() {
                prop_assert_eq!(peers(&map, Some(ranks), rank), peers(&map, None, rank));
            }
        }
    }

    #[test]
    fn nodes_of_unequal_or_mixed_ranks_are_not_equal() {
        for nodes in [&[0, 0, 1][..], &[0, 1, 1], &[0, 1, 0, 1]] {
            assert_eq!(ranks_of_each(nodes), None, "{nodes:?}");
        }
    }
}
