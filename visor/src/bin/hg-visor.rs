//! `hg-visor`: the daemon, and questions to one that runs.
//!
//! | command | what |
//! |---|---|
//! | `hg-visor serve CONFIGURATION` | serves until it is ended, or has drained |
//! | `hg-visor status` | prints what it does, as JSON |
//! | `hg-visor metrics` | the same as Prometheus reads it, for the text files that its `node_exporter` collects; the setting `metrics` serves it over HTTP |
//! | `hg-visor drain` | has it take nothing new, and end when nothing is left |
//! | `hg-visor drain --within 30s` | the same, and waits for it; what is left then is ended, and the exit status 3 |

use std::{
    env,
    io::{self, Write as _},
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::{Parser, Subcommand};
use hg_na::Error;
use hg_visor::{Answer, Config, Daemon, NAME, Question, ask, prometheus};

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
    /// The same, as Prometheus reads it.
    Metrics(Which),
    /// Has a daemon take nothing new, and end when the last connection has.
    Drain {
        #[command(flatten)]
        which: Which,
        /// Waits until it has ended, by then at the latest (500ms, 30s, 5m): what is left is ended, and the exit status is 3.
        #[arg(long, value_parser = duration)]
        within: Option<Duration>,
    },
}

#[derive(Debug, clap::Args)]
struct Which {
    /// The daemon's name.
    #[arg(long, env = "HG_VISOR", default_value = NAME)]
    name: String,
}

/// Exit status: it was not as it was asked to be, what was left was ended, say.
const ENDED: u8 = 3;
/// `SD_LISTEN_FDS_START`.
const FIRST_GIVEN: i32 = 3;
/// Time until a daemon that does not answer is given up.
const PATIENCE: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(ENDED),
        Err(error) => {
            let _nobody_reads = writeln!(std::io::stderr(), "hg-visor: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Says whether all is well.
fn run(command: Command) -> Result<bool, Error> {
    let answer = match command {
        Command::Serve { configuration } => {
            let text = std::fs::read_to_string(&configuration).map_err(|error| {
                let why = format!("{}: {error}", configuration.display());
                Error::BadSetting { name: "configuration".to_owned(), why }
            })?;
            let mut config = Config::parse(&text)?;
            config.listen_fd = given_socket()?;
            #[cfg(target_env = "gnu")]
            keep_freed_memory();
            let mut daemon = Daemon::open(config)?;
            say(daemon.address().as_str());
            tell_systemd().map_err(|error| Error::os("sendto", error))?;
            return daemon.run().map(|()| true);
        }
        Command::Status(Which { name }) => ask(&name, Question::Status, PATIENCE)?,
        Command::Metrics(Which { name }) => {
            let answer = ask(&name, Question::Status, PATIENCE)?;
            Answer { text: prometheus(&answer.text).trim_end().to_owned(), ..answer }
        }
        Command::Drain { which: Which { name }, within } => {
            ask(&name, Question::Drain { within }, PATIENCE)?
        }
    };
    say(&answer.text);
    Ok(answer.is_well)
}

/// So many bytes that are free at the end of the heap stay this process's. Otherwise what a few frames of 64 KiB have left goes back to the
/// kernel, which has to find and clear the same pages for the next ones.
#[cfg(target_env = "gnu")]
const KEPT_FREE: i32 = 8 << 20;

#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "tells the allocator what it may keep")]
fn keep_freed_memory() {
    // SAFETY:
    // - touches no memory but a number of the allocator's own, under its lock.
    let _is_known = unsafe { nix::libc::mallopt(nix::libc::M_TRIM_THRESHOLD, KEPT_FREE) };
}

/// A number with its unit.
fn duration(text: &str) -> Result<Duration, String> {
    let unit = text.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let number = text.strip_suffix(unit).and_then(|digits| digits.parse::<u64>().ok());
    let factor =
        [("ms", 1), ("s", 1000), ("m", 60_000)].into_iter().find(|(name, _)| *name == unit);
    let ms = number.zip(factor).and_then(|(number, (_, factor))| number.checked_mul(factor));
    ms.map(Duration::from_millis).ok_or_else(|| "it takes a number and ms, s or m: 30s".to_owned())
}

/// The socket that whoever has started it made for it (`sd_listen_fds(3)`).
fn given_socket() -> Result<Option<i32>, Error> {
    let word = |name| env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    if word("LISTEN_PID") != Some(std::process::id()) {
        return Ok(None);
    }
    match word("LISTEN_FDS") {
        None | Some(0) => Ok(None),
        Some(1) => Ok(Some(FIRST_GIVEN)),
        Some(count) => {
            let why = format!("it takes one socket, and was given {count}");
            Err(Error::BadSetting { name: "LISTEN_FDS".to_owned(), why })
        }
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout();
    // Whoever has started it may read no further.
    let _nobody_reads = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Tells whoever has started it, where that wants to know (`sd_notify(3)`), that applications can come.
fn tell_systemd() -> io::Result<()> {
    let Some(place) = env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let socket = UnixDatagram::unbound()?;
    match place.as_bytes().strip_prefix(b"@") {
        Some(name) => socket.send_to_addr(b"READY=1", &SocketAddr::from_abstract_name(name)?)?,
        None => socket.send_to(b"READY=1", &place)?,
    };
    Ok(())
}
