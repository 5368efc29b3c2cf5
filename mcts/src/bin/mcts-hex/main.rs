//! `mcts-hex`: plays Hex by Monte-Carlo tree search: alone, on several threads, or on those of all processes of a job.

mod arguments;
mod bench;
mod board;
mod games;
mod gtp;
mod input;
mod play;
mod plot;
mod report;

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use arguments::{Arguments, Command};
use hg_job::Local;
use hg_job_runner::say;
use hg_mcts::{Analysis, Budget, Game as _, Progress, Search, Team, hex::Hex};

fn main() -> ExitCode {
    let arguments: Arguments = match hg_cli_style::parse_or(not_read, say::prints) {
        Ok(arguments) => arguments,
        Err(status) => return status,
    };
    if let Err(sentence) = arguments.check() {
        not_read(sentence);
        return ExitCode::FAILURE;
    }
    match run(&arguments) {
        Ok(status) => status,
        Err(sentence) => {
            tell(&sentence);
            ExitCode::FAILURE
        }
    }
}

fn not_read(sentence: String) -> ExitCode {
    if say::prints() {
        tell(&sentence);
    }
    ExitCode::from(hg_cli_style::WRONG)
}

fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    if let Some(size) = arguments.local
        && !Local::is_rank()
    {
        let ended = Local::new(size).on_waiting(tell).run().map_err(|error| error.to_string())?;
        if !ended.report().is_empty() {
            tell(&ended.report());
        }
        return Ok(ExitCode::from(ended.code()));
    }
    let job = hg_job::Settings::new().on_waiting(tell).connect();
    let job = job.map_err(|error| error.to_string())?;
    if job.size() == 1 {
        if arguments.url.is_some() {
            return Err(
                "--url: has no effect in one process; `--local N`, `mpirun` or `srun` start several".to_owned()
            );
        }
        command(arguments, None)?;
    } else {
        let url = arguments.transport(job.node_map().nodes());
        let team = Team::open(&job, arguments.search.threads_of_team()?, url);
        if let Some(team) = team.map_err(|error| error.to_string())? {
            command(arguments, Some(&team))?;
        }
    }
    job.leave().map_err(|error| error.to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// What was asked for, done by the first process of a job, which has the others for its searches.
fn command(arguments: &Arguments, team: Option<&Team<Hex>>) -> Result<(), String> {
    if arguments.gtp {
        return gtp::run(arguments, team);
    }
    if arguments.bench {
        return say(&bench::run(arguments, team)?);
    }
    match arguments.command() {
        Command::Best | Command::Analyze => analyze(arguments, team),
        Command::SelfPlay => games::self_play(arguments, team),
        Command::Match => games::play_match(arguments, team),
        Command::Play => play::run(arguments, team),
    }
}

fn analyze(arguments: &Arguments, team: Option<&Team<Hex>>) -> Result<(), String> {
    if let Some(file) = &arguments.plot {
        hg_job_runner::plot::check(file).map_err(|error| plot::unwritten(file, &error))?;
    }
    let mut search = start(arguments, team, arguments.position()?)?;
    let found = think(&mut search, arguments.search.budget(), arguments.progress)?;
    if found.best.is_none() && search.position().outcome().is_none() {
        return Err(NOTHING_SEARCHED.to_owned());
    }
    let report = report::Report::new(&search, &found, &arguments.search);
    match (arguments.json, arguments.command()) {
        (true, _) => say(&format!("{:#}\n", report.json()?)),
        (false, Command::Best) => say(&report.best()),
        (false, _) => say(&report.text()),
    }?;
    // Last: where it cannot be written, the rest is not lost.
    let plot = arguments.plot.as_ref();
    plot.map_or(Ok(()), |file| plot::write(file, search.position(), &found))
}

fn start(
    arguments: &Arguments,
    team: Option<&Team<Hex>>,
    position: Hex,
) -> Result<Search<Hex>, String> {
    arguments.search.start(team, position)
}

/// Where a budget was too small for a move.
const NOTHING_SEARCHED: &str = "nothing was searched: give more time or rollouts";

/// A phase, with or without a line every second.
fn think(search: &mut Search<Hex>, budget: Budget, tells: bool) -> Result<Analysis, String> {
    let mut next = Duration::from_secs(1);
    let found = search.run_with(budget, |progress: &Progress| {
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
    });
    found.map_err(|error| error.to_string())
}

/// A line on standard error.
fn tell(sentence: &str) {
    say::say(&format!("mcts-hex: {sentence}"));
}

/// Writes a text; who has closed standard output has read enough.
fn say(text: &str) -> Result<(), String> {
    shows(text).map(drop)
}

/// Writes a text; `false`: nobody reads any more.
fn shows(text: &str) -> Result<bool, String> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(format!("standard output cannot be written: {error}")),
    }
}
