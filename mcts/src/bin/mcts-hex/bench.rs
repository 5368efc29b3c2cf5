//! `--bench`: playouts and simulations a second, each figure the median of several rounds in turns.

use std::{
    hint::black_box,
    thread,
    time::{Duration, Instant},
};

use hg_mcts::{
    Budget, Instructions, Parallelism, Random, Search, Settings, SettingsError, Team, hex::Hex,
};
use serde_json::{Value, json};

use crate::arguments::Arguments;

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(300);

/// Of one figure: its name, its unit, and a round.
struct Figure<'a> {
    name: &'static str,
    unit: &'static str,
    round: Box<dyn FnMut() -> Result<f64, String> + 'a>,
    values: Vec<f64>,
}

pub(crate) fn run(arguments: &Arguments, team: Option<&Team<Hex>>) -> Result<String, String> {
    let board = arguments.position()?;
    let settings = arguments.search.settings();
    arguments.search.start(None, board.clone())?;
    let best = settings.instructions;
    let searches = |simulations, workers, parallelism| {
        let settings = Settings { simulations, workers, parallelism, ..settings.clone() };
        let board = board.clone();
        move || search(Search::new(board.clone(), settings.clone()))
    };
    let (tree, leaf) = (Parallelism::Tree, settings.simulations);
    let mut figures = vec![
        figure("playouts", "playouts/s", || Ok(playouts(&board, best))),
        figure("playouts_portable", "playouts/s", || Ok(playouts(&board, Instructions::Portable))),
        figure("search", "simulations/s", searches(leaf, 1, tree)),
        figure("search_1", "simulations/s", searches(1, 1, tree)),
    ];
    if thread::available_parallelism().map_or(1, usize::from) > 1 {
        let merged = searches(leaf, 2, Parallelism::Merged);
        figures.push(figure("search_2_threads", "simulations/s", merged));
        figures.push(figure("search_2_threads_tree", "simulations/s", searches(leaf, 2, tree)));
        let independent = searches(leaf, 2, Parallelism::Root);
        figures.push(figure("search_2_independent", "simulations/s", independent));
    }
    for (name, parallelism) in [
        ("search_job", Parallelism::Merged),
        ("search_job_tree", tree),
        ("search_job_independent", Parallelism::Root),
    ] {
        let Some(team) = team else { break };
        let (board, settings) = (board.clone(), Settings { parallelism, ..settings.clone() });
        figures.push(figure(name, "simulations/s", move || {
            search(Search::by(team, board.clone(), settings.clone()))
        }));
    }
    for _ in 0..ROUNDS {
        for it in &mut figures {
            let value = (it.round)()?;
            it.values.push(value);
        }
    }
    Ok(describe(arguments, (&board, &settings), &mut figures))
}

/// The medians, and what part of independent searches those are that work together.
fn describe(
    arguments: &Arguments,
    (board, settings): (&Hex, &Settings),
    figures: &mut [Figure<'_>],
) -> String {
    let mut medians = serde_json::Map::new();
    let mut text = String::new();
    for it in figures {
        it.values.sort_by(f64::total_cmp);
        let (least, median, most) = (it.values[0], it.values[ROUNDS / 2], it.values[ROUNDS - 1]);
        let (name, unit) = (it.name, it.unit);
        medians.insert(
            name.to_owned(),
            json!({"unit": unit, "median": median, "least": least, "most": most}),
        );
        text += &format!(
            "{name:<22} {:>8.2} M {unit} ({:.2} to {:.2})\n",
            median / 1e6,
            least / 1e6,
            most / 1e6
        );
    }
    for (name, apart, words) in [
        ("search_2_threads", "search_2_independent", "2 threads"),
        ("search_2_threads_tree", "search_2_independent", "2 threads, one tree"),
        ("search_job", "search_job_independent", "all processes"),
        ("search_job_tree", "search_job_independent", "processes, one tree"),
    ] {
        let of = |name: &str| medians.get(name).and_then(|it: &Value| it["median"].as_f64());
        if let (Some(together), Some(apart)) = (of(name), of(apart)) {
            let part = together / apart;
            medians.insert(name.replace("search", "efficiency"), json!(part));
            text += &format!("{words:<22} {part:>8.2} x as many independent searches\n");
        }
    }
    let about = json!({
        "size": board.size(),
        "simulations": settings.simulations,
        "instructions": format!("{:?}", settings.instructions).to_lowercase(),
        "rounds": ROUNDS,
        "round_seconds": ROUND.as_secs_f64(),
    });
    medians.insert("about".to_owned(), about);
    if arguments.json { format!("{:#}\n", Value::Object(medians)) } else { text }
}

fn figure<'a>(
    name: &'static str,
    unit: &'static str,
    round: impl FnMut() -> Result<f64, String> + 'a,
) -> Figure<'a> {
    Figure { name, unit, round: Box::new(round), values: Vec::new() }
}

fn playouts(board: &Hex, instructions: Instructions) -> f64 {
    const BATCH: u32 = 1_600;
    let mut random = Random::new(1, 0);
    let (mut games, began) = (0.0, Instant::now());
    while began.elapsed() < ROUND {
        black_box(board.count_wins(BATCH, &mut random, instructions));
        games += f64::from(BATCH);
    }
    games / began.elapsed().as_secs_f64()
}

/// A new tree each time: how fast a search is depends on how large its tree is.
fn search(search: Result<Search<Hex>, SettingsError>) -> Result<f64, String> {
    let mut search = search.map_err(|error| error.to_string())?;
    let found = search.run(Budget::time(ROUND)).map_err(|error| error.to_string())?;
    Ok(crate::report::rate(&found.last) * 1e6)
}
