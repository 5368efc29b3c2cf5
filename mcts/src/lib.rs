//! Monte-Carlo tree search over games that are given as sequential code, and the game of Hex.
//!
//! ```
//! use hg_mcts::{Budget, Outcome, Player, Search, Settings, hex::Hex};
//!
//! let board = Hex::new(3)?;
//! let mut search = Search::new(board, Settings { workers: 2, ..Settings::default() })?;
//! let found = search.run(Budget::rollouts(10_000))?;
//! assert_eq!(found.proof, Some(Outcome::Won(Player::First)));
//! search.advance(found.best.expect("the game is not over"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! A user writes a [`Game`]: [`TicTacToe`] is one in sixty lines. [`Search`] does the rest, with as many threads as
//! there are ([`Parallelism`]): a tree for each, whose upper nodes are merged; or one tree, whose nodes have owners ([`Placement`]).
//! `ARCHITECTURE.md` beside this crate says how.
//!
//! Several processes search together as a [`Team`], where positions can be sent ([`Portable`]):
//! ```
//! use hg_mcts::{Budget, Search, Settings, Team, hex::Hex};
//!
//! let job = hg_job::Job::connect()?; // alone here; under mpirun, one of many
//! if let Some(team) = Team::open(&job, 1, "sm://")? {
//!     // The first process; the others serve it until it drops the team.
//!     let mut search = Search::by(&team, Hex::new(5)?, Settings::default())?;
//!     println!("{:?}", search.run(Budget::rollouts(1_000))?.best);
//! }
//! job.leave()?; // whoever ends without it counts as lost to the launcher
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Threads
//! [`Search::run`] uses the thread that calls it and starts the others, which have ended when it returns. Those of a [`Team`] live as
//! long as it does.
//!
//! # Cleanup
//! Nothing is left behind. Dropping a search frees its trees, in other processes too.
//!
//! # Features
//! `cli` (default): what the program `mcts-hex` needs beside the library. `fuzzing`: for the project's own fuzz targets.

mod crew;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod game;
pub mod hex;
mod instructions;
mod merge;
mod message;
mod phase;
mod random;
mod search;
mod select;
mod settings;
mod stats;
mod team;
mod tic_tac_toe;
mod transport;
mod tree;
mod wire;
mod worker;

#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub use fuzzing::fuzz_messages;
pub use game::{Game, Outcome, Player, Portable};
pub use instructions::Instructions;
pub use random::{Random, mix};
pub use search::{Analysis, Candidate, MEMORY_MIN, Search, SettingsError};
pub use settings::{
    Budget, Parallelism, Placement, SIMULATIONS_A_LEAF_MAX, SIMULATIONS_MAX, Settings, VirtualLoss,
    WINDOW_MAX,
};
pub use stats::{Audit, Progress, WorkerStats};
pub use team::{Team, TeamError};
pub use tic_tac_toe::TicTacToe;
pub use transport::Gone;
pub use tree::CHILDREN_MAX;
