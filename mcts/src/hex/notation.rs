//! The common text notation of Hex: a cell is its column's letter and its row's number, `a1` being the top left.

use super::{Hex, SWAP, SizeError};
use crate::Game;

/// A text is not a move, or not one that can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotationError {
    /// It is not written as a move is.
    #[error(
        "`{0}` is no move: a letter for the column and a number for the row, such as `c4`, or `swap`"
    )]
    Unreadable(String),
    /// The cell is taken or not on the board, or the game is over.
    #[error("`{0}` cannot be played here")]
    Illegal(String),
    /// The size before the moves is out of bounds.
    #[error(transparent)]
    Size(#[from] SizeError),
}

impl Hex {
    /// Reads a move. It need not be legal.
    ///
    /// # Errors
    /// It is not written as one, or its cell is not on the board.
    pub fn parse_move(&self, text: &str) -> Result<u16, NotationError> {
        let unreadable = || NotationError::Unreadable(text.to_owned());
        let lower = text.to_ascii_lowercase();
        if SWAP_WORDS.contains(&lower.as_str()) {
            return Ok(SWAP);
        }
        let (letter, number) = lower.split_at_checked(1).ok_or_else(unreadable)?;
        let column = letter.bytes().next().filter(u8::is_ascii_lowercase).ok_or_else(unreadable)?;
        let row: u16 = number.parse().ok().filter(|row| *row > 0).ok_or_else(unreadable)?;
        let (column, size) = (u16::from(column - b'a'), u16::from(self.size));
        if column >= size || row > size {
            return Err(NotationError::Illegal(text.to_owned()));
        }
        Ok((row - 1) * size + column)
    }

    /// Writes a move.
    #[must_use]
    pub fn format_move(&self, mv: u16) -> String {
        if mv == SWAP {
            return "swap".to_owned();
        }
        let size = u16::from(self.size);
        let letter = char::from(b'a' + u8::try_from(mv % size).expect("below the size"));
        format!("{letter}{}", mv / size + 1)
    }

    /// Plays moves that stand in one text: `a3 b4`, `a3,b4` or `a3b4`. Returns them.
    ///
    /// # Errors
    /// The first move that cannot be read or made; those before it have been.
    pub fn play_all(&mut self, text: &str) -> Result<Vec<u16>, NotationError> {
        let mut played = Vec::new();
        for word in text.split(|c: char| c.is_whitespace() || c == ',').filter(|it| !it.is_empty())
        {
            let mut rest = word;
            while !rest.is_empty() {
                let (one, after) = first_move(rest);
                let mv = self.parse_move(one)?;
                if !self.is_legal(mv) {
                    return Err(NotationError::Illegal(one.to_owned()));
                }
                self.play(mv);
                played.push(mv);
                rest = after;
            }
        }
        Ok(played)
    }
}

/// Cuts the first move off: a letter and digits, or a word for the swap.
fn first_move(text: &str) -> (&str, &str) {
    for word in SWAP_WORDS {
        if text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word)) {
            return text.split_at(word.len());
        }
    }
    let letter = text.chars().next().map_or(0, char::len_utf8);
    let digits = text[letter..].bytes().take_while(u8::is_ascii_digit).count();
    text.split_at(letter + digits)
}

/// What a swap is called. A word that begins with another one comes first.
const SWAP_WORDS: [&str; 3] = ["swap-pieces", "swap", ":s"];
