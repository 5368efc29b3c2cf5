//! GTP, version 2, as programs for Hex speak it: black moves first and joins top and bottom.

use std::io::{self, Write};

use hg_mcts::{Game, Player, Search, Team, hex::Hex};

use crate::{NOTHING_SEARCHED, arguments::Arguments, board, input, start};

const COMMANDS: [&str; 14] = [
    "boardsize",
    "clear_board",
    "final_score",
    "genmove",
    "hexgui-analyze_commands",
    "known_command",
    "list_commands",
    "name",
    "play",
    "protocol_version",
    "quit",
    "showboard",
    "undo",
    "version",
];

/// One conversation.
struct Engine<'a> {
    arguments: &'a Arguments,
    team: Option<&'a Team<Hex>>,
    search: Search<Hex>,
    played: Vec<u16>,
}

pub(crate) fn run(arguments: &Arguments, team: Option<&Team<Hex>>) -> Result<(), String> {
    let empty = arguments.empty_board()?;
    let search = start(arguments, team, empty)?;
    let mut engine = Engine { arguments, team, search, played: Vec::new() };
    let mut out = io::stdout().lock();
    let mut typed = io::stdin().lock();
    while let Some(line) = input::line(&mut typed)? {
        let line = line.split('#').next().unwrap_or_default();
        let mut words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() {
            continue;
        }
        let is_number = words[0].bytes().all(|it| it.is_ascii_digit());
        let id = if is_number { words.remove(0) } else { "" };
        let (command, rest) = words.split_first().unwrap_or((&"", &[]));
        let (mark, text) = match engine.answer(command, rest) {
            Ok(text) => ('=', text),
            Err(text) => ('?', text),
        };
        let written = write!(out, "{mark}{id} {text}\n\n").and_then(|()| out.flush());
        // Who does not listen any more has ended the conversation.
        if written.is_err() || *command == "quit" {
            break;
        }
    }
    Ok(())
}

impl Engine<'_> {
    fn answer(&mut self, command: &str, rest: &[&str]) -> Result<String, String> {
        match command {
            "boardsize" => self.set_size(rest),
            "clear_board" => self.restart(Vec::new()),
            "final_score" => Ok(match self.search.position().winner() {
                Some(Player::First) => "B+".to_owned(),
                Some(Player::Second) => "W+".to_owned(),
                None => "cannot score".to_owned(),
            }),
            "genmove" => self.generate(rest),
            "hexgui-analyze_commands" => Ok(String::new()),
            "known_command" => Ok(rest.first().is_some_and(|it| COMMANDS.contains(it)).to_string()),
            "list_commands" => Ok(COMMANDS.join("\n")),
            "name" => Ok("mcts-hex".to_owned()),
            "play" => self.play(rest),
            "protocol_version" => Ok("2".to_owned()),
            "quit" => Ok(String::new()),
            "showboard" => Ok(format!(
                "\n{}",
                board::draw(self.search.position(), self.played.last().copied())
            )),
            "undo" => {
                let mut played = std::mem::take(&mut self.played);
                if played.pop().is_none() {
                    return Err("cannot undo".to_owned());
                }
                self.restart(played)
            }
            "version" => Ok(env!("CARGO_PKG_VERSION").to_owned()),
            _ => Err("unknown command".to_owned()),
        }
    }

    /// A board of the size, with these moves.
    fn restart(&mut self, played: Vec<u16>) -> Result<String, String> {
        let size = self.search.position().size();
        let arguments = self.arguments.with_size(size);
        let mut board = arguments.empty_board()?;
        played.iter().for_each(|mv| board.play(*mv));
        self.search = start(&arguments, self.team, board)?;
        self.played = played;
        Ok(String::new())
    }

    fn set_size(&mut self, rest: &[&str]) -> Result<String, String> {
        let unacceptable = || "unacceptable size".to_owned();
        // HexGui gives columns and rows.
        let [first, others @ ..] = rest else { return Err("syntax error".to_owned()) };
        let size = first.parse().map_err(|_| unacceptable())?;
        if others.iter().any(|it| it != first) {
            return Err(unacceptable());
        }
        let arguments = self.arguments.with_size(size);
        let empty = arguments.empty_board().map_err(|_| unacceptable())?;
        self.search = start(&arguments, self.team, empty)?;
        self.played.clear();
        Ok(String::new())
    }

    /// Whose turn it must be.
    fn check_turn(&self, colour: &str) -> Result<(), String> {
        let player = match colour.to_ascii_lowercase().as_str() {
            "b" | "black" => Player::First,
            "w" | "white" => Player::Second,
            _ => return Err("syntax error".to_owned()),
        };
        if player == self.search.position().turn() {
            return Ok(());
        }
        Err(format!("it is not {colour}'s turn"))
    }

    fn play(&mut self, rest: &[&str]) -> Result<String, String> {
        let [colour, text] = rest else { return Err("syntax error".to_owned()) };
        self.check_turn(colour)?;
        let mv = self.search.position().parse_move(text).map_err(|error| error.to_string())?;
        if !self.search.position().is_legal(mv) {
            return Err("illegal move".to_owned());
        }
        self.make(mv);
        Ok(String::new())
    }

    fn generate(&mut self, rest: &[&str]) -> Result<String, String> {
        let [colour] = rest else { return Err("syntax error".to_owned()) };
        self.check_turn(colour)?;
        if self.search.position().outcome().is_some() {
            return Ok("resign".to_owned());
        }
        let found =
            self.search.run(self.arguments.search.budget()).map_err(|error| error.to_string())?;
        let best = found.best.ok_or(NOTHING_SEARCHED)?;
        let text = self.search.position().format_move(best);
        self.make(best);
        Ok(if text == "swap" { "swap-pieces".to_owned() } else { text })
    }

    fn make(&mut self, mv: u16) {
        self.search.advance(mv);
        self.played.push(mv);
    }
}
