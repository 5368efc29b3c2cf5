//! `hg-perf sort`: the keys a second of `shuffle/examples/sort.rs`, beside the same sort over each MPI that is installed.
//!
//! | figure               | what it is                                                              |
//! |----------------------|-------------------------------------------------------------------------|
//! | `sort_single`        | each key is a message                                                   |
//! | `sort_packed`        | 512 keys are a message                                                  |
//! | `openmpi_alltoallv`  | the same keys and the same local sort, exchanged by one `MPI_Alltoallv` |
//!
//! Samples, exchange and the local sort are timed; all ranks verify the result behind that.

use std::path::PathBuf;

use nix::sched::sched_getaffinity;
use nix::unistd::Pid;

use crate::error::{Context, Error};
use crate::measure::{Subject, Unit};
use crate::outside::{self, Outside};
use crate::pair::Cores;
use crate::turns::Turns;
use crate::{mpi, report};

/// `hg-perf sort`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Ranks.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,
    /// Keys of eight bytes, at all ranks together.
    #[arg(long, default_value_t = 100_000_000, value_parser = clap::value_parser!(u64).range(1..1 << 32))]
    keys: u64,
    /// Repetitions of each figure, taken in turns.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Leaves MPI out.
    #[arg(long)]
    no_mpi: bool,
    /// The example, where it does not lie below `examples/` beside this program.
    #[arg(long, value_name = "PATH")]
    example: Option<PathBuf>,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let build = "`cargo build --release -p hydrargyrum-shuffle --example sort`, or --example PATH";
    let given = arguments.example.clone().map_or_else(|| outside::beside_this(EXAMPLE, build), Ok);
    let example = given?.into_os_string();
    let built = if arguments.no_mpi { Vec::new() } else { mpi::build(ALLTOALLV, false)? };
    let cores = Cores::choose()?;
    let allowed = sched_getaffinity(Pid::from_raw(0)).context("sched_getaffinity")?;
    cores.pin_origin()?;
    let outside = |figure: &str, program, words| Outside {
        subject: Subject {
            size: Some(arguments.keys),
            peers: Some(u64::from(arguments.ranks)),
            ..Subject::new(figure.to_owned(), Unit::PerSecond)
        },
        program,
        words,
        rate: "keys_per_s",
        cores,
        allowed,
        also: None,
    };
    let mut turns = Turns::default();
    let keys = arguments.keys.to_string();
    let own: Vec<_> = [("sort_single", "1"), ("sort_packed", "512")]
        .into_iter()
        .map(|(figure, a_message)| {
            let told = [keys.clone(), a_message.to_owned(), arguments.ranks.to_string()];
            turns.add(outside(figure, example.clone(), told.into()))
        })
        .collect();
    if built.is_empty() {
        own.iter().for_each(|own| {
            turns.line({
                let own = *own;
                move |taken| taken.figure(own)
            })
        });
    }
    for program in &built {
        let (launcher, words) =
            program.command(arguments.ranks, false, std::slice::from_ref(&keys));
        let figure = format!("{}_alltoallv", program.name());
        let other = turns.add(outside(&figure, launcher.into(), words));
        turns.line(move |taken| taken.figure(other));
        for own in own.iter().copied() {
            turns.line(move |taken| taken.beside(own, other));
        }
    }
    report::print(json, &turns.take(arguments.repetitions)?)
}

/// The same sort over MPI.
const ALLTOALLV: &str = include_str!("sort/alltoallv.c");
const EXAMPLE: &str = "examples/sort";
