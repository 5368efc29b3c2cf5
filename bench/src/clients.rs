//! `hg-perf clients`: many clients of one server, each a process with calls in flight, beside one of them.
//!
//! | figure              | what it is                                                                    |
//! |---------------------|-------------------------------------------------------------------------------|
//! | `call`              | calls a second of one client, and of all together, by the adaptive wait       |
//! | `clients_to_one`    | the second in proportion to the first                                         |
//! | `adaptive_to_block` | all together by the adaptive wait, in proportion to the same ones that block  |
//!
//! The server has one core, and all clients have the other one.

use std::cell::RefCell;
use std::rc::Rc;

use crate::error::Error;
use crate::measure::{Measure, Subject, Wait};
use crate::pair::{self, Cores, Peer};
use crate::product::call::{Caller, Shape, WORD};
use crate::product::target::Target;
use crate::report;
use crate::turns::Turns;

/// `hg-perf clients`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Chooses the transport.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// Clients.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..=256))]
    clients: u64,
    /// Calls that each has in flight.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=1024))]
    inflight: u32,
    /// Repetitions of each figure, taken in turns.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments, json: bool) -> Result<(), Error> {
    let cores = Cores::choose()?;
    cores.pin_origin()?;
    let clients = |wait, peers| {
        let Arguments { url, inflight, .. } = arguments;
        let shape = Shape { url: url.clone(), size: WORD, inflight: *inflight, wait, peers };
        Clients::start(shape, cores)
    };
    let mut turns = Turns::default();
    let one = turns.add(clients(Wait::Adaptive, 1)?);
    let all = turns.add(clients(Wait::Adaptive, arguments.clients)?);
    let blocking = turns.add(clients(Wait::Block, arguments.clients)?);
    for call in [one, all, blocking] {
        turns.line(move |taken| taken.figure(call));
    }
    turns.ratio_line("clients_to_one", all, one);
    turns.ratio_line("adaptive_to_block", all, blocking);
    report::print(json, &turns.take(arguments.repetitions)?)
}

/// A server and its clients, which start together.
struct Clients {
    shape: Shape,
    target: Target,
    processes: RefCell<Vec<Peer>>,
}

impl Clients {
    fn start(shape: Shape, cores: Cores) -> Result<Self, Error> {
        let target = Target::start(&shape.url, shape.wait, cores)?;
        let inflight = shape.inflight.to_string();
        let arguments = ["client", "--url", &shape.url, "--to", target.address()];
        let how = ["--inflight", &inflight, "--wait", shape.wait.as_str()];
        let arguments: Vec<&str> = arguments.into_iter().chain(how).collect();
        let process = |_| {
            let mut process = Peer::run("client", &arguments, cores.origin)?;
            target.running(|| process.receive())?;
            Ok(process)
        };
        let processes = (0..shape.peers).map(process).collect::<Result<_, Error>>()?;
        Ok(Self { shape, target, processes: RefCell::new(processes) })
    }

    /// So many calls of each; all have made them when this returns.
    fn calls(&self, count: u64) -> Result<(), Error> {
        let mut processes = self.processes.borrow_mut();
        processes.iter_mut().try_for_each(|it| it.control().send(count))?;
        processes.iter_mut().try_for_each(|it| it.receive().map(drop))
    }
}

impl Measure for Clients {
    fn subject(&self) -> Subject {
        self.shape.subject()
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let each = CALLS / self.shape.peers;
        let seconds = self.target.timed(|| self.calls(each / 8), || self.calls(each))?;
        Ok(self.shape.figure(each * self.shape.peers, seconds))
    }
}

/// A client; started by the others.
#[derive(Debug, clap::Args)]
pub(crate) struct ClientArguments {
    #[arg(long)]
    url: String,
    #[arg(long)]
    to: String,
    #[arg(long)]
    inflight: u32,
    #[arg(long, value_enum)]
    wait: Wait,
    #[arg(long)]
    parent: u32,
    #[arg(long)]
    core: Option<usize>,
}

/// Makes as many calls as it is told to, whenever it is.
pub(crate) fn client(arguments: &ClientArguments) -> Result<(), Error> {
    let mut control = pair::become_peer(arguments.parent, arguments.core)?;
    let ClientArguments { ref url, ref to, inflight, wait, .. } = *arguments;
    let shape = Shape { url: url.clone(), size: WORD, inflight, wait, peers: 1 };
    let caller = Caller::connect(shape, &Rc::new(Target::at(to.clone(), wait)))?;
    control.send(1)?;
    while let Some(count) = control.next()? {
        caller.calls(u32::try_from(count).unwrap_or(u32::MAX))?;
        control.send(1)?;
    }
    Ok(())
}

/// Of all clients, in one repetition: for longer than the scheduler leaves one of them alone.
const CALLS: u64 = 400_000;
