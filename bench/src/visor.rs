//! `hg-perf visor`: what going through the daemon `hg-visor` costs and saves, beside the same without it, in turns.
//!
//! | part           | figures                                                                                    |
//! |----------------|--------------------------------------------------------------------------------------------|
//! | `calls`        | the 8-byte call over tcp, through one daemon, through two; its proportions                  |
//! | `connections`  | pulls of 64 KiB at random over 1 to 1,000 connections, through two daemons, and by a socket each |
//! | `applications` | memory, descriptors, threads and processor time of 1 to 32 applications with their daemon, and without |
//! | `threads`      | calls of 3 and 6 threads on one connection, on one under a lock, and on one each            |
//!
//! Everything is on this machine, and nothing is pinned: two daemons, an origin and a target are four processes.

mod applications;
mod calls;
mod connections;
mod node;
mod threads;

use std::path::PathBuf;

pub(crate) use applications::{VisitorArguments, visit};
use node::Nodes;

use crate::error::{Context, Error};
use crate::plot::{Panel, Plot};
use crate::product::target::raise_descriptor_limit;
use crate::report::{self, Figure};

/// `hg-perf visor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only this part.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Repetitions of each figure, taken in turns.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Numbers of connections.
    #[arg(long, value_delimiter = ',', default_value = "1,10,100,400,1000", value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: Vec<u32>,
    /// Numbers of applications.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32", value_parser = clap::value_parser!(u32).range(1..=256))]
    applications: Vec<u32>,
    /// Draws what the paper draws, too, over connections, applications and threads: an SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Calls,
    Connections,
    Applications,
    Threads,
}

/// What a part has come to.
type Measured = (Vec<Figure>, Vec<Panel>);

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    // The daemons have it from here: each application has four of theirs.
    raise_descriptor_limit()?;
    if arguments.plot.is_some() && arguments.only == Some(Part::Calls) {
        return Err(Error::Failed("calls are not drawn: leave out --plot or --only".to_owned()));
    }
    let nodes = Nodes::start()?;
    let Arguments { repetitions, connections, applications, .. } = arguments;
    let mut plot = Plot::default();
    for part in [Part::Calls, Part::Connections, Part::Applications, Part::Threads] {
        if arguments.only.is_some_and(|only| only != part) {
            continue;
        }
        let (figures, panels) = match part {
            Part::Calls => calls::measured(&nodes, *repetitions)?,
            Part::Connections => connections::measured(&nodes, connections, *repetitions)?,
            Part::Applications => applications::measured(&nodes, applications)?,
            Part::Threads => threads::measured(&nodes, *repetitions)?,
        };
        report::print(json, &figures)?;
        plot.0.extend(panels);
    }
    if let Some(file) = &arguments.plot {
        std::fs::write(file, plot.to_string()).context("write the plot")?;
    }
    Ok(())
}
