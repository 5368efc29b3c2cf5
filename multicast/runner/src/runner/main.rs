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
//! | `arguments`, `given` | what it may be told, and what it was told |
//! | `network`, `bare` | emulated links, and what they carry |
//! | `bound` | processes on cores of their own |
//! | `work` | one process, and objects one after the other |
//! | `groups`, `sizes`, `polled` | many groups at a time |
//! | `payload` | what an object holds, and how it is checked |
//! | `pause` | a member that stops for a while |
//! | `steps` | what happened to the blocks of one object |
//! | `mpi`, `copy` | what is measured beside it |
//! | `progress`, `report` | what is printed meanwhile, and at the end |

#![forbid(unsafe_code)]

mod arguments;
mod bare;
mod bound;
mod copy;
mod error;
mod given;
mod groups;
mod mpi;
mod network;
mod pause;
mod payload;
mod polled;
mod progress;
mod report;
mod sizes;
mod steps;
mod work;

use std::{env, process::ExitCode};

use hg_job::{Job, Local, Settings};
use hg_job_runner::{
    program::{self, Program, Verdict},
    say::say,
};

use crate::{arguments::Arguments, error::Error, network::Network};

/// Of this program.
const NAME: &str = "multicast-runner";

fn main() -> ExitCode {
    // Before there is any other thread.
    if let Err(why) = enter_host().and_then(|()| bound::bind()) {
        say(&format!("{NAME}: {why}"));
        return ExitCode::FAILURE;
    }
    program::main::<Arguments>()
}

impl Program for Arguments {
    const NAME: &'static str = NAME;

    type Error = Error;

    fn alone(&self) -> Result<Option<ExitCode>, Error> {
        let (Some(size), Some(rate)) = (self.local, self.link.filter(|_| self.copy)) else {
            return Ok(None);
        };
        self.check(size)?;
        self.check_files()?;
        copy::measure(self, size, rate)?;
        Ok(Some(ExitCode::SUCCESS))
    }

    /// Processes, on emulated hosts where that is asked for, after what is measured beside them.
    fn local(&self) -> Result<Option<Local>, Error> {
        let Some(size) = self.local else { return Ok(None) };
        self.check(size)?;
        self.check_files()?;
        let made = self.link.map(|rate| Network::new(size, rate)).transpose();
        let network = made.map_err(|why| Error::Argument("link", why))?;
        let mut local = Local::new(size);
        if self.mpi {
            let rows = mpi::measure(self, size, network.as_ref())?;
            local = local.variable(report::BESIDE, serde_json::to_string(&rows)?);
        }
        if self.bind {
            local = local.variable(bound::ASKED, "1");
        }
        if let Some(network) = network {
            let pids: Vec<String> = network.pids().iter().map(u32::to_string).collect();
            local = local.variable(HOSTS, pids.join(","));
            self.network.get_or_init(|| network);
        }
        Ok(Some(local))
    }

    fn work(&self, job: &Job) -> Result<Verdict, Error> {
        work::run(job, self)
    }
}

/// A rank on an emulated host goes there.
fn enter_host() -> Result<(), String> {
    let Ok(pids) = env::var(HOSTS) else { return Ok(()) };
    let rank = Settings::new().rank().unwrap_or(0) as usize;
    let pid = pids.split(',').nth(rank).and_then(|pid| pid.parse().ok());
    network::enter(pid.ok_or_else(|| format!("{HOSTS} names no host for rank {rank}"))?)
}

/// The processes in whose namespaces the emulated hosts are, by rank.
const HOSTS: &str = "MULTICAST_RUNNER_HOSTS";
