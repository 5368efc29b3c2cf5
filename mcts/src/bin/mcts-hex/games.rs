//! Games of the program against itself, and between two settings.

use std::fmt::Write as _;

use hg_mcts::{Game, Outcome, Player, Random, Team, hex::Hex};
use serde_json::json;

use crate::{
    NOTHING_SEARCHED,
    arguments::{Arguments, SearchArguments},
    board, say, shows, start, think,
};

pub(crate) fn self_play(arguments: &Arguments, team: Option<&Team<Hex>>) -> Result<(), String> {
    let mut search = start(arguments, team, arguments.position()?)?;
    let mut moves = Vec::new();
    let mut simulations = 0;
    while search.position().outcome().is_none() {
        let found = think(&mut search, arguments.search.budget(), arguments.progress)?;
        simulations += found.last.simulations;
        let best = found.best.ok_or(NOTHING_SEARCHED)?;
        moves.push(search.position().format_move(best));
        search.advance(best);
        if !arguments.json && !shows(&format!("{}. {}\n", moves.len(), moves[moves.len() - 1]))? {
            return Ok(());
        }
    }
    let position = search.position();
    let winner = position.winner().expect("the game is over");
    if arguments.json {
        let winner = if winner == Player::First { "first" } else { "second" };
        let out = json!({"size": position.size(), "moves": moves, "winner": winner, "simulations": simulations});
        return say(&format!("{out:#}\n"));
    }
    say(&format!("{}{} wins\n", board::draw(position, None), board::name(winner)))
}

/// The games of a match, from the side whose settings are not `--against`.
#[derive(Clone, Copy, Debug, Default)]
struct Score {
    won: u32,
    games: u32,
    won_first: u32,
}

pub(crate) fn play_match(arguments: &Arguments, team: Option<&Team<Hex>>) -> Result<(), String> {
    let sides = [arguments.search.clone(), arguments.opponent()?];
    let start = arguments.position()?;
    let mut random = Random::new(sides[0].seed(), u32::MAX);
    let mut score = Score::default();
    let mut opening = start.clone();
    for game in 0..arguments.games() {
        if game % 2 == 0 {
            opening = random_opening(&start, &mut random);
        }
        let own = if game % 2 == 0 { Player::First } else { Player::Second };
        let winner = play_one((&opening, team), &sides, own, game / 2)?;
        score.games += 1;
        score.won += u32::from(winner == own);
        score.won_first += u32::from(winner == own && own == Player::First);
        if arguments.progress {
            use std::io::Write as _;
            // A closed standard error leaves nobody to tell.
            let _ = writeln!(std::io::stderr(), "game {}: won {}", score.games, score.won);
        }
    }
    say(&score.describe(arguments))
}

/// One random move more: otherwise all games are much alike.
fn random_opening(start: &Hex, random: &mut Random) -> Hex {
    let (mut board, mut moves) = (start.clone(), Vec::new());
    board.moves(&mut moves);
    if !moves.is_empty() {
        board.play(moves[random.below(moves.len())]);
    }
    board
}

fn play_one(
    (opening, team): (&Hex, Option<&Team<Hex>>),
    sides: &[SearchArguments; 2],
    own: Player,
    number: u32,
) -> Result<Player, String> {
    let (mut searches, budgets) = (Vec::new(), sides.each_ref().map(SearchArguments::budget));
    for side in sides {
        let side = side.with_seed(side.seed() + u64::from(number));
        searches.push(side.start(team, opening.clone())?);
    }
    loop {
        let position = searches[0].position();
        if let Some(Outcome::Won(winner)) = position.outcome() {
            return Ok(winner);
        }
        let at = usize::from(position.turn() != own);
        let found = searches[at].run(budgets[at]).map_err(|error| error.to_string())?;
        let best = found.best.ok_or(NOTHING_SEARCHED)?;
        searches.iter_mut().for_each(|it| it.advance(best));
    }
}

/// The standard normal distribution's 97.5 % quantile.
const Z: f64 = 1.959_964;

impl Score {
    /// Part of the games that were won, and its 95 % confidence interval (Wilson 1927).
    fn interval(self) -> (f64, f64, f64) {
        let (games, part) = (f64::from(self.games), f64::from(self.won) / f64::from(self.games));
        let scale = 1.0 + Z * Z / games;
        let centre = (part + Z * Z / (2.0 * games)) / scale;
        let width =
            Z * (part * (1.0 - part) / games + Z * Z / (4.0 * games * games)).sqrt() / scale;
        (part, centre - width, centre + width)
    }

    fn describe(self, arguments: &Arguments) -> String {
        let (part, least, most) = self.interval();
        let [elo, elo_least, elo_most] = [part, least, most].map(elo);
        if arguments.json {
            let out = json!({
                "games": self.games, "won": self.won, "won_moving_first": self.won_first,
                "part": part, "part_95": [least, most],
                "elo": finite(elo), "elo_95": [finite(elo_least), finite(elo_most)],
                "against": arguments.against(),
            });
            return format!("{out:#}\n");
        }
        let mut out = String::new();
        let _ = writeln!(
            out,
            "won {} of {} against {}: {:.1} % ({:.1} to {:.1} % with 95 % confidence, Wilson)",
            self.won,
            self.games,
            match arguments.against() {
                "" => "itself".to_owned(),
                other => format!("`{other}`"),
            },
            100.0 * part,
            100.0 * least,
            100.0 * most
        );
        let _ = writeln!(out, "Elo: {elo:+.0} ({elo_least:+.0} to {elo_most:+.0})");
        let (first, half) = (self.won_first, self.games / 2);
        let second = self.won - first;
        let _ = writeln!(out, "moving first {first} of {half}, second {second} of {half}");
        out
    }
}

/// The difference in Elo at which such a part of the games is expected to be won.
fn elo(part: f64) -> f64 {
    400.0 * (part / (1.0 - part)).log10()
}

/// JSON has no infinity, which is the Elo of who has won all games.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_wilsons_and_elo_is_zero_at_a_half() {
        let (part, least, most) = Score { won: 10, games: 100, won_first: 0 }.interval();
        assert!((part - 0.1).abs() < 1e-9);
        assert!((least - 0.0552).abs() < 1e-4 && (most - 0.1744).abs() < 1e-4, "{least} {most}");
        assert!(elo(0.5).abs() < 1e-9 && (elo(0.75) - 190.85).abs() < 0.01);
        assert_eq!(finite(elo(1.0)), None);
    }
}
