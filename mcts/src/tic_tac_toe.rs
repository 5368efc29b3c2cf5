//! Noughts and crosses: all that a user writes to have a game searched.

use crate::{Game, Outcome, Player, random::mix};

/// A position of noughts and crosses. Squares are numbered row by row, from 0 to 8.
#[derive(Clone, Debug, Default)]
pub struct TicTacToe {
    /// Squares of the first and of the second player, a bit each.
    squares: [u16; 2],
}

const LINES: [u16; 8] = [0o7, 0o70, 0o700, 0o111, 0o222, 0o444, 0o421, 0o124];

impl Game for TicTacToe {
    fn moves(&self, into: &mut Vec<u16>) {
        if self.outcome().is_none() {
            let taken = self.squares[0] | self.squares[1];
            into.extend((0..9).filter(|square| taken >> square & 1 == 0));
        }
    }

    fn play(&mut self, mv: u16) {
        self.squares[self.turn() as usize] |= 1 << mv;
    }

    fn turn(&self) -> Player {
        let [first, second] = self.squares.map(u16::count_ones);
        if first == second { Player::First } else { Player::Second }
    }

    fn outcome(&self) -> Option<Outcome> {
        for player in [Player::First, Player::Second] {
            let squares = self.squares[player as usize];
            if LINES.iter().any(|line| squares & line == *line) {
                return Some(Outcome::Won(player));
            }
        }
        let taken = self.squares[0] | self.squares[1];
        (taken == 0o777).then_some(Outcome::Drawn)
    }

    fn hash(&self) -> u64 {
        mix(self.squares[0].into(), self.squares[1].into())
    }
}
