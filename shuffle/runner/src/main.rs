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
//! | `samples` | what is looked at while it runs: the progress bar, and what is drawn |
//! | `report` | what is printed at the end |
//! | `room` | whether this machine can hold the ranks |

#![forbid(unsafe_code)]

mod aim;
mod arguments;
mod error;
mod payload;
mod report;
mod room;
mod samples;
mod signal;
mod work;

use std::{io::Write as _, process::ExitCode};

use hg_job::{Local, Settings};
use hg_job_runner::{
    plot,
    say::{self, say},
};
use hg_shuffle::route::{Plan, SimulatedStart};

use crate::{arguments::Arguments, error::Error, work::NAME};

fn main() -> ExitCode {
    let arguments: Arguments = match hg_cli_style::parse_or(not_read, say::prints) {
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
        let mut text = if arguments.json { report::of_plan(&plan) } else { plan.to_string() };
        if arguments.simulate {
            text += &SimulatedStart::run(map, SEED).to_string();
        }
        say::unless_closed(write!(std::io::stdout(), "{text}")).map_err(Error::Print)?;
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
        if let Some(file) = &arguments.plot {
            plot::check(file).map_err(|error| Error::Plot(file.clone(), error))?;
        }
        let local =
            arguments.nodes.iter().fold(Local::new(size), |local, map| local.nodes(map.clone()));
        let local = local.on_waiting(say_waiting);
        say::if_debug();
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
        say::if_debug();
    }
    let is_well = work::run(&job, arguments)?;
    job.leave()?;
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The order in which the frames of a simulated start are handled.
const SEED: u64 = 1;

fn not_read(sentence: String) -> ExitCode {
    say::unreadable(NAME, &sentence);
    ExitCode::from(hg_cli_style::WRONG)
}

/// Whom this process waits for at the start.
fn say_waiting(words: &str) {
    say(&format!("shuffle-runner: {words}"));
}
