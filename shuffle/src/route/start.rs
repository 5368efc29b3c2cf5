//! What the start of a job costs the processes that its ranks are connected through: counted from the map, and counted in a
//! simulation of the real hubs.

use std::{fmt, sync::Arc};

use hg_job::{
    NodeMap,
    simulate::{Load, Simulation, headed},
};

use super::Routes;

/// Of the process that has the most of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Start {
    /// Connections to other processes.
    pub connections: u64,
    /// Addresses that it passes on for others, one for each process that it passes them to.
    pub passed_on: u64,
}

impl Start {
    /// Of the first process at each height of the tree, which no other one of that height exceeds by more than what nodes
    /// differ in.
    #[must_use]
    pub fn new(map: &NodeMap) -> Self {
        let map = Arc::new(map.clone());
        let mut most = Self::default();
        let mut rank = 0;
        loop {
            let of = Self::of(&map, rank);
            most.connections = most.connections.max(of.connections);
            most.passed_on = most.passed_on.max(of.passed_on);
            let (_, parts) = headed(rank, map.size());
            match parts.get(1) {
                Some(part) if part.len() > 1 => rank = part.start,
                _ => return most,
            }
        }
    }

    /// Of one rank.
    #[must_use]
    pub fn of(map: &Arc<NodeMap>, rank: u32) -> Self {
        let (ranks, parts) = headed(rank, map.size());
        let below = parts.get(1..).unwrap_or_default();
        let routes = |rank: u32| Routes::new(Arc::clone(map), rank);
        let mut marks = vec![0_u32; map.size() as usize];
        let mut passed_on = 0;
        for (mark, part) in (1..).zip(below) {
            // What a part gets: the addresses of all peers of its ranks but their own.
            let others = map.size() as usize - part.len();
            let mut wanted = 0;
            for rank in part.clone() {
                let routes = routes(rank);
                for peer in routes.unsorted_peers().filter(|peer| !part.contains(peer)) {
                    let is_new = std::mem::replace(&mut marks[peer as usize], mark) != mark;
                    wanted += usize::from(is_new);
                }
                if wanted == others {
                    break;
                }
            }
            passed_on += wanted as u64;
        }
        let is_hub = !below.is_empty();
        if is_hub && rank > 0 {
            let leaves =
                |own: &u32| routes(*own).unsorted_peers().any(|peer| !ranks.contains(&peer));
            passed_on += ranks.clone().filter(leaves).count() as u64;
        }
        Self { connections: below.len() as u64 + u64::from(rank > 0), passed_on }
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
        run.share(&[0; 48]);
        assert_eq!(run.ended(), u64::from(map.size()), "all have the secret");
        let map = Arc::new(map.clone());
        let peers = |rank| Routes::new(Arc::clone(&map), rank).peers();
        run.exchange(&[b'a'; ADDRESS], peers);
        for (rank, came) in (0..).zip(run.came()) {
            assert_eq!(*came as usize, peers(rank).len(), "rank {rank} has all addresses");
        }
        Self(run)
    }

    /// Of one rank.
    #[must_use]
    pub fn of(&self, rank: u32) -> Start {
        let load = &self.0.loads()[rank as usize];
        Start { connections: load.connections, passed_on: load.letters }
    }
}

impl fmt::Display for SimulatedStart {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "the start, simulated:               busiest process       all processes")?;
        let loads = self.0.loads();
        let figures: [(&str, Figure); 5] = [
            ("connections", |load| load.connections),
            ("frames sent", |load| load.frames),
            ("bytes sent", |load| load.bytes),
            ("addresses passed on", |load| load.letters),
            ("bytes waiting at a time", |load| load.waiting),
        ];
        for (name, figure) in figures {
            let most = loads.iter().map(figure).max().unwrap_or(0);
            let all: u64 = loads.iter().map(figure).sum();
            writeln!(out, "{name:<30} {most:>20} {all:>19}")?;
        }
        Ok(())
    }
}

/// One of what is counted.
type Figure = fn(&Load) -> u64;

/// Bytes of a rank's addresses, about.
const ADDRESS: usize = 64;
