//! `hg-perf shuffle`: the messages a second of `shuffle-runner`, beside `ring_rate` and beside the same job written by
//! hand over each MPI that is installed.
//!
//! | figure              | what it is                                                                |
//! |---------------------|---------------------------------------------------------------------------|
//! | `shuffle_batched`   | `shuffle-runner` with batches of `--batch` bytes                          |
//! | `shuffle_unbatched` | the same, no message waits for others to fill a batch                     |
//! | `openmpi_batched`   | the same batches over Open MPI, as `direct.c` has it; `mpich_batched` MPICH|
//! | `openmpi_isend`     | one `MPI_Isend` for each message; `mpich_isend` over MPICH                |
//!
//! Everything is taken in turns, so that a ratio is of the same moments. All ranks check every message.

use std::ffi::OsString;
use std::path::PathBuf;

use nix::sched::sched_getaffinity;
use nix::unistd::Pid;

use crate::error::{Context, Error};
use crate::limits::ring;
use crate::measure::{Subject, Unit};
use crate::mpi;
use crate::outside::{self, Outside};
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
    /// Between nodes the shuffle does not encrypt, either.
    #[arg(long, requires = "nodes")]
    no_key: bool,
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
    /// Whether ranks send messages to themselves, too: ours and those over MPI.
    #[arg(long = "self", value_parser = ["yes", "no"], default_value = "yes")]
    with_self: String,
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
    let across = arguments.nodes.is_some();
    let built = if arguments.no_mpi { Vec::new() } else { mpi::build(DIRECT, across)? };
    let cores = Cores::choose()?;
    let allowed = sched_getaffinity(Pid::from_raw(0)).context("sched_getaffinity")?;
    cores.pin_origin()?;
    let outside = |figure: String, program: OsString, words: Vec<String>| Outside {
        subject: arguments.subject(figure),
        program,
        words,
        rate: "messages_per_s",
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
            let Arguments { ranks, size, seconds, .. } = arguments;
            let with_self = arguments.with_self.clone();
            let told = [batch.to_string(), size.to_string(), seconds.to_string(), with_self];
            let (launcher, words) = program.command(*ranks, across, &told);
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
        let build = "cargo build --release -p hydrargyrum-shuffle-runner";
        outside::beside_this("shuffle-runner", &format!("`{build}`, or --runner PATH"))
    }

    /// What the runner is told.
    fn words(&self, batch: u32) -> Vec<String> {
        let Self { ranks, size, seconds, with_self, .. } = self;
        let mut words = format!("--local {ranks} --json --size {size} --duration {seconds}");
        words += &format!(" --self {with_self}");
        words += if batch == 0 { " --unbatched" } else { "" };
        if batch > 0 {
            let options = ["lobuftarget", "lrbuftarget", "rbuftarget"];
            options.iter().for_each(|option| words += &format!(" --{option} {batch}"));
        }
        if let Some(nodes) = &self.nodes {
            words += &format!(" --url tcp://127.0.0.1 --nodes {nodes}");
            words += if self.no_key { " --no-key" } else { "" };
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

/// Requests in flight of `ring_rate`.
const INFLIGHT: u32 = 16;
/// The job of the runner, over MPI.
const DIRECT: &str = include_str!("shuffle/direct.c");
