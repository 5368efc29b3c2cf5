//! Random games of Hex, many at a time.
//!
//! The order of the moves does not matter for who wins, so a random game is a random board: of e empty cells the player
//! to move gets half, rounded up. Cells are given out one after the other, a cell going to the first player with
//! probability (stones left) / (cells left), which makes all boards with that many stones equally likely. Then one
//! flood fill from the top says who has won: sixteen boards at once, a row a vector, downwards and upwards in turns.
//! Along a row an addition carries a seed through all stones to its left at once; to the right it goes a cell a sweep,
//! which measured as fast as filling it whole.

#[cfg(target_arch = "x86_64")]
use super::lanes::Avx2;
use super::{
    Hex, SIZE_MAX,
    lanes::{Lanes, Narrow, Wide},
};
use crate::{Player, Random, instructions::compiled_for_each};

compiled_for_each! {
    pub(super) fn playouts(board: &Hex, count: u32, random: &mut Random) -> u32;
    portable: portable, avx2: avx2
}

#[inline(always)]
fn portable(board: &Hex, count: u32, random: &mut Random) -> u32 {
    if board.size > 16 {
        batches::<Wide>(board, count, random)
    } else {
        batches::<Narrow>(board, count, random)
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn avx2(board: &Hex, count: u32, random: &mut Random) -> u32 {
    if board.size > 16 {
        batches::<Wide>(board, count, random)
    } else {
        batches::<Avx2>(board, count, random)
    }
}

// Always inlined, with all that it calls: so it is compiled for the instructions of each caller.
#[inline(always)]
fn batches<L: Lanes>(board: &Hex, count: u32, random: &mut Random) -> u32 {
    let mut state = random.lanes.map(L::from_words);
    let (mut left, mut won) = (count, 0);
    while left > 0 {
        let games = left.min(L::COUNT);
        let (stones, last) = fill_board::<L>(board, &mut state);
        won += joined::<L>(&stones, last, u32::MAX >> (32 - games));
        left -= games;
    }
    random.lanes = state.map(L::words);
    won
}

type Board<L> = [L; SIZE_MAX as usize];

/// The first player's stones on random full boards, and the last row's number.
#[inline(always)]
fn fill_board<L: Lanes>(board: &Hex, state: &mut [L; 2]) -> (Board<L>, usize) {
    let empties = u32::from(board.empties());
    let own = match board.turn {
        Player::First => empties.div_ceil(2),
        Player::Second => empties / 2,
    };
    let (mut cells_left, mut stones_left) = (L::splat(empties), L::splat(own));
    let minus_one = L::splat(u32::MAX);
    let size = usize::from(board.size);
    let mut rows = [L::splat(0); SIZE_MAX as usize];
    for (row, stones) in rows.iter_mut().enumerate().take(size) {
        *stones = L::splat(board.rows[0][row]);
        let mut empty = board.empty_row(row);
        while empty != 0 {
            let cell = empty & empty.wrapping_neg();
            empty ^= cell;
            let taken = L::random(state).below(cells_left).less(stones_left);
            cells_left = cells_left.add(minus_one);
            stones_left = stones_left.add(taken);
            *stones = stones.or(taken.and(L::splat(cell)));
        }
    }
    (rows, size - 1)
}

/// On how many boards, of those whose bit is set in `wanted`, stones join the first row with the last one.
#[inline(always)]
fn joined<L: Lanes>(stones: &Board<L>, last: usize, wanted: u32) -> u32 {
    let mut filled = [L::splat(0); SIZE_MAX as usize];
    filled[0] = stones[0];
    for row in 1..=last {
        let above = filled[row - 1];
        filled[row] = spread(stones[row], stones[row].and(above.or(above.right())));
    }
    loop {
        let unjoined = wanted & !filled[last].nonzero();
        if unjoined == 0 {
            break;
        }
        let mut changed = L::splat(0);
        for row in (0..last).rev() {
            let below = filled[row + 1];
            let seeds = filled[row].or(stones[row].and(below.or(below.left())));
            let next = spread(stones[row], seeds);
            changed = changed.or(filled[row].not_and(next));
            filled[row] = next;
        }
        for row in 1..=last {
            let above = filled[row - 1];
            let seeds = filled[row].or(stones[row].and(above.or(above.right())));
            let next = spread(stones[row], seeds);
            changed = changed.or(filled[row].not_and(next));
            filled[row] = next;
        }
        if changed.nonzero() & unjoined == 0 {
            break;
        }
    }
    (wanted & filled[last].nonzero()).count_ones()
}

/// Fills a row from seeds: to higher columns as far as stones go, to lower ones by a cell.
#[inline(always)]
fn spread<L: Lanes>(stones: L, seeds: L) -> L {
    // The carry of the addition clears the stones that it runs through, from the first seed on; seeds behind it stay.
    let filled = stones.add(seeds).not_and(stones).or(seeds);
    filled.or(stones.and(filled.right()))
}
