//! `hg-visor`: the daemon, and questions to one that runs.
//!
//! | command | what |
//! |---|---|
//! | `hg-visor serve CONFIGURATION` | serves until it is ended, or has drained |
//! | `hg-visor status` | prints what it does, as JSON |
//! | `hg-visor drain` | has it take nothing new, and end when nothing is left |

use std::{io::Write as _, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};
use hg_na::Error;
use hg_visor::{Config, Daemon, NAME, Question, ask};

/// The daemon that owns a node's network, for applications that open `visor://`.
#[derive(Debug, Parser)]
#[command(name = "hg-visor")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves until it is ended, or has drained. Prints its address, once applications can come.
    Serve {
        /// A TOML file.
        configuration: PathBuf,
    },
    /// Prints what a daemon does, as JSON.
    Status(Which),
    /// Has a daemon take nothing new, and end when the last connection has.
    Drain(Which),
}

#[derive(Debug, clap::Args)]
struct Which {
    /// The daemon's name.
    #[arg(long, env = "HG_VISOR", default_value = NAME)]
    name: String,
}

/// Time until a daemon that does not answer is given up.
const PATIENCE: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _nobody_reads = writeln!(std::io::stderr(), "hg-visor: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), Error> {
    match command {
        Command::Serve { configuration } => {
            let text = std::fs::read_to_string(&configuration).map_err(|error| {
                let why = format!("{}: {error}", configuration.display());
                Error::BadSetting { name: "configuration".to_owned(), why }
            })?;
            let mut daemon = Daemon::open(Config::parse(&text)?)?;
            say(daemon.address().as_str());
            daemon.run()
        }
        Command::Status(Which { name }) => {
            ask(&name, Question::Status, PATIENCE).map(|it| say(&it))
        }
        Command::Drain(Which { name }) => ask(&name, Question::Drain, PATIENCE).map(|it| say(&it)),
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout();
    // Whoever has started it may read no further.
    let _nobody_reads = writeln!(out, "{line}").and_then(|()| out.flush());
}
