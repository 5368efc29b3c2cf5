//! Hex whose playouts panic now and then.

use hg_mcts::{Game, Outcome, Player, Portable, Random, hex::Hex};

/// At one of so many playouts; 0: at none.
#[derive(Debug, Clone)]
pub(crate) struct Faulty {
    pub(crate) board: Hex,
    pub(crate) odds: usize,
}

impl Game for Faulty {
    fn moves(&self, into: &mut Vec<u16>) {
        self.board.moves(into);
    }
    fn play(&mut self, mv: u16) {
        self.board.play(mv);
    }
    fn turn(&self) -> Player {
        self.board.turn()
    }
    fn outcome(&self) -> Option<Outcome> {
        self.board.outcome()
    }
    fn hash(&self) -> u64 {
        self.board.hash()
    }
    fn playouts(&self, count: u32, random: &mut Random) -> u32 {
        assert!(self.odds == 0 || random.below(self.odds) > 0, "the game is broken");
        self.board.playouts(count, random)
    }
}

/// One that has travelled panics: the leader's own threads are named and do not.
impl Portable for Faulty {
    fn to_bytes(&self) -> Vec<u8> {
        self.board.to_bytes()
    }
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let is_leader = std::thread::current().name().is_some();
        let odds = if is_leader { 0 } else { 100 };
        Hex::from_bytes(bytes).map(|board| Self { board, odds })
    }
}
