//! The command line.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
#[command(
    name = "hydrargyrum",
    version,
    disable_help_subcommand = true,
    subcommand_required = true
)]
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
    match hg_cli_style::parse() {
        Ok(Cli { command: Command::Info(info) }) => info.run(),
        Ok(Cli { command: Command::Ping(ping) }) => ping.run(),
        Err(ended) => Ok(ended),
    }
}

/// Writes to standard output; a reader who closed it has read enough.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn print(text: &str) -> Result<(), Wrong> {
    hg_cli_style::print(text).map_err(|error| Wrong {
        status: 1,
        sentence: format!("standard output cannot be written: {error}"),
    })
}
