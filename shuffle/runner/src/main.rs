//! `shuffle-runner`: every rank of a job sends messages to the others, and checks every one that it gets.
//!
//! ```console
//! $ mpirun -n 4 shuffle-runner --count 1000000
//! $ shuffle-runner --local 4 --nodes 2x2 --duration 5 --json
//! $ shuffle-runner --plan 10000x32
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `arguments` | what it may be told |
//! | `aim` | to whom the next message goes |
//! | `payload` | what a message holds, and how it is checked |
//! | `work` | one rank |
//! | `signal` | its state, when it is asked by `SIGUSR1` |
//! | `watch` | whether every rank answers |
//! | `samples` | what is looked at while it runs: the progress bar, and what is drawn |
//! | `report` | what is printed at the end |
//! | `plot` | what is drawn |
//! | `room` | whether this machine can hold the ranks |

#![forbid(unsafe_code)]

mod aim;
mod arguments;
mod error;
mod payload;
mod plot;
mod report;
mod room;
mod samples;
mod signal;
mod watch;
mod work;

use std::{
    io::{IsTerminal as _, Write as _},
    process::ExitCode,
};

use hg_job::{Local, Settings};
use hg_shuffle::route::Plan;

use crate::{arguments::Arguments, error::Error};

fn main() -> ExitCode {
    let arguments: Arguments = match hg_cli_style::parse_or(not_read, prints) {
        Ok(arguments) => arguments,
        Err(ended) => return ended,
    };
    match run(&arguments) {
        Ok(code) => code,
        Err(Error::Told) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("shuffle-runner: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    if let Some(map) = &arguments.plan {
        let plan = Plan::new(map, &arguments.options()?);
        let text = if arguments.json { report::of_plan(&plan) } else { plan.to_string() };
        report::unless_closed(write!(std::io::stdout(), "{text}")).map_err(Error::Print)?;
        return Ok(ExitCode::SUCCESS);
    }
    // Before there are threads, which take this over, and ranks, which do so, too.
    signal::hold()?;
    if let Some(size) = arguments.local
        && !Local::is_rank()
    {
        arguments.check(size)?;
        if !arguments.force {
            room::check(size, arguments.nodes.as_ref(), &arguments.options()?)?;
        }
        arguments.check_transports()?;
        arguments.plot.as_deref().map_or(Ok(()), plot::check)?;
        let local =
            arguments.nodes.iter().fold(Local::new(size), |local, map| local.nodes(map.clone()));
        let local = local.on_waiting(say_waiting);
        say_if_debug();
        let ended = local.run()?;
        let report = ended.report();
        if !report.is_empty() {
            say(&format!("shuffle-runner: {report}"));
        }
        return Ok(ExitCode::from(ended.code()));
    }
    let job = Settings::new().on_waiting(say_waiting).connect()?;
    // Below `--local` the runner has said it.
    if job.rank() == 0 && !Local::is_rank() {
        say_if_debug();
    }
    let is_well = work::run(&job, arguments)?;
    job.leave()?;
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether help is this process's to print: of a launcher's ranks, the first one's.
fn prints() -> bool {
    Settings::new().rank().is_none_or(|rank| rank == 0)
}

/// Ranks of a launcher have one command line, most likely: the first of them says what is wrong with it.
fn not_read(sentence: String) -> ExitCode {
    let own = Error::Unreadable(sentence);
    let words = own.to_string();
    let told = Settings::new().connect().and_then(|job| {
        let told = work::say_once(&job, &Err(own));
        // Fails only where others have ended otherwise.
        let _ = job.leave();
        told
    });
    if told.is_err() {
        say(&format!("shuffle-runner: {words}"));
    }
    ExitCode::from(hg_cli_style::WRONG)
}

/// Whom this process waits for at the start.
fn say_waiting(words: &str) {
    say(&format!("shuffle-runner: {words}"));
}

/// To whoever looks at the figures of a build that is not optimised.
fn say_if_debug() {
    if cfg!(debug_assertions) && std::io::stderr().is_terminal() {
        say("this is a debug build: its figures mean nothing; build with --release");
    }
}

/// A line on standard error, in one piece: other ranks write there, too.
fn say(line: &str) {
    // Nobody is left to be told that this failed.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
