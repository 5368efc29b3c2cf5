//! Whether this machine has room for so many ranks, before any of them is started.

use hg_job::NodeMap;
use hg_job_runner::room::{self, Need};
use hg_shuffle::{Options, route::Plan};

use crate::Error;

/// Refuses what this machine cannot hold, and says why, and how many ranks it can hold.
pub(crate) fn check(size: u32, nodes: Option<&NodeMap>, options: &Options) -> Result<(), Error> {
    // Of the rank that has the most, where that is not all the others.
    let connections = nodes.map(|map| {
        let most = Plan::new(map, options);
        most.extremes(|it| it.local_connections + it.network_connections).max
    });
    let need = |ranks: u64| need(ranks, connections.unwrap_or(ranks.saturating_sub(1)));
    room::check(size, need, connections.is_none()).map_err(|why| Error::Argument("local", why))
}

fn need(ranks: u64, connections: u64) -> Need {
    let own = DESCRIPTORS.saturating_add(DESCRIPTORS_PER_CONNECTION.saturating_mul(connections));
    let memory = MEMORY.saturating_add(MEMORY_PER_CONNECTION.saturating_mul(connections));
    Need {
        tasks: TASKS.saturating_mul(ranks),
        // The process that starts the ranks has a connection to each.
        descriptors: own.max(DESCRIPTORS + ranks),
        memory: memory.saturating_mul(ranks),
    }
}

// Of a rank, counted in one that runs: its threads; descriptors and memory of its own alone, and for each rank that it
// is connected to.
const TASKS: u64 = 9;
const DESCRIPTORS: u64 = 32;
const DESCRIPTORS_PER_CONNECTION: u64 = 8;
const MEMORY: u64 = 3 << 20;
const MEMORY_PER_CONNECTION: u64 = 96 << 10;
