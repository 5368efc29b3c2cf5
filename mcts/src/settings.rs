//! How a search is made.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Game, Instructions, mix};

/// Which worker owns a node, simulates it, and selects below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Placement {
    /// Any: of two that are drawn by chance the one with less to do. The choice is made once for each child, when it
    /// gets a node: its second visit.
    Random,
    /// The one that the position's hash names, so that equal positions are one node, whatever moves lead there
    /// (transposition-driven scheduling, Romein et al. 1999).
    Hash,
    /// Any for the first so many moves from the root; after these the owner of the parent, unless it has more than twice as
    /// much to do as another one that is drawn by chance.
    Local(u8),
}

impl Placement {
    /// What the node of a position is found by: the position itself, or the moves that lead to it.
    pub(crate) fn child_key<G: Game>(self, parent: u64, mv: u16, child: &G) -> u64 {
        match self {
            Self::Hash => child.hash(),
            Self::Random | Self::Local(_) => mix(parent, mv.into()),
        }
    }
}

/// What rollouts under way count as until they come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VirtualLoss {
    /// As visits that have won nothing yet.
    Count,
    /// As so many times their simulations, all lost.
    Loss(u32),
    /// As visits in the exploration alone, while the mean is that of results only (WU-UCT, Liu et al. 2020).
    Unobserved,
}

/// How several workers share a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Parallelism {
    /// One tree, whose nodes have owners.
    Tree,
    /// A tree each; what their roots have counted is added up.
    Root,
    /// A tree each; what was counted near the root is told to all others again and again, and added to theirs. Nobody waits for
    /// anybody, and [`Placement`] decides only whether equal positions are one node.
    Merged,
}

/// The settings of a search. `Settings::default()` is one worker with sixteen simulations a leaf.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Threads, each with its own part of the tree, in each process. At least one.
    pub workers: u16,
    /// How they share the search.
    pub parallelism: Parallelism,
    /// Who owns which node.
    pub placement: Placement,
    /// What rollouts under way count as.
    pub virtual_loss: VirtualLoss,
    /// Simulations for each leaf. At least one, at most
    /// [`SIMULATIONS_A_LEAF_MAX`].
    pub simulations: u32,
    /// Rollouts under way at a time, with several workers on one tree ([`Parallelism::Tree`]); otherwise each has one. At least one, at most
    /// [`WINDOW_MAX`]. More keep more workers busy, and make the search less like that of one: beyond 64 there are at most a sixteenth
    /// as many as the root has counted.
    pub window: u32,
    /// The constant of UCB1, for means from 0 to 1. Not negative.
    pub exploration: f32,
    /// Bytes for what grows with the search: nodes, children, and what trees that are merged tell, of all workers of a process
    /// together. Beside it there are only rollouts under way, at most a [`window`](Self::window) of them.
    pub memory: usize,
    /// Of all random numbers. One worker makes the same search again; several do not, since their messages meet
    /// differently.
    pub seed: u64,
    /// Which instructions select.
    pub instructions: Instructions,
    /// With a [`Team`](crate::Team): a thread that has run nothing of what it was sent for so long, while others wait for it, ends the search
    /// with an error that names its process. Others are asked after half of it. At least 100 ms, and twice what five looks at its messages take a
    /// thread, of which there is one each 256 leaves with a tree each that are not merged, each 32 merged, each 16 of one tree: a game with leaves of 0.1 s
    /// (all [`simulations`](Self::simulations) of one) needs 256, 32 or 16 s.
    pub patience: Duration,
}

/// The greatest [`Settings::window`]: a child counts its rollouts under way in sixteen bits.
pub const WINDOW_MAX: u32 = (1 << 15) - 1;

/// The greatest [`Settings::simulations`].
pub const SIMULATIONS_A_LEAF_MAX: u32 = 1024;

/// A phase ends when a root has counted so many simulations: children count in 32 bits.
pub const SIMULATIONS_MAX: u64 = 2_000_000_000;

impl Default for Settings {
    fn default() -> Self {
        Self {
            workers: 1,
            parallelism: Parallelism::Merged,
            placement: Placement::Local(1),
            virtual_loss: VirtualLoss::Unobserved,
            simulations: 16,
            window: 512,
            exploration: 0.5,
            memory: 1 << 30,
            seed: 1,
            instructions: Instructions::best(),
            patience: Duration::from_secs(60),
        }
    }
}

/// When a phase ends, if the result is not proven before. What is not given bounds nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Rollouts that are begun.
    pub rollouts: Option<u64>,
    /// Time in which rollouts are begun; those under way then come back first.
    pub time: Option<Duration>,
}

impl Budget {
    /// So many rollouts.
    #[must_use]
    pub const fn rollouts(count: u64) -> Self {
        Self { rollouts: Some(count), time: None }
    }

    /// So much time.
    #[must_use]
    pub const fn time(time: Duration) -> Self {
        Self { rollouts: None, time: Some(time) }
    }

    /// What one of several trees gets of it.
    pub(crate) fn share(self, number: u16, trees: u16) -> Self {
        let (number, trees) = (u64::from(number), u64::from(trees));
        let rollouts = self.rollouts.map(|all| all / trees + u64::from(number < all % trees));
        Self { rollouts, ..self }
    }
}
