//! `shuffle-runner`: every rank of a job sends messages to the others, and checks every one that it gets.
//!
//! ```console
//! $ mpirun -n 4 shuffle-runner --count 1000000
//! $ shuffle-runner --local 4 --nodes 2x2 --duration 5 --json
//! $ shuffle-runner --plan 10000x32
//! $ shuffle-runner --plot sort.svg -- target/release/examples/sort
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `arguments` | what it may be told |
//! | `aim` | to whom the next message goes |
//! | `payload` | what a message holds, and how it is checked |
//! | `work` | one rank |
//! | `signal` | its state, when it is asked by `SIGUSR1` |
//! | `samples` | what is looked at while it runs: the progress bar, and what is drawn |
//! | `drawn` | another program whose samples are drawn |
//! | `strangers` | connections of nobody's, beside the ranks |
//! | `report` | what is printed at the end |
//! | `room` | whether this machine can hold the ranks |

#![forbid(unsafe_code)]

mod aim;
mod arguments;
mod drawn;
mod error;
mod payload;
mod report;
mod room;
mod samples;
mod signal;
mod strangers;
mod work;

use std::{io::Write as _, process::ExitCode};

use hg_job::{Job, Local};
use hg_job_runner::{
    plot,
    program::{self, Program, Verdict},
    say,
};
use hg_shuffle::route::{Plan, SimulatedStart};

use crate::{arguments::Arguments, error::Error, strangers::Strangers, work::NAME};

fn main() -> ExitCode {
    program::main::<Arguments>()
}

impl Program for Arguments {
    const NAME: &'static str = NAME;

    type Error = Error;

    fn alone(&self) -> Result<Option<ExitCode>, Error> {
        if self.self_check {
            self.check_size()?;
            let text = report::of_checks(payload::cost(self.size), self.size);
            say::unless_closed(write!(std::io::stdout(), "{text}")).map_err(Error::Print)?;
            return Ok(Some(ExitCode::SUCCESS));
        }
        if let (Some(file), [program, words @ ..]) = (&self.plot, &self.program[..]) {
            return drawn::run(self, file, (program, words)).map(Some);
        }
        let Some(map) = &self.plan else {
            // Threads take this over, and so do ranks.
            signal::hold()?;
            return self.beside_strangers();
        };
        let plan = Plan::new(map, &self.options()?);
        let mut text = if self.json { report::of_plan(&plan) } else { plan.to_string() };
        if self.simulate {
            text += &SimulatedStart::run(map, SEED).to_string();
        }
        say::unless_closed(write!(std::io::stdout(), "{text}")).map_err(Error::Print)?;
        Ok(Some(ExitCode::SUCCESS))
    }

    fn local(&self) -> Result<Option<Local>, Error> {
        let Some(size) = self.local else { return Ok(None) };
        self.check(size)?;
        if !self.force {
            room::check(size, self.nodes.as_ref(), &self.options()?)?;
        }
        self.check_transports()?;
        if let Some(file) = &self.plot {
            plot::check(file).map_err(|error| Error::Plot(file.clone(), error))?;
        }
        let local = Local::new(size);
        Ok(Some(self.nodes.iter().fold(local, |local, map| local.nodes(map.clone()))))
    }

    fn work(&self, job: &Job) -> Result<Verdict, Error> {
        work::run(job, self)
    }
}

impl Arguments {
    /// Starts the ranks among strangers, if those are asked for.
    fn beside_strangers(&self) -> Result<Option<ExitCode>, Error> {
        let Some(count) = self.strangers.filter(|_| !Local::is_rank()) else { return Ok(None) };
        let Some(local) = self.local()? else { return Ok(None) };
        say::if_debug();
        let strangers = Strangers::start(count, self.local.unwrap_or(0));
        let strangers = strangers.map_err(|error| Error::Os("a thread", error))?;
        let code = program::start::<Self>(local)?;
        let (said, came) = strangers.end();
        say::say(&format!("{NAME}: {said}"));
        if count > 0 && came == 0 && code == ExitCode::SUCCESS {
            let why = "none came: not all ranks listened at a port of IPv4, or not for long enough";
            return Err(Error::Argument("strangers", why.to_owned()));
        }
        Ok(Some(code))
    }
}

/// The order in which the frames of a simulated start are handled.
const SEED: u64 = 1;
