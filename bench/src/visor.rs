//! `hg-perf visor`: what going through the daemon `hg-visor` costs and saves, beside the same without it, in turns.
//!
//! | part           | figures                                                                                    |
//! |----------------|--------------------------------------------------------------------------------------------|
//! | `operations`   | what is sent, read and written, over its size, through two daemons and by a socket          |
//! | `calls`        | the 8-byte call over tcp, through one daemon, through two; its proportions                  |
//! | `connections`  | pulls of 64 KiB at random over 1 to 1,000 connections, through two daemons, and by a socket each |
//! | `applications` | memory, descriptors, threads and processor time of 1 to 32 applications with their daemon, and without |
//! | `threads`      | calls, and reads of 64 KiB, of 3 and 6 threads on one connection, on one under a lock, and on one each |
//!
//! Everything is on this machine, and nothing is pinned: two daemons, an origin and a target are four processes. The daemons' networks are
//! tcp, or what `--network` names; what is beside them is tcp always.

mod applications;
mod calls;
mod connections;
mod node;
mod operations;
mod threads;

use std::path::PathBuf;

pub(crate) use applications::{VisitorArguments, visit};
use node::Nodes;

use crate::error::{Context, Error};
use crate::plot::{Panel, Plot};
use crate::product::TCP;
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
    /// The networks of the two daemons, as `verbs://rxe0,verbs://rxe1`; or of both.
    #[arg(long, value_delimiter = ',', value_name = "URL", default_value = TCP)]
    network: Vec<String>,
    /// Draws what the paper draws, too, by its figures, over bytes, connections, threads and applications: an SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Operations,
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
    let nodes = Nodes::start(&arguments.network)?;
    let Arguments { repetitions, connections, applications, .. } = arguments;
    let mut plot = Plot::default();
    for part in
        [Part::Operations, Part::Calls, Part::Connections, Part::Threads, Part::Applications]
    {
        if arguments.only.is_some_and(|only| only != part) {
            continue;
        }
        let (figures, panels) = match part {
            Part::Operations => operations::measured(&nodes, *repetitions)?,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_of_the_paper_that_can_be_measured_has_its_curves_and_each_curve_its_points() {
        let counts = [1, 8, 32];
        let reads = operations::made_up();
        let mut panels = operations::panels(&reads);
        panels.push(connections::panel(&counts, &reads[..2 * counts.len()]));
        panels.extend(threads::panels(&threads::made_up()));
        panels.extend(applications::normalised(&counts, &applications::made_up(&counts)));
        let drawn = Plot(panels);
        let text = drawn.to_string();
        for (number, curves) in [(1, 6), (5, 2), (6, 3), (7, 2), (8, 2)] {
            let head = format!("figure {number}: ");
            assert!(text.contains(&head), "{head}");
            let its = drawn.0.iter().filter(|panel| panel.title.starts_with(&head));
            assert_eq!(its.map(|panel| panel.curves.len()).sum::<usize>(), curves, "{head}");
        }
        for Panel { title, over, curves } in &drawn.0 {
            let is_whole = |curve: &(String, Vec<f64>)| curve.1.len() == over.len();
            assert!(over.len() > 1 && curves.iter().all(is_whole), "{title}");
        }
    }

    #[test]
    fn costs_are_drawn_as_multiples_of_an_application_with_a_socket() {
        let counts = [2, 8];
        for panel in applications::normalised(&counts, &applications::made_up(&counts)) {
            let curves: Vec<_> = panel.curves.into_iter().map(|it| it.1).collect();
            assert_eq!(curves, [[1.0, 4.0], [2.0, 8.0]], "{}", panel.title);
        }
    }
}
