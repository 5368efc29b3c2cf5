//! `multicast-runner`: objects from one process of a job to all others, verified where they arrive, and timed.
//!
//! ```console
//! $ mpirun -n 8 multicast-runner --url tcp:// --size 64M,256M
//! $ multicast-runner --local 8 --link 200mbit --schedule pipeline,chain,tree,sequential --block-size 1M --mpi
//! $ multicast-runner --local 16 --pattern trace --count 455
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `arguments` | what it may be told |
//! | `network`, `bare` | emulated links, and what they carry |
//! | `work` | one process, and objects one after the other |
//! | `groups`, `sizes`, `polled` | many groups at a time |
//! | `payload` | what an object holds, and how it is checked |
//! | `steps` | what happened to the blocks of one object |
//! | `mpi`, `copy` | what is measured beside it |
//! | `report` | what is printed at the end |

#![forbid(unsafe_code)]

mod arguments;
mod bare;
mod copy;
mod error;
mod groups;
mod mpi;
mod network;
mod payload;
mod polled;
mod report;
mod sizes;
mod steps;
mod work;

use std::{env, process::ExitCode};

use hg_job::{Local, Settings};
use hg_job_runner::say::{self, say};

use crate::{arguments::Arguments, error::Error, network::Network};

/// Of this program.
const NAME: &str = "multicast-runner";

fn main() -> ExitCode {
    // Before there is any other thread.
    if let Err(why) = enter_host() {
        say(&format!("{NAME}: {why}"));
        return ExitCode::FAILURE;
    }
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
        return run_local(arguments, size);
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

/// Starts the processes, on emulated hosts where that is asked for, after what is measured beside them.
fn run_local(arguments: &Arguments, size: u32) -> Result<ExitCode, Error> {
    arguments.check(size)?;
    arguments.check_files()?;
    say::if_debug();
    if let (true, Some(rate)) = (arguments.copy, arguments.link) {
        copy::measure(arguments, size, rate)?;
        return Ok(ExitCode::SUCCESS);
    }
    let network = arguments.link.map(|rate| Network::new(size, rate)).transpose();
    let network = network.map_err(|why| Error::Argument("link", why))?;
    let mut local = Local::new(size).on_waiting(say_waiting);
    if arguments.mpi {
        let rows = mpi::measure(arguments, size, network.as_ref())?;
        local = local.variable(report::BESIDE, serde_json::to_string(&rows)?);
    }
    if let Some(network) = &network {
        let pids: Vec<String> = network.pids().iter().map(u32::to_string).collect();
        local = local.variable(HOSTS, pids.join(","));
    }
    let ended = local.run()?;
    let report = ended.report();
    if !report.is_empty() {
        say(&format!("{NAME}: {report}"));
    }
    Ok(ExitCode::from(ended.code()))
}

/// A rank on an emulated host goes there.
fn enter_host() -> Result<(), String> {
    let Ok(pids) = env::var(HOSTS) else { return Ok(()) };
    let rank = Settings::new().rank().unwrap_or(0) as usize;
    let pid = pids.split(',').nth(rank).and_then(|pid| pid.parse().ok());
    network::enter(pid.ok_or_else(|| format!("{HOSTS} names no host for rank {rank}"))?)
}

fn not_read(sentence: String) -> ExitCode {
    say::unreadable(NAME, &sentence);
    ExitCode::from(hg_cli_style::WRONG)
}

/// Whom this process waits for at the start.
fn say_waiting(words: &str) {
    say(&format!("{NAME}: {words}"));
}

/// The processes in whose namespaces the emulated hosts are, by rank.
const HOSTS: &str = "MULTICAST_RUNNER_HOSTS";
