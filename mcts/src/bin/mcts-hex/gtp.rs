//! GTP, version 2, as programs for Hex speak it: black moves first and joins top and bottom.

use std::io;

use hg_mcts::{
    Game, Player, Search, Team,
    hex::{Hex, SIZE_MAX, SIZE_MIN},
};

use crate::{NOTHING_SEARCHED, arguments::Arguments, board, input, shows, start};

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
    played: Vec<(Player, u16)>,
    /// Who has given up. As a move is: `undo` takes it back.
    resigned: Option<Player>,
}

pub(crate) fn run(arguments: &Arguments, team: Option<&Team<Hex>>) -> Result<(), String> {
    let empty = arguments.empty_board()?;
    let search = start(arguments, team, empty)?;
    let mut engine = Engine { arguments, team, search, played: Vec::new(), resigned: None };
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
        // Who does not listen any more has ended the conversation.
        if !shows(&format!("{mark}{id} {text}\n\n"))? || *command == "quit" {
            break;
        }
    }
    Ok(())
}

impl Engine<'_> {
    fn answer(&mut self, command: &str, rest: &[&str]) -> Result<String, String> {
        match command {
            "boardsize" => self.set_size(rest),
            "clear_board" => self.begin(self.search.position().size(), Vec::new()),
            "final_score" => Ok(match self.winner() {
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
                board::draw(self.search.position(), self.played.last().map(|(_, mv)| *mv))
            )),
            "undo" => self.undo(),
            "version" => Ok(env!("CARGO_PKG_VERSION").to_owned()),
            _ => Err("unknown command".to_owned()),
        }
    }

    fn winner(&self) -> Option<Player> {
        self.search.position().winner().or(self.resigned.map(Player::opponent))
    }

    /// A board of the size, with these moves.
    fn begin(&mut self, size: u8, played: Vec<(Player, u16)>) -> Result<String, String> {
        let arguments = self.arguments.with_size(size);
        let mut board = arguments.empty_board()?;
        for (player, mv) in &played {
            board = board.with_turn(*player);
            board.play(*mv);
        }
        self.search = start(&arguments, self.team, board)?;
        self.played = played;
        self.resigned = None;
        Ok(String::new())
    }

    fn undo(&mut self) -> Result<String, String> {
        let mut played = self.played.clone();
        if self.resigned.is_none() && played.pop().is_none() {
            return Err("cannot undo".to_owned());
        }
        self.begin(self.search.position().size(), played)
    }

    fn set_size(&mut self, rest: &[&str]) -> Result<String, String> {
        // HexGui gives columns and rows.
        let [first, others @ ..] = rest else { return Err("syntax error".to_owned()) };
        let size = first.parse().ok().filter(|size| (SIZE_MIN..=SIZE_MAX).contains(size));
        match size.filter(|_| others.iter().all(|it| it == first)) {
            Some(size) => self.begin(size, Vec::new()),
            None => Err("unacceptable size".to_owned()),
        }
    }

    /// Whoever moves may be who has moved last: in GTP colours need not take turns, so that positions can be set up.
    fn let_move(&mut self, player: Player) -> Result<(), String> {
        let position = self.search.position();
        if position.turn() != player {
            let arguments = self.arguments.with_size(position.size());
            self.search = start(&arguments, self.team, position.clone().with_turn(player))?;
        }
        Ok(())
    }

    fn make(&mut self, mv: u16) {
        self.played.push((self.search.position().turn(), mv));
        self.search.advance(mv);
    }

    fn play(&mut self, rest: &[&str]) -> Result<String, String> {
        let [colour, text] = rest else { return Err("syntax error".to_owned()) };
        let player = player(colour)?;
        if self.winner().is_some() {
            return Err("the game is over".to_owned());
        }
        if text.eq_ignore_ascii_case("resign") {
            self.resigned = Some(player);
            return Ok(String::new());
        }
        let position = self.search.position().clone().with_turn(player);
        let mv = position.parse_move(text).map_err(|error| error.to_string())?;
        if !position.is_legal(mv) {
            return Err("illegal move".to_owned());
        }
        self.let_move(player)?;
        self.make(mv);
        Ok(String::new())
    }

    fn generate(&mut self, rest: &[&str]) -> Result<String, String> {
        let [colour] = rest else { return Err("syntax error".to_owned()) };
        let player = player(colour)?;
        if self.winner().is_some() {
            self.resigned.get_or_insert(player);
            return Ok("resign".to_owned());
        }
        self.let_move(player)?;
        let found =
            self.search.run(self.arguments.search.budget()).map_err(|error| error.to_string())?;
        let best = found.best.ok_or(NOTHING_SEARCHED)?;
        let text = self.search.position().format_move(best);
        self.make(best);
        Ok(if text == "swap" { "swap-pieces".to_owned() } else { text })
    }
}

fn player(colour: &str) -> Result<Player, String> {
    match colour.to_ascii_lowercase().as_str() {
        "b" | "black" => Ok(Player::First),
        "w" | "white" => Ok(Player::Second),
        _ => Err("syntax error".to_owned()),
    }
}
