//! `hg-perf shuffle`: the messages a second of `shuffle-runner`, beside `ring_rate` and beside the same job written by
//! hand over each MPI that is installed.
//!
//! | figure              | what it is                                                                |
//! |---------------------|---------------------------------------------------------------------------|
//! | `shuffle_batched`   | `shuffle-runner` with batches of `--batch` bytes                          |
//! | `shuffle_unbatched` | the same, every message by itself                                         |
//! | `openmpi_batched`   | the same batches over Open MPI, as [`mpi`] has it; `mpich_batched` MPICH  |
//! | `openmpi_isend`     | one `MPI_Isend` for each message; `mpich_isend` over MPICH                |
//!
//! Everything is taken in turns, so that a ratio is of the same moments. All ranks check every message.

mod mpi;

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde_json::Value;

use crate::error::{Context, Error};
use crate::limits::ring;
use crate::measure::{Measure, Subject, Unit};
use crate::pair::Cores;
use crate::report;
use crate::turns::{Place, Turns};

/// `hg-perf shuffle`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Ranks.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,
    /// Imitates nodes, `2x2`: between them messages go by TCP; those over Open MPI all do, and MPICH is left out.
    #[arg(long, value_name = "MAP")]
    nodes: Option<String>,
    /// Bytes of a message.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(16..=65_536))]
    size: u32,
    /// Bytes of a batch.
    #[arg(long, default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    batch: u32,
    /// Seconds of each run.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Repetitions of each figure, taken in turns.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Leaves MPI out.
    #[arg(long)]
    no_mpi: bool,
    /// The runner, where it does not lie beside this program.
    #[arg(long, value_name = "PATH")]
    runner: Option<PathBuf>,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let runner = arguments.runner()?;
    let built = if arguments.no_mpi { Vec::new() } else { mpi::build(arguments.nodes.is_some())? };
    let cores = Cores::choose()?;
    let allowed = sched_getaffinity(Pid::from_raw(0)).context("sched_getaffinity")?;
    cores.pin_origin()?;
    let outside = |figure: String, program: OsString, words: Vec<String>| Outside {
        subject: arguments.subject(figure),
        program,
        words,
        cores,
        allowed,
    };
    let mut turns = Turns::default();
    let ring = turns.add(ring::Pair::start(cores, INFLIGHT)?);
    let ways = [("batched", "batched", arguments.batch), ("unbatched", "isend", 0)];
    for (ours, theirs, batch) in ways {
        let words = arguments.words(batch);
        let name = format!("shuffle_{ours}");
        let own = turns.add(outside(name, runner.clone().into_os_string(), words));
        turns.line(move |taken| taken.beside(own, ring));
        for program in &built {
            let (launcher, words) = program.command(arguments, batch);
            let figure = format!("{}_{theirs}", program.name());
            let other = turns.add(outside(figure, launcher.into(), words));
            compare(&mut turns, own, other);
        }
    }
    report::print(json, &turns.take(arguments.repetitions)?)
}

/// A line for the figure of MPI, and one for the shuffle's beside it.
fn compare(turns: &mut Turns, own: Place, other: Place) {
    turns.line(move |taken| taken.figure(other));
    turns.line(move |taken| taken.beside(own, other));
}

impl Arguments {
    /// The runner that was built with this program.
    fn runner(&self) -> Result<PathBuf, Error> {
        if let Some(path) = &self.runner {
            return Ok(path.clone());
        }
        let beside = std::env::current_exe().context("readlink /proc/self/exe")?;
        let beside = beside.with_file_name("shuffle-runner");
        if beside.is_file() {
            return Ok(beside);
        }
        let build = "cargo build --release -p hydrargyrum-shuffle-runner";
        let why = format!("{} is not there: `{build}`, or --runner PATH", beside.display());
        Err(Error::Impossible(why))
    }

    /// What the runner is told.
    fn words(&self, batch: u32) -> Vec<String> {
        let Self { ranks, size, seconds, .. } = self;
        let mut words = format!("--local {ranks} --json --size {size} --duration {seconds}");
        words += if batch == 0 { " --unbatched" } else { "" };
        if batch > 0 {
            let options = ["lobuftarget", "lrbuftarget", "rbuftarget"];
            options.iter().for_each(|option| words += &format!(" --{option} {batch}"));
        }
        if let Some(nodes) = &self.nodes {
            words += &format!(" --url tcp://127.0.0.1 --nodes {nodes}");
        }
        words.split(' ').map(str::to_owned).collect()
    }

    fn subject(&self, figure: String) -> Subject {
        let url = if self.nodes.is_some() { "tcp://" } else { "sm://" };
        Subject {
            url: Some(url.to_owned()),
            size: Some(self.size.into()),
            peers: Some(u64::from(self.ranks)),
            ..Subject::new(figure, Unit::PerSecond)
        }
    }
}

/// A program that says how many messages a second there were, in its last line.
#[derive(Debug)]
struct Outside {
    subject: Subject,
    program: OsString,
    words: Vec<String>,
    cores: Cores,
    /// Where its ranks may run: this process itself is pinned.
    allowed: CpuSet,
}

impl Measure for Outside {
    fn subject(&self) -> Subject {
        self.subject.clone()
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let mut command = Command::new("timeout");
        command.args(["-k", "2", PATIENCE_S]).arg(&self.program).args(&self.words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        sched_setaffinity(Pid::from_raw(0), &self.allowed).context("sched_setaffinity")?;
        let started = command.spawn();
        self.cores.pin_origin()?;
        let started = match started {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(Error::NoProgram { program: "timeout", package: "coreutils" });
            }
            started => started.context("spawn")?,
        };
        let output = started.wait_with_output().context("waitpid")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let said = String::from_utf8_lossy(&output.stderr);
        let rate = output.status.success().then(|| rate(&text)).flatten();
        let words: Vec<&str> =
            [text.trim(), said.trim()].into_iter().filter(|words| !words.is_empty()).collect();
        rate.ok_or_else(|| failed(&self.program, &words.join("; ")))
    }
}

/// The rate in the last line, if nothing was wrong.
fn rate(text: &str) -> Option<f64> {
    let last: Value = serde_json::from_str(text.lines().last()?).ok()?;
    let wrong = ["lost", "repeated", "corrupted", "wrong"];
    let is_well = wrong.iter().all(|name| last[name].as_u64().is_none_or(|count| count == 0));
    last["messages_per_s"].as_f64().filter(|_| is_well)
}

fn failed(program: &OsStr, said: &str) -> Error {
    Error::Failed(format!("{} did not end well: {said}", program.display()))
}

/// Requests in flight of `ring_rate`.
const INFLIGHT: u32 = 16;
/// How long one run may take.
const PATIENCE_S: &str = "120";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_counts_only_when_nothing_was_wrong() {
        assert_eq!(rate("{}\n{\"messages_per_s\":2.5,\"lost\":0,\"wrong\":0}\n"), Some(2.5));
        for bad in ["", "no", "{}", "{\"messages_per_s\":1,\"wrong\":3}"] {
            assert_eq!(rate(bad), None, "{bad}");
        }
    }
}
