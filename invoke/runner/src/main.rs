//! `invoke-runner`: the threads of a job's processes call one another, and every call is checked where it runs.
//!
//! ```console
//! $ mpirun -n 4 invoke-runner --threads 2 --count 1000000
//! $ invoke-runner --local 4 --pattern random --size 64 --duration 5 --json
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `arguments` | what it may be told |
//! | `aim` | whom a thread calls next |
//! | `payload` | what a call holds, and how it is checked |
//! | `making` | how calls of each kind are made |
//! | `work` | one process, and one thread of it |
//! | `samples` | what is looked at while it runs |
//! | `report` | what is printed at the end |

#![forbid(unsafe_code)]

mod aim;
mod arguments;
mod error;
mod making;
mod payload;
mod report;
mod samples;
mod work;

use std::process::ExitCode;

use hg_job::{Job, Local};
use hg_job_runner::{
    Error as RunnerError,
    program::{self, Program, Verdict},
    room,
};

use crate::{arguments::Arguments, error::Error};

fn main() -> ExitCode {
    program::main::<Arguments>()
}

impl Program for Arguments {
    const NAME: &'static str = "invoke-runner";

    type Error = Error;

    fn local(&self) -> Result<Option<Local>, Error> {
        let Some(size) = self.local else { return Ok(None) };
        self.check(size)?;
        if !self.force {
            room::check(size, |ranks| self.need(ranks), true)
                .map_err(|why| RunnerError::Argument("local", why))?;
        }
        self.check_transport()?;
        self.check_plot()?;
        Ok(Some(Local::new(size)))
    }

    fn work(&self, job: &Job) -> Result<Verdict, Error> {
        work::run(job, self)
    }
}
