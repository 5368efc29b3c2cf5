//! The game of Hex: boards of 2x2 to 19x19, with the swap rule as an option.
//!
//! A cell is `row * size + column`. Its neighbours are (r-1,c) (r-1,c+1) (r,c-1) (r,c+1) (r+1,c-1) (r+1,c). The first
//! player joins top and bottom, the second one left and right. On a full board exactly one of them has done so.

#[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "vector instructions"))]
mod lanes;
mod notation;
mod playout;
#[cfg(test)]
mod tests;

pub use notation::NotationError;

use crate::{Game, Instructions, Outcome, Player, Portable, Random, random::mix};

/// The smallest board.
pub const SIZE_MIN: u8 = 2;
/// The largest board.
pub const SIZE_MAX: u8 = 19;
/// The second player's first move, where the rule is on: takes over the first stone, mirrored at the long diagonal.
pub const SWAP: u16 = u16::MAX;

type Rows = [u32; SIZE_MAX as usize];

/// A position of Hex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hex {
    size: u8,
    turn: Player,
    /// Whether the rule is on, and the move that it is about has not been made.
    swap: bool,
    /// Stones on the board.
    stones: u16,
    hash: u64,
    /// Rows of the first and of the second player: bit c is column c.
    rows: [Rows; 2],
}

/// A board of this size cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a board of {0}x{0} is not between {SIZE_MIN}x{SIZE_MIN} and {SIZE_MAX}x{SIZE_MAX}")]
pub struct SizeError(pub u64);

impl Hex {
    /// An empty board.
    ///
    /// # Errors
    /// The size is out of bounds.
    pub fn new(size: u8) -> Result<Self, SizeError> {
        if !(SIZE_MIN..=SIZE_MAX).contains(&size) {
            return Err(SizeError(size.into()));
        }
        let rows = [[0; SIZE_MAX as usize]; 2];
        Ok(Self { size, turn: Player::First, swap: false, stones: 0, hash: size.into(), rows })
    }

    /// The same board, where the second player may take over the first stone. Only for an empty board.
    #[must_use]
    pub fn with_swap(mut self) -> Self {
        self.swap = self.stones == 0;
        if self.swap {
            self.hash = mix(self.hash, SWAP.into());
        }
        self
    }

    /// The same position with this player to move, as if the other one had passed. A game that is over stays as it is.
    #[must_use]
    pub fn with_turn(self, player: Player) -> Self {
        if self.turn == player || self.winner().is_some() {
            return self;
        }
        Self { turn: player, hash: self.hash ^ TURN_HASH, ..self }
    }

    /// Rows, and columns.
    #[must_use]
    pub fn size(&self) -> u8 {
        self.size
    }

    /// How many stones there are.
    #[must_use]
    pub fn stones(&self) -> u16 {
        self.stones
    }

    /// Whose stone is there.
    #[must_use]
    pub fn stone(&self, row: u8, column: u8) -> Option<Player> {
        let at = |player: Player| self.rows[player as usize][usize::from(row)] >> column & 1 == 1;
        [Player::First, Player::Second].into_iter().find(|player| at(*player))
    }

    /// Whether a move may be made now.
    #[must_use]
    pub fn is_legal(&self, mv: u16) -> bool {
        if mv == SWAP {
            return self.swap && self.stones == 1 && self.turn == Player::Second;
        }
        let size = u16::from(self.size);
        let (row, column) = (usize::from(mv / size), mv % size);
        row < usize::from(size)
            && (self.rows[0][row] | self.rows[1][row]) >> column & 1 == 0
            && self.winner().is_none()
    }

    /// Whose edges are joined. At most one player's are.
    #[must_use]
    pub fn winner(&self) -> Option<Player> {
        [Player::First, Player::Second].into_iter().find(|player| self.joins(*player))
    }

    /// The same position with rows and columns, and players, exchanged: who wins here loses there.
    #[must_use]
    pub fn mirrored(&self) -> Self {
        let mut rows = [[0; SIZE_MAX as usize]; 2];
        for (to, from) in rows.iter_mut().zip([&self.rows[1], &self.rows[0]]) {
            *to = transposed(from, self.size);
        }
        Self { rows, turn: self.turn.opponent(), ..*self }.rehashed()
    }

    /// Plays `count` random games from here to full boards. Returns how many the first player has won.
    ///
    /// # Panics
    /// The machine lacks these instructions.
    pub fn count_wins(&self, count: u32, random: &mut Random, instructions: Instructions) -> u32 {
        playout::playouts(instructions, self, count, random)
    }

    fn full_row(&self) -> u32 {
        (1 << self.size) - 1
    }

    /// Cells without a stone.
    fn empties(&self) -> u16 {
        u16::from(self.size) * u16::from(self.size) - self.stones
    }

    /// Empty cells of a row.
    fn empty_row(&self, row: usize) -> u32 {
        !(self.rows[0][row] | self.rows[1][row]) & self.full_row()
    }

    /// Whether the edges of a player are joined.
    fn joins(&self, player: Player) -> bool {
        // Fewer stones than rows reach nowhere.
        let own: u32 = self.rows[player as usize].iter().map(|row| row.count_ones()).sum();
        if own < self.size.into() {
            return false;
        }
        match player {
            Player::First => joins_rows(&self.rows[0], self.size),
            Player::Second => joins_rows(&transposed(&self.rows[1], self.size), self.size),
        }
    }

    fn put(&mut self, player: Player, cell: u16) {
        let (row, column) = (cell / u16::from(self.size), cell % u16::from(self.size));
        self.rows[player as usize][usize::from(row)] |= 1 << column;
        self.stones += 1;
        self.hash ^= cell_hash(player, cell);
    }

    fn rehashed(mut self) -> Self {
        self.hash = self.size.into();
        if self.swap {
            self.hash = mix(self.hash, SWAP.into());
        }
        if self.turn == Player::Second {
            self.hash ^= TURN_HASH;
        }
        let size = u16::from(self.size);
        for cell in 0..size * size {
            let (row, column) = (usize::from(cell / size), cell % size);
            for player in [Player::First, Player::Second] {
                if self.rows[player as usize][row] >> column & 1 == 1 {
                    self.hash ^= cell_hash(player, cell);
                }
            }
        }
        self
    }
}

/// Of whose turn it is, beside the stones: after a swap, or set up by hand, the count of stones does not say it.
const TURN_HASH: u64 = 0x6a09_e667_f3bc_c909;

fn cell_hash(player: Player, cell: u16) -> u64 {
    mix(0x5851_f42d_4c95_7f2d, u64::from(cell) << 1 | player as u64)
}

fn transposed(rows: &Rows, size: u8) -> Rows {
    let mut into = [0; SIZE_MAX as usize];
    for (row, bits) in rows.iter().take(size.into()).enumerate() {
        for (column, to) in into.iter_mut().enumerate() {
            *to |= (bits >> column & 1) << row;
        }
    }
    into
}

/// Whether stones join the first row with the last one: a flood fill, a row at a time, downwards and upwards in turns.
fn joins_rows(stones: &Rows, size: u8) -> bool {
    let last = usize::from(size) - 1;
    let mut filled = [0; SIZE_MAX as usize];
    filled[0] = stones[0];
    loop {
        let before = filled;
        for row in 1..=last {
            let above = filled[row - 1];
            filled[row] = along(stones[row], filled[row] | stones[row] & (above | above >> 1));
        }
        if filled[last] != 0 {
            return true;
        }
        for row in (0..last).rev() {
            let below = filled[row + 1];
            filled[row] = along(stones[row], filled[row] | stones[row] & (below | below << 1));
        }
        if filled == before {
            return false;
        }
    }
}

/// Fills a row to the left and to the right of seeds, as far as stones go.
fn along(stones: u32, seeds: u32) -> u32 {
    let mut filled = seeds;
    loop {
        let next = stones & (filled | filled << 1 | filled >> 1);
        if next == filled {
            return filled;
        }
        filled = next;
    }
}

impl Game for Hex {
    fn moves(&self, into: &mut Vec<u16>) {
        if self.outcome().is_some() {
            return;
        }
        if self.is_legal(SWAP) {
            into.push(SWAP);
        }
        for row in 0..self.size {
            let mut empty = self.empty_row(row.into());
            while empty != 0 {
                let column = empty.trailing_zeros();
                let cell = u32::from(row) * u32::from(self.size) + column;
                into.push(u16::try_from(cell).expect("at most 361 cells"));
                empty &= empty - 1;
            }
        }
    }

    fn is_legal(&self, mv: u16) -> bool {
        Self::is_legal(self, mv)
    }

    fn play(&mut self, mv: u16) {
        debug_assert!(self.is_legal(mv), "{mv} cannot be played here");
        if mv == SWAP {
            *self = Self { swap: false, ..self.mirrored() }.rehashed();
            return;
        }
        if self.swap && (self.stones == 1 || self.turn == Player::Second) {
            // The offer is over.
            self.swap = false;
            *self = self.clone().rehashed();
        }
        self.put(self.turn, mv);
        self.turn = self.turn.opponent();
        self.hash ^= TURN_HASH;
    }

    fn turn(&self) -> Player {
        self.turn
    }

    fn outcome(&self) -> Option<Outcome> {
        // Only who has just moved can have won.
        let mover = self.turn.opponent();
        self.joins(mover).then_some(Outcome::Won(mover))
    }

    fn hash(&self) -> u64 {
        self.hash
    }

    fn playouts(&self, count: u32, random: &mut Random) -> u32 {
        2 * self.count_wins(count, random, Instructions::best())
    }
}

/// The size, whose turn it is, whether the swap rule is on; then the rows of the first and of the second player, four bytes each.
impl Portable for Hex {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.size, self.turn as u8, u8::from(self.swap)];
        for row in self.rows.iter().flat_map(|rows| &rows[..self.size.into()]) {
            bytes.extend(row.to_le_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let ([size, turn @ 0..=1, swap @ 0..=1], rest) = bytes.split_first_chunk()? else {
            return None;
        };
        let mut board = Self::new(*size).ok()?;
        let (rows, []) = rest.as_chunks() else { return None };
        if rows.len() != 2 * usize::from(*size) {
            return None;
        }
        for (at, row) in rows.iter().enumerate() {
            let row = u32::from_le_bytes(*row);
            let (player, at) = (at / usize::from(*size), at % usize::from(*size));
            if row & !board.full_row() != 0 || row & board.rows[0][at] != 0 {
                return None;
            }
            board.rows[player][at] = row;
            board.stones += u16::try_from(row.count_ones()).expect("at most 32");
        }
        board.turn = if *turn == 0 { Player::First } else { Player::Second };
        board.swap = *swap == 1;
        (!board.swap || board.stones <= 1).then(|| board.rehashed())
    }
}
