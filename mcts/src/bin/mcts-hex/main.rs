//! `mcts-hex`: plays Hex by Monte-Carlo tree search, alone or on several threads.

mod arguments;
mod bench;
mod board;
mod games;
mod gtp;
mod play;
mod plot;
mod report;

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use arguments::{Arguments, Command};
use hg_cli_style::print;
use hg_mcts::{Analysis, Budget, Progress, Search, hex::Hex};

fn main() -> ExitCode {
    let arguments: Arguments = match hg_cli_style::parse() {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            // A closed standard error leaves nobody to tell.
            let _ = writeln!(io::stderr(), "mcts-hex: {sentence}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    if arguments.gtp {
        return gtp::run(arguments);
    }
    if arguments.bench {
        return say(&bench::run(arguments)?);
    }
    match arguments.command {
        Command::Best | Command::Analyze => analyze(arguments),
        Command::SelfPlay => games::self_play(arguments),
        Command::Match => games::play_match(arguments),
        Command::Play => play::run(arguments),
    }
}

fn analyze(arguments: &Arguments) -> Result<(), String> {
    let mut search = start(arguments, arguments.position()?)?;
    let found = think(&mut search, arguments.budget(), arguments.progress);
    if let Some(file) = &arguments.plot {
        plot::write(file, search.position(), &found)?;
    }
    let report = report::Report::new(&search, &found, &arguments.search);
    match (arguments.json, arguments.command) {
        (true, _) => say(&format!("{:#}\n", report.json())),
        (false, Command::Best) => say(&report.best()),
        (false, _) => say(&report.text()),
    }
}

fn start(arguments: &Arguments, position: Hex) -> Result<Search<Hex>, String> {
    Search::new(position, arguments.search.settings()).map_err(|error| error.to_string())
}

/// A phase, with or without a line every second.
fn think(search: &mut Search<Hex>, budget: Budget, tells: bool) -> Analysis {
    let mut next = Duration::from_secs(1);
    search.run_with(budget, |progress: &Progress| {
        if tells && progress.elapsed >= next {
            next += Duration::from_secs(1);
            let (time, rate) = (progress.elapsed.as_secs_f64(), report::rate(progress));
            // A closed standard error leaves nobody to tell.
            let _ = writeln!(
                io::stderr(),
                "{time:.1} s: {} simulations, {rate:.2} M/s",
                progress.simulations
            );
        }
    })
}

fn say(text: &str) -> Result<(), String> {
    print(text).map_err(|error| format!("standard output cannot be written: {error}"))
}
