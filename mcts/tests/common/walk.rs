//! A game that asks much of a search.

use hg_mcts::{Game, Outcome, Player};

/// So many moves, then nobody has won. All positions have the same hash, and so many moves each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Walk {
    pub(crate) made: u32,
    pub(crate) length: u32,
    pub(crate) width: u16,
}

impl Game for Walk {
    fn moves(&self, into: &mut Vec<u16>) {
        into.extend(0..self.width);
    }
    fn is_legal(&self, mv: u16) -> bool {
        mv < self.width
    }
    fn play(&mut self, _: u16) {
        self.made += 1;
    }
    fn turn(&self) -> Player {
        if self.made.is_multiple_of(2) { Player::First } else { Player::Second }
    }
    fn outcome(&self) -> Option<Outcome> {
        let is_over = self.width > 0 && self.width <= 512 && self.made >= self.length;
        is_over.then_some(Outcome::Drawn)
    }
    fn hash(&self) -> u64 {
        0
    }
}
