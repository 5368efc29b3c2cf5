//! Two daemons, each of which stands for a node.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use nix::unistd::Pid;

use crate::error::{Context, Error};
use crate::measure::Wait;
use crate::outside;
use crate::pair::Cores;
use crate::product::target::Target;
use crate::product::{TCP, VISOR, builder};

/// A daemon, killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Node {
    child: Child,
    /// Of the daemon.
    pub(crate) name: String,
}

/// The origin's and the target's.
#[derive(Debug)]
pub(crate) struct Nodes {
    pub(crate) near: Node,
    pub(crate) far: Node,
}

impl Nodes {
    /// Over these, the second of which may be the first.
    pub(crate) fn start(networks: &[String]) -> Result<Nodes, Error> {
        let network = |at: usize| networks.get(at).or(networks.first()).map_or(TCP, String::as_str);
        Ok(Nodes { near: Node::start("near", network(0))?, far: Node::start("far", network(1))? })
    }
}

impl Node {
    fn start(which: &str, network: &str) -> Result<Node, Error> {
        let build = "`cargo build --release -p hydrargyrum-visor`";
        let program = outside::beside_this("hg-visor", build)?;
        let name = format!("hg-perf-{}-{which}", std::process::id());
        let mut command = Command::new(program);
        command.args(["serve", "/dev/stdin"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("spawn")?;
        // All connections that are measured are of one process.
        let text = format!("name = \"{name}\"\nnetwork = \"{network}\"\nconnections = 4096\n");
        let given = child.stdin.take().map(|mut to| to.write_all(text.as_bytes()));
        given.transpose().context("write to the daemon")?;
        let mut said = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut said).context("read from the daemon")?;
        }
        let node = Node { child, name };
        if said.is_empty() {
            return Err(Error::PeerGone("hg-visor"));
        }
        Ok(node)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a pid fits an i32"))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A target, behind a daemon or at a socket of its own.
pub(crate) fn target(through: Option<&Node>, contexts: usize) -> Result<Target, Error> {
    let daemon = through.map(|node| node.name.as_str());
    let url = if through.is_some() { VISOR } else { TCP };
    Target::start_through(daemon, (url, contexts), Wait::Adaptive, Cores::default())
}

/// An engine to be opened beside it.
pub(crate) fn origin(through: Option<&Node>) -> (hg::Builder, &'static str) {
    match through {
        Some(node) => (builder(VISOR, Wait::Adaptive).setting("daemon", &node.name), VISOR),
        None => (builder(TCP, Wait::Adaptive), TCP),
    }
}
