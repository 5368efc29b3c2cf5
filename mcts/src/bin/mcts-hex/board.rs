//! The board in the terminal.

use std::fmt::Write as _;

use hg_mcts::{Player, hex::Hex};

/// The stones: `X` of the first player, `O` of the second one; the last move in brackets.
pub(crate) fn draw(board: &Hex, last: Option<u16>) -> String {
    let size = board.size();
    let letters: Vec<String> = (b'a'..b'a' + size).map(|it| char::from(it).to_string()).collect();
    let mut out = format!("    {}\n", letters.join(" "));
    for row in 0..size {
        let _ = write!(out, "{:indent$}{:>2} ", "", row + 1, indent = usize::from(row));
        for column in 0..size {
            let stone = match board.stone(row, column) {
                Some(Player::First) => 'X',
                Some(Player::Second) => 'O',
                None => '.',
            };
            let cell = u16::from(row) * u16::from(size) + u16::from(column);
            let before = match last {
                Some(last) if last == cell => '[',
                Some(last) if last + 1 == cell && column > 0 => ']',
                _ => ' ',
            };
            let _ = write!(out, "{before}{stone}");
        }
        let ends = last == Some(u16::from(row + 1) * u16::from(size) - 1);
        let _ = writeln!(out, "{}{}", if ends { ']' } else { ' ' }, row + 1);
    }
    let _ = writeln!(out, "{:indent$}{}", "", letters.join(" "), indent = usize::from(size) + 4);
    out
}

pub(crate) fn name(player: Player) -> &'static str {
    match player {
        Player::First => "X (top to bottom)",
        Player::Second => "O (left to right)",
    }
}
