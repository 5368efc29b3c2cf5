//! What workers have counted in a phase.

use crate::Outcome;

/// What one worker did in the last phase.
#[derive(Clone, Copy, Debug, Default)]
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
    /// Bytes that they take up.
    pub tree_bytes: usize,
    /// Nodes that it has pruned since the search began.
    pub pruned: u64,
}

/// A move's counts, of all trees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sum {
    pub(crate) mv: u16,
    pub(crate) visits: u64,
    pub(crate) score: i64,
    pub(crate) proof: Option<Outcome>,
}
