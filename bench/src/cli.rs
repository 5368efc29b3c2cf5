//! The command line.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::{Context, Error};
use crate::limits::{self, Placement, Role};
use crate::measure;
use crate::pair::{self, Cores};
use crate::product::{crowd, target};
use crate::progress::Progress;
use crate::raw::ending;
use crate::report::{self, Figure};
use crate::{
    bandwidth, clients, faults, first, frozen, given, held, hung, idle, instructions, invoke,
    memory, mercury, rate, routing, shuffle, soak, sort, syscalls, table, ucx, visor, waits, ways,
};

/// Measures Hydrargyrum, and what this machine allows.
#[derive(Debug, Parser)]
#[command(name = "hg-perf", version)]
struct Arguments {
    /// One JSON object a line instead of a table.
    #[arg(long, global = true)]
    json: bool,
    /// A setting of the transport, for each engine that is opened; as often as there are settings.
    #[arg(long = "set", global = true, value_name = "NAME=VALUE", value_parser = given::parse)]
    settings: Vec<(String, String)>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What this machine allows: cache lines, wake-ups, sockets, copies. Two minutes; --quick: seconds.
    Limits(LimitsArguments),
    /// Calls: latency, or rate with several in flight, beside this machine's limit.
    Rate(rate::Arguments),
    /// Calls to an address of two ways, beside the same calls without routing.
    Routing(routing::Arguments),
    /// Every figure that is promised, measured and judged: one line each.
    Table(table::Arguments),
    /// Transfers: pulls, pushes and views, beside this machine's limit.
    Bandwidth(bandwidth::Arguments),
    /// All-to-all messages of `shuffle-runner`, beside this machine's limit and the same job over MPI.
    Shuffle(shuffle::Arguments),
    /// A sort over all ranks by shuffle, beside the same one over `MPI_Alltoallv`.
    Sort(sort::Arguments),
    /// Calls between workers: packed, plain, to a thread beside, beside this machine's limit.
    Invoke(invoke::Arguments),
    /// The worker that `invoke` calls.
    #[command(hide = true)]
    Invoked(invoke::InvokedArguments),
    /// Serves the calls of `rate --to ADDRESS`, from another terminal.
    Target(target::Arguments),
    /// Instructions of one call and side, counted by callgrind.
    Instructions(instructions::Arguments),
    /// What `instructions` counts.
    #[command(hide = true)]
    Step(instructions::StepArguments),
    /// The first call to a new peer, and the second.
    First(first::Arguments),
    /// Calls with frozen memory among their arguments, seen where it lies, beside the 8-byte call.
    Frozen(frozen::Arguments),
    /// How soon a dead target is noticed; how exact deadlines are.
    Faults(faults::Arguments),
    /// Connects, calls and closes many times; nothing may be left.
    Soak(soak::Arguments),
    /// What peers cost a target.
    Memory(memory::Arguments),
    /// System calls of one call and side, counted by strace.
    Syscalls(syscalls::Arguments),
    /// What `syscalls` counts.
    #[command(hide = true)]
    Calls(syscalls::CallsArguments),
    /// Calls as programs make them: awaited, and of several threads on one engine, beside the plainest ones.
    Ways(ways::Arguments),
    /// What `ways` counts.
    #[command(hide = true)]
    Way(ways::WayArguments),
    /// The adaptive wait beside the better one of spinning and blocking, with free cores and without.
    Waits(waits::Arguments),
    /// A busy loop; started by the others.
    #[command(hide = true)]
    Busy(waits::BusyArguments),
    /// How long others wait for an engine's lock while a handler pulls.
    Held(held::Arguments),
    /// Calls inside a node beside `ucx_perftest`, UCX's own program (package `ucx-utils`).
    Ucx(ucx::Arguments),
    /// Calls beside those of C Mercury, by its own programs.
    Mercury(mercury::Arguments),
    /// Through the daemon `hg-visor`: calls, connections, applications, threads, beside the same without.
    Visor(visor::Arguments),
    /// An application; started by `visor`.
    #[command(hide = true)]
    Visitor(visor::VisitorArguments),
    /// Many clients of one server, with calls in flight, beside one of them.
    Clients(clients::Arguments),
    /// A client; started by `clients`.
    #[command(hide = true)]
    Client(clients::ClientArguments),
    /// Calls of a client whose other peers have stopped.
    Hung(hung::Arguments),
    /// Processor time, threads and wake-ups of engines with nothing to do.
    Idle(idle::Arguments),
    /// Idle peers; started by the others.
    #[command(hide = true)]
    Crowd(crowd::Arguments),
    /// The second process of a measurement; started by the others.
    #[command(hide = true)]
    Peer(PeerArguments),
}

impl Command {
    /// Whether it prints figures; the others of this program start those that do not.
    fn measures(&self) -> bool {
        match self {
            Command::Table(lines) => !lines.is_list(),
            Command::Target(_)
            | Command::Step(_)
            | Command::Calls(_)
            | Command::Way(_)
            | Command::Invoked(_)
            | Command::Busy(_)
            | Command::Visitor(_)
            | Command::Client(_)
            | Command::Crowd(_)
            | Command::Peer(_) => false,
            _ => true,
        }
    }
}

#[derive(Debug, clap::Args)]
struct LimitsArguments {
    /// Few repetitions and no cold memory (which needs 1.5 GiB).
    #[arg(long)]
    quick: bool,
    /// Repetitions of each figure, taken in turns [default: 200, with --quick 5].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: Option<u32>,
}

#[derive(Debug, clap::Args)]
struct PeerArguments {
    role: Role,
    /// The process that must live.
    #[arg(long)]
    parent: u32,
    /// The core to run on.
    #[arg(long)]
    core: Option<usize>,
}

/// Reads the command line and does what it says.
pub(crate) fn run() -> Result<ExitCode, Error> {
    let arguments: Arguments = match hg_cli_style::parse() {
        Ok(arguments) => arguments,
        Err(ended) => return Ok(ended),
    };
    if cfg!(debug_assertions) && arguments.command.measures() {
        Progress::new()
            .note("this is a debug build: its figures mean nothing; build with --release");
    }
    if arguments.command.measures() {
        ending::say_so()?;
    }
    given::keep(arguments.settings.clone());
    measured(arguments).map(|()| ExitCode::SUCCESS)
}

fn measured(arguments: Arguments) -> Result<(), Error> {
    match arguments.command {
        Command::Limits(limits) => run_limits(&limits, arguments.json),
        Command::Rate(rate) => rate::run(&rate, arguments.json),
        Command::Routing(routed) => routing::run(&routed, arguments.json),
        Command::Table(lines) => table::run(&lines, arguments.json),
        Command::Bandwidth(moved) => bandwidth::run(&moved, arguments.json),
        Command::Shuffle(compared) => shuffle::run(&compared, arguments.json),
        Command::Sort(compared) => sort::run(&compared, arguments.json),
        Command::Invoke(calls) => invoke::run(&calls, arguments.json),
        Command::Invoked(called) => invoke::serve(&called),
        Command::Target(target) => target::serve(&target),
        Command::Instructions(counted) => instructions::run(&counted, arguments.json),
        Command::Step(steps) => instructions::step(&steps),
        Command::First(calls) => first::run(&calls, arguments.json),
        Command::Frozen(lent) => frozen::run(&lent, arguments.json),
        Command::Faults(faults) => faults::run(&faults, arguments.json),
        Command::Soak(soak) => soak::run(&soak, arguments.json),
        Command::Memory(memory) => memory::run(&memory, arguments.json),
        Command::Syscalls(counted) => syscalls::run(&counted, arguments.json),
        Command::Calls(calls) => syscalls::calls(&calls),
        Command::Ways(made) => ways::run(&made, arguments.json),
        Command::Way(way) => ways::way(&way),
        Command::Waits(waits) => waits::run(&waits, arguments.json),
        Command::Busy(busy) => waits::busy(&busy),
        Command::Held(held) => held::run(&held, arguments.json),
        Command::Ucx(beside) => ucx::run(&beside, arguments.json),
        Command::Mercury(beside) => mercury::run(&beside, arguments.json),
        Command::Visor(parts) => visor::run(&parts, arguments.json),
        Command::Visitor(visitor) => visor::visit(&visitor),
        Command::Clients(clients) => clients::run(&clients, arguments.json),
        Command::Client(client) => clients::client(&client),
        Command::Hung(hung) => hung::run(&hung, arguments.json),
        Command::Idle(idle) => idle::run(&idle, arguments.json),
        Command::Crowd(crowd) => crowd::serve(&crowd),
        Command::Peer(peer) => limits::serve(peer.role, pair::become_peer(peer.parent, peer.core)?),
    }
}

/// Whether the words after the program's name are a command line of its own.
#[cfg(test)]
pub(crate) fn check(words: &[String]) -> Result<(), clap::Error> {
    let program = ["hg-perf".to_owned()];
    Arguments::try_parse_from(program.iter().chain(words)).map(drop)
}

fn run_limits(arguments: &LimitsArguments, json: bool) -> Result<(), Error> {
    let default = if arguments.quick { QUICK_REPETITIONS } else { REPETITIONS };
    let cores = Cores::choose()?;
    cores.pin_origin()?;
    if !arguments.quick && arguments.repetitions.is_none() {
        let sentence = "this takes about two minutes; with --quick, a few seconds";
        Progress::new().note(sentence);
    }
    let mut measures = limits::all(cores, !arguments.quick)?;
    let summaries = measure::in_turns(&mut measures, arguments.repetitions.unwrap_or(default))?;
    let subjects = measures.iter().map(|measure| measure.subject());
    let figures: Vec<Figure> =
        subjects.zip(&summaries).map(|(subject, summary)| Figure::new(subject, *summary)).collect();
    let out = &mut io::stdout().lock();
    if json {
        return report::json(out, &figures);
    }
    // The first limit is the cache line with one word.
    let placement = Placement::of(cores, summaries[0].median).as_str();
    writeln!(out, "placement: {placement} (by cache_line_round_trip)").context("write")?;
    report::table(out, &figures)
}

/// Repetitions of `hg-perf limits`: enough for a p99.
const REPETITIONS: u32 = 200;
/// Repetitions with `--quick`.
const QUICK_REPETITIONS: u32 = 5;
