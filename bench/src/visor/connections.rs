//! Pulls over many connections: the contexts of one process with those of another, each pair of which is a connection. A context is an
//! application to its daemon.

use hg::bulk::{Range, RemoteRange, Rights};

use super::Measured;
use super::node::{Node, Nodes, origin, target};
use crate::error::Error;
use crate::limits::memory;
use crate::measure::{Caches, Measure, Op, Subject, Unit};
use crate::plot::Panel;
use crate::product::call::pipelined;
use crate::product::own;
use crate::product::store::{Exposed, Layout, to_usize};
use crate::product::target::Target;
use crate::report::Figure;
use crate::turns::Turns;

/// Contexts of the origin, which has no thread but one, and connections of each context of the target, which has a thread for each.
const ORIGINS: usize = 250;
/// Bytes of a pull.
const SIZE: u64 = 64 << 10;
/// Pulls under way.
const INFLIGHT: u32 = 8;
/// Buffers of the target's, from which pulls choose at random.
const BUFFERS: u64 = 256;

/// An origin whose contexts are connected with all of a target's.
struct Mesh {
    /// The engine of each connection's origin, and its target.
    connections: Vec<(hg::Engine, hg::Peer)>,
    local: Vec<Range>,
    remote: Vec<RemoteRange>,
    url: &'static str,
    random: u64,
    _target: Target,
    _exposed: Vec<Exposed>,
}

impl Mesh {
    fn between(near: Option<&Node>, far: Option<&Node>, count: usize) -> Result<Mesh, Error> {
        let (builder, url) = origin(near);
        let engine = builder.contexts(count.min(ORIGINS)).progress(hg::Progress::Own).open(url)?;
        let target = target(far, count.div_ceil(ORIGINS))?;
        let layout = Layout::new(SIZE, INFLIGHT, 1, Caches::Hot);
        let far = Layout { buffers: BUFFERS, together: true, seed: 1, ..layout };
        let mut connections = Vec::new();
        for number in 0..count {
            let missing = || Error::Failed("a context is missing".to_owned());
            let context = engine.context(number % ORIGINS).ok_or_else(missing)?;
            let address = engine.address_at(target.address(), number / ORIGINS)?;
            let peer = context.lookup(address)?;
            connections.push((context, peer));
        }
        let (first, peer) = &connections[0];
        let owned = first.call(own, peer, (far,)).wait()?;
        let exposed = layout.expose(&engine, Rights::empty())?;
        let remote = |buffer| owned[0].descriptor.range(far.place(buffer).1);
        let local = exposed.iter().map(|it| it.bulk.range(0..SIZE));
        let mut mesh = Mesh {
            local: local.collect::<Result<_, _>>()?,
            remote: (0..BUFFERS).map(remote).collect::<Result<_, _>>()?,
            connections,
            url,
            random: 1,
            _target: target,
            _exposed: exposed,
        };
        mesh.connect()?;
        Ok(mesh)
    }

    /// Pulls once over each connection.
    fn connect(&mut self) -> Result<(), Error> {
        for (engine, peer) in &self.connections {
            engine.pull(peer, self.remote[0].clone(), self.local[0].clone()).wait()?;
        }
        Ok(())
    }

    fn pulls(&mut self, count: usize) -> Result<(), Error> {
        let Self { connections, local, remote, random, .. } = self;
        let mut any = |below: usize| {
            // An xorshift generator: any order will do.
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            to_usize(*random % below as u64)
        };
        let start = |n| {
            let (engine, peer) = &connections[any(connections.len())];
            let from = remote[any(remote.len())].clone();
            engine.pull(peer, from, local[to_usize(n % u64::from(INFLIGHT))].clone())
        };
        pipelined(count as u64, INFLIGHT, start, |_, pull| Ok(pull.wait()?))
    }
}

impl Measure for Mesh {
    fn subject(&self) -> Subject {
        Subject {
            url: Some(self.url.to_owned()),
            op: Some(Op::Pull),
            inflight: Some(u64::from(INFLIGHT)),
            peers: Some(self.connections.len() as u64),
            ..Subject::bandwidth("random_reads", to_usize(SIZE))
        }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        memory::bandwidth(to_usize(SIZE), INFLIGHT as usize, |count| self.pulls(count))
    }
}

pub(super) fn measured(nodes: &Nodes, counts: &[u32], repetitions: u32) -> Result<Measured, Error> {
    let mut turns = Turns::default();
    for count in counts.iter().map(|count| *count as usize) {
        let through = turns.add(Mesh::between(Some(&nodes.near), Some(&nodes.far), count)?);
        let direct = turns.add(Mesh::between(None, None, count)?);
        turns.line(move |taken| taken.figure(through));
        turns.line(move |taken| taken.figure(direct));
    }
    let mut figures = turns.take(repetitions)?;
    let through: Vec<f64> = figures.iter().step_by(2).map(Figure::median).collect();
    let panel = panel(counts, &figures);
    let best = through.iter().copied().fold(0.0, f64::max);
    let ratio = through.last().map_or(0.0, |last| last / best);
    figures.push(Figure::counted(Subject::new("most_connections_to_best", Unit::Ratio), ratio));
    Ok((figures, vec![panel]))
}

/// The curves of figures in the order in which they are measured: through the daemons, and without.
pub(super) fn panel(counts: &[u32], figures: &[Figure]) -> Panel {
    let over = counts.iter().map(|count| f64::from(*count)).collect();
    let curve = |which| figures.iter().skip(which).step_by(2).map(Figure::median).collect();
    let curves = vec![("two daemons".to_owned(), curve(0)), ("a socket each".to_owned(), curve(1))];
    let title = "figure 5: random reads of 64 KiB, MiB/s, over connections".to_owned();
    Panel { title, over, curves }
}
