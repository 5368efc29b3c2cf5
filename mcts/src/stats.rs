//! What workers have counted in a phase.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Outcome;

/// What one worker did in the last phase.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct WorkerStats {
    /// Random games that it has played.
    pub simulations: u64,
    /// Rollouts that ended at a leaf of its own.
    pub rollouts: u64,
    /// The sum of these leaves' depths.
    pub depth_sum: u64,
    /// The depth of the deepest.
    pub depth_max: usize,
    /// Times that a node was wanted for which there was no memory; the rollout ended there.
    pub not_expanded: u64,
    /// Messages that it has sent, and batches in which it has.
    pub messages: u64,
    /// Batches in which it has sent them.
    pub batches: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Selections and reports that travelled in another one's message.
    pub combined: u64,
    /// Nodes that it has now.
    pub nodes: usize,
    /// Children that these have.
    pub children: usize,
    /// Bytes that they take up, and those that merging may need.
    pub tree_bytes: usize,
    /// Nodes that it has pruned since the search began.
    pub pruned: u64,
}

impl WorkerStats {
    /// The greatest of those that are added up.
    pub(crate) fn most(&self) -> u64 {
        let Self { simulations, rollouts, depth_sum, messages, bytes, .. } = *self;
        simulations.max(rollouts).max(depth_sum).max(messages).max(bytes)
    }
}

/// How far a phase has come.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Progress {
    /// Time since it began.
    pub elapsed: Duration,
    /// Rollouts that have come back.
    pub rollouts: u64,
    /// Simulations of these.
    pub simulations: u64,
}

/// What adds up at the end of a phase, and what is left over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// Nodes looked at.
    pub nodes: u64,
    /// Nodes whose visits are not those of their children and their own.
    pub unbalanced: u64,
    /// Rollouts that nodes or children take for under way.
    pub under_way: u64,
    /// Messages, and leaves to be simulated, that wait.
    pub waiting: u64,
}

impl Progress {
    /// Of so many that are about as far.
    pub(crate) fn times(&self, trees: u64) -> Self {
        let Self { elapsed, rollouts, simulations } = *self;
        let (rollouts, simulations) =
            (rollouts.saturating_mul(trees), simulations.saturating_mul(trees));
        Self { elapsed, rollouts, simulations }
    }
}

impl Audit {
    /// Of all workers together.
    pub(crate) fn add(&mut self, other: Self) {
        // Saturating: another process may say anything.
        self.nodes = self.nodes.saturating_add(other.nodes);
        self.unbalanced = self.unbalanced.saturating_add(other.unbalanced);
        self.under_way = self.under_way.saturating_add(other.under_way);
        self.waiting = self.waiting.saturating_add(other.waiting);
    }
}

/// A move's counts.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Sum {
    pub(crate) mv: u16,
    pub(crate) owner: u16,
    pub(crate) visits: u64,
    pub(crate) score: i64,
    pub(crate) proof: Option<Outcome>,
}

/// What a worker knows about a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sums {
    pub(crate) visits: u64,
    pub(crate) children: Vec<Sum>,
}

/// What came of a phase at one worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) stats: WorkerStats,
    /// What it knows about the root.
    pub(crate) root: Option<Sums>,
    /// Rollouts that have come back to the root.
    pub(crate) counted: u64,
    pub(crate) proven: Option<Outcome>,
    pub(crate) samples: Vec<Progress>,
}
