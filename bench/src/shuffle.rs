//! `hg-perf shuffle`: the messages a second of `shuffle-runner`, beside `ring_rate` and beside the same job written by
//! hand over each MPI that is installed.
//!
//! | figure              | what it is                                                                |
//! |---------------------|---------------------------------------------------------------------------|
//! | `shuffle_batched`   | `shuffle-runner` with batches of `--batch` bytes                          |
//! | `shuffle_unbatched` | the same, no message waits for others to fill a batch                     |
//! | `openmpi_batched`   | the same batches over Open MPI, as `direct.c` has it; `mpich_batched` MPICH|
//! | `openmpi_isend`     | one `MPI_Isend` for each message; `mpich_isend` over MPICH                |
//! | `shuffle_..._among_strangers` | with `--strangers N`: so many connect to the ranks' ports meanwhile |
//! | `shuffle_..._processor` | processor time a message, of all ranks, in the runs of `shuffle_...`  |
//!
//! Everything is taken in turns, so that a ratio is of the same moments. All ranks check every message, and time one in 64; those over
//! MPI do it in the same way. Of messages of 1 KiB and more the line beside `handover_rate` says how many of them two processes
//! carry that copy each once in and once out.
//!
//! `--busy` measures the runner alone beside two busy loops: each run is a line, and `slowest_to_median` the last one.

use std::ffi::OsString;
use std::path::PathBuf;

use nix::sched::sched_getaffinity;
use nix::unistd::Pid;

use crate::error::{Context, Error};
use crate::limits::{handover, ring};
use crate::measure::{Measure as _, Subject, Unit};
use crate::mpi;
use crate::outside::{self, Also, Outside};
use crate::pair::{Cores, Peer};
use crate::report::{self, Figure};
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
    /// Repetitions of each figure, taken in turns [default: 5, with --busy 20].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: Option<u32>,
    /// The runner alone, beside two busy loops: each run, and the slowest one in proportion to the median.
    #[arg(long)]
    busy: bool,
    /// The shuffle once more while so many connections of strangers come to the ports of its ranks, beside itself without.
    #[arg(long, value_name = "N", requires = "nodes", conflicts_with = "busy")]
    strangers: Option<u32>,
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
    let without_mpi = arguments.no_mpi || arguments.busy;
    let built = if without_mpi { Vec::new() } else { mpi::build(DIRECT, across)? };
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
        also: None,
    };
    if arguments.busy {
        let words = arguments.words(arguments.batch);
        let runs = outside("shuffle_batched".to_owned(), runner.into_os_string(), words);
        return report::print(json, &beside_busy_loops(runs, arguments.repetitions.unwrap_or(20))?);
    }
    let mut turns = Turns::default();
    let ring = turns.add(ring::Pair::start(cores, INFLIGHT)?);
    let copies = (arguments.size >= LONG)
        .then(|| handover::Pair::start(cores, arguments.size as usize, INFLIGHT))
        .transpose()?
        .map(|copies| turns.add(copies));
    let ways = [("batched", "batched", arguments.batch), ("unbatched", "isend", 0)];
    for (ours, theirs, batch) in ways {
        let words = arguments.words(batch);
        let name = format!("shuffle_{ours}");
        let mut own = outside(name.clone(), runner.clone().into_os_string(), words);
        let time = arguments.subject(format!("{name}_processor"));
        let time = Subject { unit: Unit::Microseconds, ..time };
        let time = Also::new(time, "cpu_ns_per_message", 1e3);
        own.also = Some(time.clone());
        let (own, time) = (turns.add(own), turns.add(time));
        turns.line(move |taken| taken.beside(own, ring));
        if let Some(copies) = copies {
            turns.line(move |taken| taken.beside(own, copies));
        }
        turns.line(move |taken| taken.figure(time));
        if let Some(count) = arguments.strangers {
            let words = [arguments.words(batch), vec!["--strangers".into(), count.to_string()]];
            let name = format!("{name}_among_strangers");
            let among = outside(name, runner.clone().into_os_string(), words.concat());
            let among = turns.add(among);
            turns.line(move |taken| taken.beside(among, own));
        }
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
    report::print(json, &turns.take(arguments.repetitions.unwrap_or(5))?)
}

/// A line for each run, and one for the slowest beside the median.
fn beside_busy_loops(mut runs: Outside, count: u32) -> Result<Vec<Figure>, Error> {
    // Without a core of its own each would run where this program does.
    let Cores { origin, target } = runs.cores;
    let loops = [origin, target].map(|core| Peer::run("busy", &["busy"], core));
    let loops: Vec<Peer> = loops.into_iter().collect::<Result<_, _>>()?;
    runs.measure()?;
    let mut rates = (0..count).map(|_| runs.measure()).collect::<Result<Vec<_>, _>>()?;
    drop(loops);
    let each = rates.iter().map(|rate| Figure::counted(runs.subject(), *rate));
    let mut figures: Vec<Figure> = each.collect();
    rates.sort_by(f64::total_cmp);
    let ratio = Subject { unit: Unit::Ratio, figure: "slowest_to_median".into(), ..runs.subject() };
    figures.push(Figure::counted(ratio, rates[0] / rates[rates.len() / 2]));
    Ok(figures)
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

/// Bytes of a message from which on copying it counts.
const LONG: u32 = 1024;
/// Requests in flight of `ring_rate` and `handover_rate`.
const INFLIGHT: u32 = 16;
/// The job of the runner, over MPI.
const DIRECT: &str = include_str!("shuffle/direct.c");

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// What each MPI's program says of messages of so many bytes.
    #[expect(clippy::print_stdout, reason = "says what is skipped")]
    fn said(size: &str) -> Vec<serde_json::Value> {
        let built = match mpi::build(DIRECT, false) {
            Err(Error::Impossible(_)) => {
                println!("SKIPPED: messages_over_mpi_are_timed: libopenmpi-dev is not installed");
                return Vec::new();
            }
            built => built.expect("it can be built"),
        };
        let run = |program: &mpi::Program| {
            let told = ["16384", size, "0.05", "yes"].map(str::to_owned);
            let (launcher, words) = program.command(2, false, &told);
            let output = Command::new("timeout").arg("50").arg(launcher).args(words).output();
            let output = output.expect("coreutils are installed");
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{text}");
            serde_json::from_str(&text).expect("a line of JSON")
        };
        built.iter().map(run).collect()
    }

    #[test]
    fn messages_over_mpi_are_checked_and_timed_as_those_of_the_runner() {
        for (size, is_timed) in [("16", false), ("32", true), ("300", true)] {
            for line in said(size) {
                assert_eq!(line["wrong"], 0, "{line}");
                let latency = line["latency_p50_us"].as_f64().expect("it is said");
                assert_eq!(latency > 0.0, is_timed, "{size} bytes: {line}");
            }
        }
    }
}
