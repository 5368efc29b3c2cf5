//! Rules and playouts of Hex against plain versions of themselves, and against each other.

use proptest::prelude::*;

use super::*;

fn sizes() -> impl Strategy<Value = u8> {
    SIZE_MIN..=SIZE_MAX
}

/// Neighbours of a cell, spelled out.
fn neighbours(size: i32, (row, column): (i32, i32)) -> impl Iterator<Item = (i32, i32)> {
    [(-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0)]
        .into_iter()
        .map(move |(down, right)| (row + down, column + right))
        .filter(move |(row, column)| (0..size).contains(row) && (0..size).contains(column))
}

/// Whether a player's edges are joined, by a search from cell to cell.
fn joins_plainly(board: &Hex, player: Player) -> bool {
    let size = i32::from(board.size);
    let at = |row: i32, column: i32| {
        board.stone(u8::try_from(row).unwrap(), u8::try_from(column).unwrap()) == Some(player)
    };
    let along = |(row, column): (i32, i32)| if player == Player::First { row } else { column };
    let starts = (0..size).map(|it| if player == Player::First { (0, it) } else { (it, 0) });
    let mut open: Vec<_> = starts.filter(|(row, column)| at(*row, *column)).collect();
    let mut seen = open.clone();
    while let Some(cell) = open.pop() {
        if along(cell) == size - 1 {
            return true;
        }
        for next in neighbours(size, cell) {
            if at(next.0, next.1) && !seen.contains(&next) {
                seen.push(next);
                open.push(next);
            }
        }
    }
    false
}

/// A board on which the first `stones` cells of a random order are taken in turns, whoever has won meanwhile.
fn random_board(size: u8, stones: usize, seed: u64) -> Hex {
    let mut random = Random::new(seed, 0);
    let mut cells: Vec<u16> = (0..u16::from(size) * u16::from(size)).collect();
    random.shuffle(&mut cells);
    let mut board = Hex::new(size).unwrap();
    for cell in cells.into_iter().take(stones) {
        board.put(board.turn, cell);
        board.turn = board.turn.opponent();
    }
    board.rehashed()
}

/// The same position turned by half a turn.
fn turned(board: &Hex) -> Hex {
    let mut out = board.clone();
    for rows in &mut out.rows {
        let size = usize::from(board.size);
        rows[..size].reverse();
        rows[..size].iter_mut().for_each(|row| *row = row.reverse_bits() >> (32 - size));
    }
    out.rehashed()
}

proptest! {
    #[test]
    fn a_full_board_has_exactly_one_winner(size in sizes(), seed: u64) {
        let board = random_board(size, usize::MAX, seed);
        let [first, second] = [Player::First, Player::Second].map(|player| board.joins(player));
        prop_assert!(first != second);
    }

    #[test]
    fn the_bit_parallel_win_test_agrees_with_a_plain_one(size in sizes(), seed: u64, part in 0.0..1.0) {
        let cells = usize::from(size) * usize::from(size);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a part")]
        let board = random_board(size, (cells as f64 * part) as usize, seed);
        for player in [Player::First, Player::Second] {
            prop_assert_eq!(board.joins(player), joins_plainly(&board, player));
        }
    }

    #[test]
    fn mirroring_exchanges_the_winner_and_turning_keeps_it(size in sizes(), seed: u64) {
        let board = random_board(size, usize::MAX, seed);
        let winner = board.winner().unwrap();
        prop_assert_eq!(board.mirrored().winner(), Some(winner.opponent()));
        prop_assert_eq!(turned(&board).winner(), Some(winner));
        prop_assert_eq!(board.mirrored().mirrored(), board);
    }

    #[test]
    fn the_hash_is_that_of_the_position_and_not_of_the_way_there(size in sizes(), seed: u64, swap: bool) {
        let mut board = Hex::new(size).unwrap();
        if swap {
            board = board.with_swap();
        }
        let mut random = Random::new(seed, 0);
        let mut moves = Vec::new();
        while board.outcome().is_none() {
            moves.clear();
            board.moves(&mut moves);
            let mv = moves[random.below(moves.len())];
            prop_assert!(board.is_legal(mv));
            prop_assert_eq!(board.parse_move(&board.format_move(mv)), Ok(mv));
            board.play(mv);
            prop_assert_eq!(board.clone().rehashed(), board.clone());
        }
        moves.clear();
        board.moves(&mut moves);
        prop_assert!(moves.is_empty());
    }

    #[test]
    fn all_instructions_play_the_same_games(size in sizes(), seed: u64, stones in 0_usize..40, count in 1_u32..70) {
        let board = random_board(size, stones.min(usize::from(size)), seed);
        let play = |instructions| {
            let mut random = Random::new(seed, 1);
            (board.count_wins(count, &mut random, instructions), random.lanes)
        };
        let expected = play(Instructions::Portable);
        for instructions in [Instructions::Avx2, Instructions::Avx512] {
            if instructions.are_here() {
                prop_assert_eq!(play(instructions), expected);
            }
        }
    }

    #[test]
    fn a_playout_from_a_board_that_is_almost_full_is_exact(size in 2_u8..=19, seed: u64) {
        // With one empty cell there is one game; with two there are two, equally likely.
        let cells = usize::from(size) * usize::from(size);
        let board = random_board(size, cells - 1, seed);
        let mut full = board.clone();
        let cell = (0..u16::from(size) * u16::from(size)).find(|cell| {
            let (row, column) = (cell / u16::from(size), cell % u16::from(size));
            board.empty_row(row.into()) >> column & 1 == 1
        });
        full.put(board.turn, cell.unwrap());
        let won = if full.winner() == Some(Player::First) { 33 } else { 0 };
        prop_assert_eq!(board.count_wins(33, &mut Random::new(seed, 0), Instructions::best()), won);
    }
}

#[test]
fn the_first_player_wins_as_many_random_games_as_is_known() {
    let mut random = Random::new(7, 0);
    let games = 2_000_000;
    let won = Hex::new(11).unwrap().count_wins(games, &mut random, Instructions::best());
    let part = f64::from(won) / f64::from(games);
    assert!((0.5215..0.5255).contains(&part), "{part}");
}

#[test]
fn wide_boards_play_like_plain_games() {
    // Sixteen and seventeen columns take different vectors. Both against games played move by move.
    for size in [16, 17, 19] {
        let board = random_board(size, 60, 3);
        let mut random = Random::new(5, 0);
        let fast = f64::from(board.count_wins(200_000, &mut random, Instructions::best())) / 2e5;
        let mut slow = 0.0;
        let games = 4_000;
        for _ in 0..games {
            let mut full = board.clone();
            let mut moves: Vec<u16> = Vec::new();
            full.moves(&mut moves);
            random.shuffle(&mut moves);
            for mv in moves {
                full.put(full.turn, mv);
                full.turn = full.turn.opponent();
            }
            slow += f64::from(u8::from(full.joins(Player::First))) / f64::from(games);
        }
        assert!((fast - slow).abs() < 0.04, "{size}: {fast} and {slow}");
    }
}

#[test]
fn swapping_takes_over_the_first_stone_mirrored() {
    let mut board = Hex::new(5).unwrap().with_swap();
    assert!(!board.is_legal(SWAP));
    board.play(board.parse_move("b4").unwrap());
    let mut plain = board.clone();
    board.play(SWAP);
    assert_eq!(board.stone(1, 3), Some(Player::Second));
    assert_eq!((board.stone(3, 1), board.stones(), board.turn()), (None, 1, Player::First));
    assert!(!board.is_legal(SWAP));
    plain.play(plain.parse_move("c3").unwrap());
    assert!(!plain.is_legal(SWAP));
}

#[test]
fn moves_are_read_in_every_usual_way() {
    let read = |text: &str| {
        let mut board = Hex::new(11).unwrap().with_swap();
        board
            .play_all(text)
            .map(|moves| moves.iter().map(|mv| board.format_move(*mv)).collect::<Vec<_>>())
    };
    let expected = Ok(vec!["a10".to_owned(), "swap".to_owned(), "k11".to_owned()]);
    for text in ["a10 swap k11", "A10,:s,K11", "a10:sk11", "a10 swap-pieces\nk11", "a10swapk11"] {
        assert_eq!(read(text), expected, "{text}");
    }
    let illegal = |text: &str| Err(NotationError::Illegal(text.to_owned()));
    let unreadable = |text: &str| Err(NotationError::Unreadable(text.to_owned()));
    let wrong = [
        ("a1 a1", illegal("a1")),
        ("l1", illegal("l1")),
        ("a12", illegal("a12")),
        ("swap", illegal("swap")),
        ("a", unreadable("a")),
        ("a0", unreadable("a0")),
        ("a1 ä2", unreadable("ä2")),
        ("a1 7", unreadable("7")),
    ];
    for (text, error) in wrong {
        assert_eq!(read(text), error, "{text}");
    }
}

#[test]
fn who_moves_next_may_be_chosen_and_is_part_of_the_position() {
    let mut board = Hex::new(4).unwrap().with_swap();
    board.play_all("b2").unwrap();
    let passed = board.clone().with_turn(Player::First);
    assert!(board.is_legal(SWAP) && !passed.is_legal(SWAP));
    assert_eq!((passed.turn(), passed.hash()), (Player::First, passed.clone().rehashed().hash()));
    assert_ne!(passed.hash(), board.hash());
    assert_eq!(passed.clone().with_turn(Player::Second), board);
    let mut twice = passed;
    twice.play_all("b3").unwrap();
    assert!(twice.turn() == Player::Second && !twice.is_legal(SWAP));
    assert_eq!(twice.hash(), twice.clone().rehashed().hash());
    // The second player's own stone is not offered to it.
    let mut other = Hex::new(4).unwrap().with_swap().with_turn(Player::Second);
    other.play_all("a1").unwrap();
    assert!(!other.with_turn(Player::Second).is_legal(SWAP));
    // Who has won stays the winner.
    let mut over = Hex::new(2).unwrap();
    over.play_all("a1 b1 a2").unwrap();
    assert_eq!(over.clone().with_turn(Player::First), over);
}
