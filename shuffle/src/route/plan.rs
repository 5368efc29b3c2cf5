//! How much a job of some shape needs, without running it.

use std::fmt;

use hg_job::NodeMap;

use super::Start;
use crate::{Options, queue::GATHERED};

/// What one process needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Origin and relay queues: two for each other rank of the node.
    pub local_queues: u64,
    /// Network queues: one for each node that the process represents its own towards.
    pub network_queues: u64,
    /// Connections inside the node.
    pub local_connections: u64,
    /// Connections to other nodes.
    pub network_connections: u64,
    /// Most bytes of messages in the queues and on their way: queues x (batches under way and one) x target (or 16 KiB, which
    /// batches gather while they cannot leave), or their bytes, if less.
    pub bytes: u64,
    /// Most bytes of messages that others have sent and that wait here: in front of full queues, where this process is a relay, and
    /// for delivery.
    pub backlog_bytes: u64,
    /// Bytes of the tables: the map and the addresses.
    pub table_bytes: u64,
}

/// The least and the most of something over all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extremes {
    /// The least.
    pub min: u64,
    /// The most.
    pub max: u64,
}

/// What the processes of a job need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    ranks: u32,
    nodes: u32,
    processes: Vec<Process>,
    map: NodeMap,
}

impl Plan {
    /// Of every rank of this map.
    #[must_use]
    pub fn new(map: &NodeMap, options: &Options) -> Self {
        let processes = (0..map.size()).map(|rank| Process::new(map, rank, options)).collect();
        Self { ranks: map.size(), nodes: map.nodes(), processes, map: map.clone() }
    }

    /// One process after the other, by rank.
    #[must_use]
    pub fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// Ranks of the job.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Its nodes.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// What the start costs the busiest process; of 320,000 ranks this takes a second or two.
    #[must_use]
    pub fn start(&self) -> Start {
        Start::new(&self.map)
    }

    /// The extremes of one figure.
    #[must_use]
    pub fn extremes(&self, figure: impl Fn(&Process) -> u64) -> Extremes {
        let figures = self.processes.iter().map(figure);
        figures.fold(Extremes { min: u64::MAX, max: 0 }, |extremes, value| Extremes {
            min: extremes.min.min(value),
            max: extremes.max.max(value),
        })
    }
}

impl Process {
    /// Of one rank.
    #[must_use]
    pub fn new(map: &NodeMap, rank: u32, options: &Options) -> Self {
        let node = map.node_of(rank);
        let ranks = map.ranks_of(node).len() as u64;
        let (local, nodes) = (u64::from(map.local_rank(rank)), u64::from(map.nodes()));
        // The nodes n below `nodes` with n mod ranks = local, without the own one.
        let represented = nodes.saturating_sub(local).div_ceil(ranks);
        let own = u64::from(u64::from(node) % ranks == local);
        let (neighbours, network) = (ranks - 1, represented - own);
        let queue = |maxrpc: u32, bytes: usize, target: usize| {
            // Of those under way the last one may go beyond the bytes, and one more loads.
            let batch = target.max(GATHERED) as u64;
            ((u64::from(maxrpc) + 1) * batch).min(bytes as u64 + 2 * batch)
        };
        let bytes = neighbours * queue(options.lomaxrpc, options.lomaxbytes, options.lobuftarget)
            + neighbours * queue(options.lrmaxrpc, options.lrmaxbytes, options.lrbuftarget)
            + network * queue(options.rmaxrpc, options.rmaxbytes, options.rbuftarget);
        let addresses = (neighbours + network) * ADDRESS;
        let map_bytes = u64::from(map.size()) * MAP_PER_RANK + nodes * MAP_PER_NODE;
        Self {
            local_queues: 2 * neighbours,
            network_queues: network,
            local_connections: neighbours,
            network_connections: network,
            bytes,
            // What those at the other ends have under way: their queues are as these.
            backlog_bytes: bytes + options.deliverq_bytes_max as u64,
            table_bytes: addresses + map_bytes,
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "{} ranks on {} nodes; one process has:", self.ranks, self.nodes)?;
        writeln!(out, "{:<34} {:>14} {:>14}", "", "at least", "at most")?;
        let counts: [(&str, Figure); 4] = [
            ("queues inside the node", |process| process.local_queues),
            ("queues to other nodes", |process| process.network_queues),
            ("connections inside the node", |process| process.local_connections),
            ("connections to other nodes", |process| process.network_connections),
        ];
        for (name, figure) in counts {
            let Extremes { min, max } = self.extremes(figure);
            writeln!(out, "{name:<34} {min:>14} {max:>14}")?;
        }
        let bytes: [(&str, Figure); 3] = [
            ("messages in full queues, MiB", |process| process.bytes),
            ("messages of others that wait, MiB", |process| process.backlog_bytes),
            ("tables, MiB", |process| process.table_bytes),
        ];
        for (name, figure) in bytes {
            let Extremes { min, max } = self.extremes(figure);
            writeln!(out, "{name:<34} {:>14} {:>14}", Mebibytes(min), Mebibytes(max))?;
        }
        write!(out, "{}", self.start())
    }
}

/// Bytes, shown with two digits after the point.
struct Mebibytes(u64);

impl fmt::Display for Mebibytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = (u128::from(self.0) * 100 + (1 << 19)) >> 20;
        out.pad(&format!("{}.{:02}", hundredths / 100, hundredths % 100))
    }
}

/// One of the figures of a process.
type Figure = fn(&Process) -> u64;

/// An address in a table, about.
const ADDRESS: u64 = 64;
/// Of a [`NodeMap`], and of what is kept for each destination: its first hop, how many messages were sent and how many
/// of those have arrived for certain.
const MAP_PER_RANK: u64 = 12 + 4 + 8 + 8;
const MAP_PER_NODE: u64 = 4;
