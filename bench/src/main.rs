//! `hg-perf`: every figure in the documents, as a command.
//!
//! | module         | what it does                                                              |
//! |----------------|---------------------------------------------------------------------------|
//! | `cli`          | the command line                                                          |
//! | `measure`      | what a measurement is, and how several are taken in turns                 |
//! | `subject`      | what a figure is about: its keys                                          |
//! | `stats`        | many repetitions become median, p99, min and max                          |
//! | `turns`        | measurements taken in turns, and the lines printed of them                |
//! | `progress`     | how far it is, on a terminal                                              |
//! | `report`       | figures become a table, or one JSON object a line                         |
//! | `pair`         | the second process of every measurement, and the cores of the two         |
//! | `limits`       | what this machine allows: the measurements that need no product at all    |
//! | `product`      | the calls that are measured: a target in its own process, and who calls   |
//! | `plot`         | figures over a number, drawn as SVG                                       |
//! | `process`      | what the kernel tells about a process                                     |
//! | `tools`        | valgrind and strace, which count for this program                         |
//! | `rate`, ...    | one module per subcommand                                                 |
//! | `table`        | every promised figure, measured by the other subcommands and judged       |
//! | `raw`          | the only room with `unsafe`: mappings, futex, descriptors, bulk memory    |
//!
//! Every measurement of two processes starts its own second process: this same program with the
//! hidden subcommand `peer`. It sleeps on a socket between two repetitions, so that measurements
//! can be taken in turns on a machine of two cores, and it dies with its parent.

mod bandwidth;
mod cli;
mod clients;
mod error;
mod faults;
mod first;
mod frozen;
mod given;
mod held;
mod hung;
mod idle;
mod instructions;
mod invoke;
mod limits;
mod measure;
mod memory;
mod mercury;
mod mpi;
mod outside;
mod pair;
mod plot;
mod process;
mod product;
mod progress;
mod rate;
#[expect(
    unsafe_code,
    reason = "shared mapping, futex, descriptors received, memory at a page, a handler of signals"
)]
mod raw;
mod report;
mod routing;
mod shuffle;
mod soak;
mod sort;
mod stats;
mod subject;
mod syscalls;
mod table;
mod tools;
mod turns;
mod ucx;
mod visor;
mod waits;
mod ways;

use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(ended) => ended,
        Err(error) => {
            // A closed standard error leaves nobody to tell.
            let _ = writeln!(std::io::stderr(), "hg-perf: {}", error::chain(&error));
            ExitCode::FAILURE
        }
    }
}
