//! What applications cost: processes that each have an engine and one peer, with their share of the daemon, and without one.

use nix::unistd::Pid;

use super::Measured;
use super::node::{Node, Nodes, origin, target};
use crate::error::Error;
use crate::measure::{Subject, Unit, Wait};
use crate::pair::{self, Peer};
use crate::plot::Panel;
use crate::process::{Held, cpu_time, share_kib, threads_and_sleeps};
use crate::product::target::Target;
use crate::product::{TCP, VISOR, builder, call_once};
use crate::report::Figure;

/// Calls of each application while processor time is counted.
const CALLS: u64 = 2_000;

/// `hg-perf visitor`.
#[derive(Debug, clap::Args)]
pub(crate) struct VisitorArguments {
    #[arg(long)]
    url: String,
    #[arg(long)]
    to: String,
    #[arg(long)]
    parent: u32,
}

/// An application: calls as often as it is told to.
pub(crate) fn visit(arguments: &VisitorArguments) -> Result<(), Error> {
    let mut control = pair::become_peer(arguments.parent, None)?;
    let engine = builder(&arguments.url, Wait::Adaptive).listen(true).open(&arguments.url)?;
    let peer = engine.lookup(&arguments.to)?;
    call_once(&engine, &peer, 0)?;
    control.send(0)?;
    while let Some(calls) = control.next()? {
        (0..calls).try_for_each(|value| call_once(&engine, &peer, value))?;
        control.send(0)?;
    }
    Ok(())
}

/// What processes hold, all together.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Cost {
    kib: f64,
    descriptors: f64,
    threads: f64,
    /// Processor time of a call, in microseconds.
    call_us: f64,
}

/// Some applications of one node.
struct Crowd {
    applications: Vec<Peer>,
    daemon: Option<Pid>,
    /// What the daemon held before, and an application that it had then: the way to the other daemon is there.
    before: Cost,
    _first: Option<hg::Engine>,
    _target: Target,
}

impl Crowd {
    fn start(near: Option<&Node>, far: Option<&Node>, count: u32) -> Result<Crowd, Error> {
        let target = target(far, 1)?;
        let daemon = near.map(Node::pid);
        let mut first = None;
        if near.is_some() {
            let (builder, url) = origin(near);
            let engine = first.insert(builder.open(url)?);
            call_once(engine, &engine.lookup(target.address())?, 0)?;
        }
        let before = held(daemon)?;
        let url = if near.is_some() { VISOR } else { TCP };
        let arguments = ["visitor", "--url", url, "--to", target.address()];
        let name = near.map(|node| node.name.as_str());
        let mut applications = Vec::new();
        for _ in 0..count {
            let mut process = Peer::run_through(name, "visitor", &arguments, None)?;
            process.receive()?;
            applications.push(process);
        }
        Ok(Crowd { applications, daemon, before, _first: first, _target: target })
    }

    fn processes(&self) -> impl Iterator<Item = Pid> {
        self.applications.iter().map(Peer::pid).chain(self.daemon)
    }

    fn cpu_us(&self) -> Result<f64, Error> {
        let times = self.processes().map(cpu_time);
        times.map(|time| Ok(time?.as_secs_f64() * 1e6)).sum()
    }

    /// Of all of them, and of what the daemon has more than before.
    fn cost(&mut self) -> Result<Cost, Error> {
        let mut cost = held(self.processes())?;
        cost.kib -= self.before.kib;
        cost.descriptors -= self.before.descriptors;
        cost.threads -= self.before.threads;
        let begin = self.cpu_us()?;
        for application in &mut self.applications {
            application.control().send(CALLS)?;
        }
        for application in &mut self.applications {
            application.receive()?;
        }
        let calls = CALLS as f64 * self.applications.len() as f64;
        cost.call_us = (self.cpu_us()? - begin) / calls;
        Ok(cost)
    }
}

fn held(processes: impl IntoIterator<Item = Pid>) -> Result<Cost, Error> {
    let mut cost = Cost::default();
    for pid in processes {
        cost.kib += share_kib(pid)? as f64;
        cost.descriptors += Held::by(pid)?.fds as f64;
        cost.threads += threads_and_sleeps(pid)?.0 as f64;
    }
    Ok(cost)
}

/// A figure of applications: its name, its title in a picture, its unit, and where it is found.
type Column = (&'static str, &'static str, Unit, fn(&Cost) -> f64);

const COLUMNS: [Column; 4] = [
    ("memory", "memory, KiB", Unit::Kibibytes, |cost| cost.kib),
    ("descriptors", "descriptors", Unit::Descriptors, |cost| cost.descriptors),
    ("threads", "threads", Unit::Threads, |cost| cost.threads),
    ("cpu_per_call", "processor time of a call, us", Unit::Microseconds, |cost| cost.call_us),
];

pub(super) fn measured(nodes: &Nodes, counts: &[u32]) -> Result<Measured, Error> {
    let (near, far) = (Some(&nodes.near), Some(&nodes.far));
    let mut costs = Vec::new();
    for &count in counts {
        let through = Crowd::start(near, far, count)?.cost()?;
        costs.push([through, Crowd::start(None, None, count)?.cost()?]);
    }
    let (mut figures, mut panels) = (Vec::new(), Vec::new());
    for (name, title, unit, of) in COLUMNS {
        let subject = |figure: String, count: u32, url: &str| Subject {
            url: Some(url.to_owned()),
            peers: Some(u64::from(count)),
            ..Subject::new(figure, unit)
        };
        for (&count, [through, direct]) in counts.iter().zip(&costs) {
            let [through, direct] = [(through, VISOR), (direct, TCP)].map(|(cost, url)| {
                Figure::counted(subject(format!("applications_{name}"), count, url), of(cost))
            });
            figures.push(through.beside(&direct));
            figures.push(direct);
        }
        panels.push(panel(&format!("{title}, over applications"), counts, &costs, |_, it| of(it)));
    }
    panels.extend(normalised(counts, &costs));
    Ok((figures, panels))
}

/// Costs through a daemon and without one, of each number of applications.
type Costs = [[Cost; 2]];

fn panel(title: &str, counts: &[u32], costs: &Costs, of: impl Fn(f64, &Cost) -> f64) -> Panel {
    let over: Vec<f64> = counts.iter().map(|count| f64::from(*count)).collect();
    let curve = |which: usize| {
        over.iter().zip(costs).map(|(count, both)| of(*count, &both[which])).collect()
    };
    let curves = vec![("a daemon".to_owned(), curve(0)), ("a socket each".to_owned(), curve(1))];
    Panel { title: title.to_owned(), over, curves }
}

/// What all cost together, as the paper counts it: 1 is what an application costs where it has a socket, among the fewest of them.
pub(super) fn normalised(counts: &[u32], costs: &Costs) -> Vec<Panel> {
    let Some((first, [_, one])) = counts.iter().zip(costs).next() else { return Vec::new() };
    let (kib, call_us) = (one.kib / f64::from(*first), one.call_us);
    let memory = |_: f64, cost: &Cost| cost.kib / kib;
    let time = |count: f64, cost: &Cost| cost.call_us * count / call_us;
    let unit = "of all, 1: an application with a socket, over applications";
    vec![
        panel(&format!("figure 7: memory {unit}"), counts, costs, memory),
        panel(&format!("figure 8: processor time {unit}"), counts, costs, time),
    ]
}

/// Each application costs as much as its way, 1 through a daemon and 2 without.
#[cfg(test)]
pub(super) fn made_up(counts: &[u32]) -> Vec<[Cost; 2]> {
    let cost = |count: f64, each: f64| Cost { kib: each * count, call_us: each, ..Cost::default() };
    counts.iter().map(|count| [1.0, 2.0].map(|each| cost(f64::from(*count), each))).collect()
}
