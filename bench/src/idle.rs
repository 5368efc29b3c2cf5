//! `hg-perf idle`: processor time of engines that have a peer and nothing to do.

use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::measure::{Subject, Unit, Wait};
use crate::pair::Cores;
use crate::process::cpu_time;
use crate::product::crowd::Crowd;
use crate::product::target::Target;
use crate::report::{self, Figure};

/// `hg-perf idle`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Chooses the transport.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// How long to look, for each way of waiting.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let cores = Cores::choose()?;
    let mut figures = Vec::new();
    for wait in [Wait::Adaptive, Wait::Block] {
        let target = Target::start(&arguments.url, wait, cores)?;
        let crowd = Crowd::with_thread(&arguments.url, &target, cores)?;
        let origin = crowd.processes().iter().map(crate::pair::Peer::pid);
        let sides = origin.map(|pid| ("idle_origin", pid)).chain([("idle_target", target.pid()?)]);
        let sides: Vec<_> = sides.collect();
        // The last call's spinning and the background threads' steps aside end first.
        thread::sleep(SETTLE);
        let used = |pid| cpu_time(pid);
        let before = sides.iter().map(|(_, pid)| used(*pid)).collect::<Result<Vec<_>, _>>()?;
        let start = Instant::now();
        thread::sleep(Duration::from_secs(arguments.seconds));
        let seconds = start.elapsed().as_secs_f64();
        for ((name, pid), before) in sides.iter().zip(before) {
            let percent = (used(*pid)? - before).as_secs_f64() / seconds * 100.0;
            let subject = Subject {
                url: Some(arguments.url.clone()),
                wait: Some(wait),
                peers: Some(1),
                ..Subject::new(*name, Unit::Percent)
            };
            figures.push(Figure::counted(subject, percent));
        }
    }
    report::print(json, &figures)
}

/// Before the clock starts.
const SETTLE: Duration = Duration::from_millis(200);
