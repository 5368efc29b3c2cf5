//! A program that runs as a job: it starts its ranks itself (`--local`), or a launcher has.

use std::{fmt::Display, process::ExitCode};

use hg_job::{Job, Local, Settings};

use crate::say::{self, say};

/// What a program does, as its command line says.
pub trait Program: clap::Parser {
    /// Its name, before all that it says.
    const NAME: &'static str;

    /// Why it ends before its end.
    type Error: From<hg_job::Error> + Display;

    /// What it does without a job, if it is asked for that, and how it ended. Called first, before there are threads.
    ///
    /// # Errors
    /// Why it could not.
    fn alone(&self) -> Result<Option<ExitCode>, Self::Error> {
        Ok(None)
    }

    /// The ranks that it is to start itself, if any, once it has looked at what would be wrong with all of them.
    ///
    /// # Errors
    /// That.
    fn local(&self) -> Result<Option<Local>, Self::Error>;

    /// What one rank does.
    ///
    /// # Errors
    /// Why it could not.
    fn work(&self, job: &Job) -> Result<Verdict, Self::Error>;
}

/// What a rank says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// All is well.
    Well,
    /// It has found, and said, that something is not.
    Wrong,
    /// What is wrong with all ranks was said by one of them ([`say::once`]), before anything was begun.
    Told,
}

/// Reads the command line, and does what it says: the whole of a program.
pub fn main<P: Program>() -> ExitCode {
    let program: P = match hg_cli_style::parse_or(not_read::<P>, say::prints) {
        Ok(program) => program,
        Err(ended) => return ended,
    };
    run(&program).unwrap_or_else(|error| {
        say(&format!("{}: {error}", P::NAME));
        ExitCode::FAILURE
    })
}

fn run<P: Program>(program: &P) -> Result<ExitCode, P::Error> {
    if let Some(code) = program.alone()? {
        return Ok(code);
    }
    if !Local::is_rank()
        && let Some(local) = program.local()?
    {
        say::if_debug();
        return Ok(start::<P>(local)?);
    }
    let job = Settings::new().on_waiting(say_waiting::<P>).connect()?;
    // Below `--local` the one that starts ranks has said it.
    if job.rank() == 0 && !Local::is_rank() {
        say::if_debug();
    }
    let verdict = program.work(&job)?;
    if verdict != Verdict::Told {
        job.leave()?;
    }
    Ok(if verdict == Verdict::Well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Starts ranks, and waits for their ends, which it says where one was not good.
///
/// # Errors
/// They could not be started.
pub fn start<P: Program>(local: Local) -> Result<ExitCode, hg_job::Error> {
    let ended = local.on_waiting(say_waiting::<P>).run()?;
    let report = ended.report();
    if !report.is_empty() {
        say(&format!("{}: {report}", P::NAME));
    }
    Ok(ExitCode::from(ended.code()))
}

fn not_read<P: Program>(sentence: String) -> ExitCode {
    say::unreadable(P::NAME, &sentence);
    ExitCode::from(hg_cli_style::WRONG)
}

/// Whom this process waits for at the start.
fn say_waiting<P: Program>(words: &str) {
    say(&format!("{}: {words}", P::NAME));
}
