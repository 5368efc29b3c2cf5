//! `invoke-runner`: the threads of a job's processes call one another, and every call is checked where it runs.
//!
//! ```console
//! $ mpirun -n 4 invoke-runner --threads 2 --count 1000000
//! $ invoke-runner --local 4 --pattern random --size 64 --duration 5 --json
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `arguments` | what it may be told |
//! | `aim` | whom a thread calls next |
//! | `payload` | what a call holds, and how it is checked |
//! | `making` | how calls of each kind are made |
//! | `work` | one process, and one thread of it |
//! | `samples` | what is looked at while it runs |
//! | `report` | what is printed at the end |

#![forbid(unsafe_code)]

mod aim;
mod arguments;
mod error;
mod making;
mod payload;
mod report;
mod samples;
mod work;

use std::process::ExitCode;

use hg_job::{Local, Settings};
use hg_job_runner::{
    plot, room,
    say::{self, say},
};

use crate::{arguments::Arguments, error::Error};

/// Of this program.
const NAME: &str = "invoke-runner";

fn main() -> ExitCode {
    let arguments: Arguments = match hg_cli_style::parse_or(not_read, say::prints) {
        Ok(arguments) => arguments,
        Err(ended) => return ended,
    };
    match run(&arguments) {
        Ok(code) => code,
        Err(Error::Told) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("{NAME}: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    if let Some(size) = arguments.local
        && !Local::is_rank()
    {
        arguments.check(size)?;
        if !arguments.force {
            room::check(size, |ranks| arguments.need(ranks), true)
                .map_err(|why| Error::Argument("local", why))?;
        }
        arguments.check_transport()?;
        if let Some(file) = &arguments.plot {
            plot::check(file).map_err(|error| Error::Plot(file.clone(), error))?;
        }
        say::if_debug();
        let ended = Local::new(size).on_waiting(say_waiting).run()?;
        let report = ended.report();
        if !report.is_empty() {
            say(&format!("{NAME}: {report}"));
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

fn not_read(sentence: String) -> ExitCode {
    say::unreadable(NAME, &sentence);
    ExitCode::from(hg_cli_style::WRONG)
}

/// Whom this process waits for at the start.
fn say_waiting(words: &str) {
    say(&format!("{NAME}: {words}"));
}
