//! `hg-perf ucx`: calls inside a node beside `ucx_perftest`, UCX's own program (Debian's `ucx-utils`).
//!
//! | figure                  | what it is                                                                      |
//! |-------------------------|---------------------------------------------------------------------------------|
//! | `call`                  | an argument of that size there, 8 bytes back                                    |
//! | `ucp_am_lat`, `tag_lat` | as much there and back by active messages, by tagged ones: it prints half a round trip of messages of one size, so this is the sum of two runs |
//! | `call_to_...`           | the ratio of the two                                                            |
//!
//! It takes what `UCX_TLS` says, or else the best of [`TRANSPORTS`]. It sends the same buffer again and again, which is in caches;
//! so does the call.

use std::io::ErrorKind;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Instant;

use crate::error::{Context, Error};
use crate::limits::fi_pingpong::{Killed, PATIENCE, free_port};
use crate::measure::{Measure, Subject, Wait};
use crate::pair::{self, Cores};
use crate::product::call::{Caller, Shape, WORD};
use crate::product::target::Target;
use crate::report;
use crate::turns::Turns;

/// `hg-perf ucx`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Bytes of the argument.
    #[arg(long, value_delimiter = ',', default_value = "8,4096,65536")]
    sizes: Vec<usize>,
    /// Repetitions of each figure, taken in turns.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let cores = Cores::choose()?;
    cores.pin_origin()?;
    let url = "sm://".to_owned();
    let target = Rc::new(Target::start(&url, Wait::Spin, cores)?);
    let mut turns = Turns::default();
    for &size in &arguments.sizes {
        let shape = Shape { url: url.clone(), size, inflight: 1, wait: Wait::Spin, peers: 1 };
        let call = turns.add(Caller::connect(shape, &target)?);
        turns.line(move |taken| taken.figure(call));
        for (test, ratio) in [("ucp_am_lat", "call_to_ucp_am"), ("tag_lat", "call_to_tag")] {
            let beside = turns.add(Perftest { cores, test, size });
            turns.line(move |taken| taken.figure(beside));
            turns.ratio_line(ratio, call, beside);
        }
    }
    report::print(json, &turns.take(arguments.repetitions)?)
}

/// One test of the program's.
#[derive(Debug)]
struct Perftest {
    cores: Cores,
    test: &'static str,
    size: usize,
}

impl Perftest {
    /// One side of it: the server, or the client that is given its test.
    fn start(&self, core: Option<usize>, arguments: &[&str]) -> Result<Killed, Error> {
        // What is started inherits the core.
        core.map_or(Ok(()), pair::pin)?;
        let mut command = Command::new(PROGRAM);
        command.args(arguments).env("UCX_TLS", transports());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let started = command.spawn();
        self.cores.pin_origin()?;
        match started {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(Error::NoProgram { program: PROGRAM, package: "ucx-utils" })
            }
            started => started.map(Killed).context("spawn"),
        }
    }

    /// Half a round trip of messages of one size, in microseconds.
    fn half(&self, size: usize) -> Result<f64, Error> {
        let port = free_port()?;
        let (size, iterations) = (size.to_string(), iterations(size).to_string());
        let mut server = self.start(self.cores.target, &["-p", &port])?;
        let client = ["127.0.0.1", "-p", &port, "-t", self.test, "-s", &size, "-n", &iterations];
        let client = [&client[..], &["-w", WARM_UP, "-f", "-v"]].concat();
        let limit = Instant::now() + PATIENCE;
        loop {
            let client = self.start(self.cores.origin, &client)?;
            let (output, said) = client.ended(PROGRAM, limit)?;
            if let Some(microseconds) = output.lines().last().and_then(overall) {
                return Ok(microseconds);
            }
            // The server may not be listening yet.
            if server.0.try_wait().context("waitpid")?.is_some() || Instant::now() > limit {
                return Err(Error::NoCount { tool: PROGRAM, said });
            }
        }
    }
}

impl Measure for Perftest {
    fn subject(&self) -> Subject {
        let subject = Subject::round_trip(self.test, self.size as u64, Wait::Spin);
        Subject { via: Some(transports()), ..subject }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        Ok(self.half(self.size)? + self.half(WORD)?)
    }
}

/// `iterations, median, average and overall latency, bandwidths, rates`: the overall latency.
fn overall(line: &str) -> Option<f64> {
    let words: Vec<&str> = line.split(',').collect();
    let [_, _, _, overall, _, _, _, _] = *words else { return None };
    overall.parse().ok().filter(|us| *us > 0.0)
}

/// Enough for a clock, few enough for a repetition.
fn iterations(size: usize) -> usize {
    if size > 4096 { 1000 } else { 20_000 }
}

fn transports() -> String {
    std::env::var("UCX_TLS").unwrap_or_else(|_| TRANSPORTS.to_owned())
}

const PROGRAM: &str = "ucx_perftest";
/// Those inside a node.
const TRANSPORTS: &str = "posix,sysv,cma";
/// Messages before the clock starts.
const WARM_UP: &str = "1000";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_has_the_overall_latency() {
        assert_eq!(overall("2000,4.112,50.515,50.916,1237.26,1237.26,19796,19796"), Some(50.916));
        let header = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr";
        assert_eq!((overall(header), overall("")), (None, None));
    }
}
