//! The command line, and one clear sentence for one that is wrong.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Parser, Subcommand, error::ErrorKind};

use crate::{info, ping};

/// Why nothing came of it.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) status: u8,
    pub(crate) sentence: String,
}

impl Wrong {
    /// The command line is wrong.
    pub(crate) fn asked(sentence: String) -> Self {
        Self { status: 2, sentence }
    }
}

/// What this machine offers to Hydrargyrum.
#[derive(Debug, Parser)]
#[command(name = "hg", version, disable_help_subcommand = true, subcommand_required = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists what this machine offers, and what to install for what is missing
    Info(info::Info),
    /// Says whether an engine answers, by which way and how fast
    Ping(ping::Ping),
}

/// Does what the command line says.
///
/// # Errors
/// What is wrong with it, in a sentence.
pub(crate) fn run() -> Result<ExitCode, Wrong> {
    match Cli::try_parse() {
        Ok(Cli { command: Command::Info(info) }) => info.run(),
        Ok(Cli { command: Command::Ping(ping) }) => ping.run(),
        Err(told) if matches!(told.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            print(&format!("{}\n", told.to_string().trim_end())).map(|()| ExitCode::SUCCESS)
        }
        Err(wrong) => Err(Wrong::asked(sentence(&wrong))),
    }
}

/// Writes to standard output; a reader who closed it has read enough.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn print(text: &str) -> Result<(), Wrong> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Wrong {
            status: 1,
            sentence: format!("standard output cannot be written: {error}"),
        }),
        _ => Ok(()),
    }
}

/// The first line of what clap has to say, and what to do.
fn sentence(wrong: &clap::Error) -> String {
    if matches!(
        wrong.kind(),
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        return "a command is missing: `hg info` lists what this machine offers, `hg --help` all commands"
            .to_owned();
    }
    let text = wrong.to_string();
    // What is wrong stands before the first empty line, perhaps as a list.
    let what = text.lines().take_while(|line| !line.trim().is_empty()).map(str::trim);
    let what = what.collect::<Vec<_>>().join(" ");
    format!("{}; `hg --help` says what there is", what.strip_prefix("error: ").unwrap_or(&what))
}
