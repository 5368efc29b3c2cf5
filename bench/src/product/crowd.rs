//! Many peers of one target that have made one call each and are idle: `hg-perf crowd`.

use crate::error::Error;
use crate::measure::Wait;
use crate::pair::{self, Cores, Peer};
use crate::product::target::{Target, raise_descriptor_limit};
use crate::product::{builder, call_once};

/// Live idle peers, spread over [`PROCESSES`] processes, of at least [`CONTEXTS`] contexts each.
#[derive(Debug)]
pub(crate) struct Crowd {
    processes: Vec<Peer>,
}

impl Crowd {
    /// Starts `peers` of them; each has made its call when this returns.
    pub(crate) fn start(
        url: &str,
        target: &Target,
        peers: usize,
        cores: Cores,
    ) -> Result<Crowd, Error> {
        let mut processes = Vec::new();
        let mut left = peers;
        let each = peers.div_ceil(PROCESSES).max(CONTEXTS);
        while left > 0 {
            let contexts = left.min(each);
            processes.push(Crowd::process(url, target, contexts, cores, false)?);
            left -= contexts;
        }
        Ok(Crowd { processes })
    }

    /// One peer with a progress thread of its own, waiting as asked.
    pub(crate) fn with_thread(url: &str, target: &Target, cores: Cores) -> Result<Crowd, Error> {
        Ok(Crowd { processes: vec![Crowd::process(url, target, 1, cores, true)?] })
    }

    fn process(
        url: &str,
        target: &Target,
        contexts: usize,
        cores: Cores,
        thread: bool,
    ) -> Result<Peer, Error> {
        let contexts = contexts.to_string();
        let mut arguments = vec!["crowd", "--url", url, "--to", target.address()];
        arguments.extend(["--contexts", &contexts, "--wait", target.wait().as_str()]);
        if thread {
            arguments.push("--thread");
        }
        let mut process = Peer::run("crowd", &arguments, cores.origin)?;
        process.receive()?;
        Ok(process)
    }

    /// Its processes.
    pub(crate) fn processes(&self) -> &[Peer] {
        &self.processes
    }
}

/// `hg-perf crowd`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[arg(long)]
    url: String,
    #[arg(long)]
    to: String,
    #[arg(long)]
    contexts: usize,
    #[arg(long, value_enum)]
    wait: Wait,
    /// With progress threads.
    #[arg(long)]
    thread: bool,
    #[arg(long)]
    parent: u32,
    #[arg(long)]
    core: Option<usize>,
}

/// Every context makes one call; then nothing happens until the parent is gone.
pub(crate) fn serve(arguments: &Arguments) -> Result<(), Error> {
    let mut control = pair::become_peer(arguments.parent, arguments.core)?;
    raise_descriptor_limit()?;
    let progress = if arguments.thread { hg::Progress::Background } else { hg::Progress::Own };
    let mut engines = Vec::new();
    for first in (0..arguments.contexts).step_by(ENGINE) {
        let contexts = ENGINE.min(arguments.contexts - first);
        let builder = builder(&arguments.url, arguments.wait).progress(progress);
        let engine = builder.contexts(contexts).open(&arguments.url)?;
        for index in 0..contexts {
            let context = engine.context(index).expect("as many contexts as were asked for");
            call_once(&context, &context.lookup(&arguments.to)?, index as u64)?;
        }
        engines.push(engine);
    }
    control.send(1)?;
    while control.next()?.is_some() {}
    Ok(())
}

/// Processes of a large crowd.
const PROCESSES: usize = 20;
/// Contexts of one process of a small one.
const CONTEXTS: usize = 50;
/// Contexts of one engine.
const ENGINE: usize = 200;
