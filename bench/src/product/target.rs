//! A target in a process of its own: `hg-perf target`.
//!
//! The engine's background thread serves; it is the tightest loop that an engine has, and what a
//! plain `hg::listen` does. A target that spins is stopped (`SIGSTOP`) between repetitions, so
//! that it takes no core from what is measured in turns with it.

use std::io::{self, Write};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::store::{self, Store};
use super::{builder, echo, ends, hold, length, nap, own, probed, pull_first, pulls};
use crate::error::{Context, Error};
use crate::measure::Wait;
use crate::pair::{self, Cores, Peer};

/// Where calls go.
#[derive(Debug)]
pub(crate) struct Target {
    address: String,
    wait: Wait,
    /// `None` when somebody else has started it.
    process: Option<Peer>,
}

impl Target {
    /// Starts `hg-perf target` on the target's core.
    pub(crate) fn start(url: &str, wait: Wait, cores: Cores) -> Result<Target, Error> {
        Self::start_with(url, wait, cores, 1)
    }

    /// The same with so many contexts.
    pub(crate) fn start_with(
        url: &str,
        wait: Wait,
        cores: Cores,
        contexts: usize,
    ) -> Result<Target, Error> {
        Self::start_through(None, (url, contexts), wait, cores)
    }

    /// The same, with so many contexts, through this daemon where it goes through one.
    pub(crate) fn start_through(
        daemon: Option<&str>,
        (url, contexts): (&str, usize),
        wait: Wait,
        cores: Cores,
    ) -> Result<Target, Error> {
        let contexts = contexts.to_string();
        let arguments = ["target", "--url", url, "--wait", wait.as_str(), "--contexts", &contexts];
        let mut process = Peer::run_through(daemon, "target", &arguments, cores.target)?;
        let address = process.receive_text()?;
        Ok(Target { address, wait, process: Some(process) })
    }

    /// One that runs already, in another terminal.
    pub(crate) fn at(address: String, wait: Wait) -> Target {
        Target { address, wait, process: None }
    }

    /// With the address that takes the way of a node.
    pub(crate) fn seen_from(self, node: Node) -> Target {
        match (node, self.address.split_once('#')) {
            (Node::Other, Some((_, parts))) => {
                Target { address: format!("uid://{NOWHERE}#{parts}"), ..self }
            }
            _ => self,
        }
    }

    /// What a peer looks up.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// How it waits.
    pub(crate) fn wait(&self) -> Wait {
        self.wait
    }

    /// Its process.
    pub(crate) fn pid(&self) -> Result<Pid, Error> {
        let foreign = || Error::Impossible("the target was not started by this process".to_owned());
        self.process.as_ref().map(Peer::pid).ok_or_else(foreign)
    }

    /// Lets it run, before a repetition.
    pub(crate) fn resume(&self) -> Result<(), Error> {
        self.signal(Signal::SIGCONT)
    }

    /// Stops it if it would spin, after a repetition.
    pub(crate) fn pause(&self) -> Result<(), Error> {
        self.signal(Signal::SIGSTOP)
    }

    /// Does something while the target runs.
    pub(crate) fn running<T>(&self, act: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.resume()?;
        let done = act()?;
        self.pause()?;
        Ok(done)
    }

    /// The seconds that something takes while the target runs, after something that warms up.
    pub(crate) fn timed(
        &self,
        warm_up: impl FnOnce() -> Result<(), Error>,
        act: impl FnOnce() -> Result<(), Error>,
    ) -> Result<f64, Error> {
        self.running(|| {
            warm_up()?;
            let start = Instant::now();
            act()?;
            Ok(start.elapsed().as_secs_f64())
        })
    }

    fn signal(&self, signal: Signal) -> Result<(), Error> {
        match &self.process {
            Some(process) if self.wait == Wait::Spin => kill(process.pid(), signal).context("kill"),
            _ => Ok(()),
        }
    }
}

/// Where a routed target seems to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Node {
    /// On this node: shared memory is taken.
    Same,
    /// On another one: the network is taken.
    Other,
}

/// `hg-perf target`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Where to listen; chooses the transport.
    #[arg(long, default_value = "sm://")]
    url: String,
    /// How the target waits for requests.
    #[arg(long, value_enum, default_value = "spin")]
    wait: Wait,
    /// How many contexts serve.
    #[arg(long, default_value_t = 1)]
    contexts: usize,
    /// The process that must live, and that is told the address; without it, it is printed.
    #[arg(long, hide = true)]
    parent: Option<u32>,
    /// The core to run on.
    #[arg(long)]
    core: Option<usize>,
}

/// Serves until it is killed, or its parent is gone.
pub(crate) fn serve(arguments: &Arguments) -> Result<(), Error> {
    let control = match (arguments.parent, arguments.core) {
        (Some(parent), core) => Some(pair::become_peer(parent, core)?),
        (None, Some(core)) => pair::pin(core).map(|()| None)?,
        (None, None) => None,
    };
    raise_descriptor_limit()?;
    let builder = builder(&arguments.url, arguments.wait).contexts(arguments.contexts);
    let engine = builder.listen(true).open(&arguments.url)?;
    engine.register(echo)?;
    engine.register(length)?;
    engine.register(ends)?;
    let store = Store::default();
    engine.serve_blocking(own, move |request, (layout,)| store.own(&request.engine(), &layout))?;
    engine.serve_async(pull_first, |request, (from,)| store::pull(request, from))?;
    engine.serve_async(pulls, |request, (from, plan)| probed::pull(request, from, plan))?;
    engine.register(nap)?;
    let held = Mutex::new(Vec::new());
    engine.serve_later(hold, move |_, (), answer| {
        held.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(answer);
    })?;
    let address = engine.address().to_string();
    let Some(mut control) = control else {
        writeln!(io::stdout(), "{address}").context("write")?;
        loop {
            thread::park();
        }
    };
    control.send_text(&address)?;
    while control.next()?.is_some() {}
    Ok(())
}

/// A node that is not this one.
const NOWHERE: &str = "00000000-0000-5000-8000-000000000000";

/// A thousand peers need more descriptors than a shell usually allows.
pub(crate) fn raise_descriptor_limit() -> Result<(), Error> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("getrlimit")?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("setrlimit")
}
