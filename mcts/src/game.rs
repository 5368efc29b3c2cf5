//! What a game has to say to be searched: moves, play, who has won, a hash, and a fast playout.

use std::fmt::Debug;

use serde::{Deserialize, Serialize};

use crate::{CHILDREN_MAX, Random};

/// One of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Player {
    /// Who moves first.
    First,
    /// The other one.
    Second,
}

impl Player {
    /// Who plays against this one.
    #[must_use]
    pub const fn opponent(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// How a game has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// This side has won.
    Won(Player),
    /// Nobody has.
    Drawn,
}

impl Outcome {
    /// Half points for [`Player::First`]: two for a win, one for a draw. Whole numbers add up exactly, in any order.
    #[must_use]
    pub const fn score(self) -> u32 {
        match self {
            Self::Won(Player::First) => 2,
            Self::Drawn => 1,
            Self::Won(Player::Second) => 0,
        }
    }
}

/// A position of a game of two players who see everything, without chance.
///
/// It is sequential code only: threads, messages and the tree are the search's business. [`crate::TicTacToe`] is a
/// whole one in sixty lines.
pub trait Game: Clone + Debug + Send + Sync + 'static {
    /// Appends the legal moves, each once, at most [`crate::CHILDREN_MAX`]. None follows an outcome, and at least one
    /// where there is none. The order must depend on the position alone.
    fn moves(&self, into: &mut Vec<u16>);

    /// Whether a move may be made here. Asked of moves that come from another process.
    fn is_legal(&self, mv: u16) -> bool {
        let mut moves = Vec::new();
        self.moves(&mut moves);
        moves.contains(&mv)
    }

    /// Makes a legal move.
    fn play(&mut self, mv: u16);

    /// Who is to move.
    fn turn(&self) -> Player;

    /// How the game has ended, if it has.
    fn outcome(&self) -> Option<Outcome>;

    /// Positions that are equal for all that can still happen have the same hash; others should not. Where a position
    /// can come again in one game, the number of moves made must be part of it. [`crate::Placement::Hash`] takes
    /// equal hashes for the same position.
    fn hash(&self) -> u64;

    /// Plays `count` games from here to their ends, with moves at random: so a game must have one. Returns the sum of
    /// [`Outcome::score`]. The position has no outcome yet. What it returns must depend on the position, `count` and
    /// `random` alone.
    fn playouts(&self, count: u32, random: &mut Random) -> u32 {
        let mut moves = Vec::new();
        let mut score = 0;
        for _ in 0..count {
            let mut game = self.clone();
            score += loop {
                if let Some(outcome) = game.outcome() {
                    break outcome.score();
                }
                moves.clear();
                game.moves(&mut moves);
                check_moves(&moves);
                game.play(moves[random.below(moves.len())]);
            };
        }
        score
    }
}

/// Of a position without an outcome.
pub(crate) fn check_moves(moves: &[u16]) {
    assert!(
        (1..=CHILDREN_MAX).contains(&moves.len()),
        "Game::moves: {} moves where there is no outcome; from 1 to {CHILDREN_MAX} must follow",
        moves.len()
    );
}

/// A game whose positions can be sent to other processes: what [`crate::Team`] needs beside it.
pub trait Portable: Game {
    /// The position in bytes: at most some hundreds.
    fn to_bytes(&self) -> Vec<u8>;

    /// The position that these bytes stand for, if they stand for one.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}
