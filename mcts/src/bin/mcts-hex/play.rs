//! The board in the terminal, and somebody who types moves.

use std::io::{self, BufRead};

use hg_mcts::{Game, Player, Search, Team, hex::Hex};

use crate::{NOTHING_SEARCHED, arguments::Arguments, board, input, say, shows, start, think};

pub(crate) fn run(arguments: &Arguments, team: Option<&Team<Hex>>) -> Result<(), String> {
    let mut search = start(arguments, team, arguments.position()?)?;
    let own = if arguments.second { Player::First } else { Player::Second };
    say("Type a move such as c4, `swap` where it is allowed, or `quit`.\n")?;
    let mut typed = io::stdin().lock();
    let mut last = None;
    while search.position().outcome().is_none() {
        if !shows(&board::draw(search.position(), last))? {
            return Ok(());
        }
        let mv = if search.position().turn() == own {
            let found = think(&mut search, arguments.search.budget(), arguments.progress)?;
            let best = found.best.ok_or(NOTHING_SEARCHED)?;
            say(&format!("I play {}.\n", search.position().format_move(best)))?;
            best
        } else {
            match ask(&search, &mut typed)? {
                Some(mv) => mv,
                None => return Ok(()),
            }
        };
        search.advance(mv);
        last = Some(mv);
    }
    let winner = search.position().winner().expect("the game is over");
    say(&format!("{}{} wins.\n", board::draw(search.position(), last), board::name(winner)))
}

/// A move that can be made, or none where somebody has had enough.
fn ask(search: &Search<Hex>, typed: &mut impl BufRead) -> Result<Option<u16>, String> {
    loop {
        if !shows("> ")? {
            return Ok(None);
        }
        let Some(line) = input::line(typed)? else { return Ok(None) };
        let word = line.trim();
        match word {
            "" => continue,
            "quit" | "exit" | "q" => return Ok(None),
            _ => {}
        }
        match search.position().parse_move(word) {
            Ok(mv) if search.position().is_legal(mv) => return Ok(Some(mv)),
            Ok(_) => say(&format!("`{word}` cannot be played here\n"))?,
            Err(error) => say(&format!("{error}\n"))?,
        }
    }
}
