//! What is sent in calls, read and written, over its size: through two daemons, and by a socket.

use std::rc::Rc;

use hg::bulk::{Range, RemoteRange, Rights};

use super::Measured;
use super::node::{Node, Nodes, origin, target};
use crate::error::Error;
use crate::limits::memory;
use crate::measure::{Caches, Measure, Op, Subject};
use crate::plot::Panel;
use crate::product::call::{check, pipelined};
use crate::product::store::{Exposed, Layout, to_usize};
use crate::product::target::Target;
use crate::product::{call_once, length, own};
use crate::report::Figure;
use crate::turns::Turns;

/// Bytes of one.
const SIZES: [u64; 6] = [64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20];
/// Of them under way.
const INFLIGHT: u32 = 8;

/// An operation: what it is called in figures, and in a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Send,
    Read,
    Write,
}

const KINDS: [(Kind, &str, &str); 3] = [
    (Kind::Send, "sends", "send"),
    (Kind::Read, "reads", "read"),
    (Kind::Write, "writes", "write"),
];

/// An origin and a target, connected.
struct Ends {
    engine: hg::Engine,
    peer: hg::Peer,
    url: &'static str,
    _target: Target,
}

impl Ends {
    fn between(near: Option<&Node>, far: Option<&Node>) -> Result<Rc<Ends>, Error> {
        let (builder, url) = origin(near);
        let engine = builder.progress(hg::Progress::Own).open(url)?;
        let target = target(far, 1)?;
        let peer = engine.lookup(target.address())?;
        call_once(&engine, &peer, 0)?;
        Ok(Rc::new(Ends { engine, peer, url, _target: target }))
    }
}

/// Operations of one kind and size.
struct Operations {
    ends: Rc<Ends>,
    kind: Kind,
    figure: &'static str,
    argument: Vec<u8>,
    local: Vec<Range>,
    remote: Vec<RemoteRange>,
    _exposed: Vec<Exposed>,
}

impl Operations {
    fn new(
        ends: &Rc<Ends>,
        (kind, figure, _): (Kind, &'static str, &str),
        size: u64,
    ) -> Result<Operations, Error> {
        let layout = Layout::new(size, INFLIGHT, 1, Caches::Hot);
        let far = Layout { seed: 1, ..layout };
        let owned = ends.engine.call(own, &ends.peer, (far,)).wait()?;
        let exposed = layout.expose(&ends.engine, Rights::empty())?;
        let local = exposed.iter().map(|it| it.bulk.range(0..size));
        let remote = owned.iter().map(|it| it.descriptor.range(0..size));
        Ok(Operations {
            kind,
            figure,
            argument: vec![7; to_usize(size)],
            local: local.collect::<Result<_, _>>()?,
            remote: remote.collect::<Result<_, _>>()?,
            _exposed: exposed,
            ends: Rc::clone(ends),
        })
    }

    fn make(&self, count: u64) -> Result<(), Error> {
        let Ends { engine, peer, .. } = &*self.ends;
        let argument = self.argument.as_slice();
        let local = |n: u64| self.local[to_usize(n) % self.local.len()].clone();
        let remote = |n: u64| self.remote[to_usize(n) % self.remote.len()].clone();
        match self.kind {
            Kind::Send => {
                let start = |_| engine.call(length, peer, (argument,));
                pipelined(count, INFLIGHT, start, |_, it| check(argument.len() as u64, it.wait()?))
            }
            Kind::Read => {
                let start = |n| engine.pull(peer, remote(n), local(n));
                pipelined(count, INFLIGHT, start, |_, it| Ok(it.wait()?))
            }
            Kind::Write => {
                let start = |n| engine.push(peer, local(n), remote(n));
                pipelined(count, INFLIGHT, start, |_, it| Ok(it.wait()?))
            }
        }
    }
}

impl Measure for Operations {
    fn subject(&self) -> Subject {
        let op = match self.kind {
            Kind::Send => None,
            Kind::Read => Some(Op::Pull),
            Kind::Write => Some(Op::Push),
        };
        Subject {
            url: Some(self.ends.url.to_owned()),
            op,
            inflight: Some(u64::from(INFLIGHT)),
            ..Subject::bandwidth(self.figure, self.argument.len())
        }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let size = self.argument.len();
        memory::bandwidth(size, INFLIGHT as usize, |count| self.make(count as u64))
    }
}

/// The curves of figures in the order in which they are measured: through the daemons, and without.
pub(super) fn panels(figures: &[Figure]) -> Vec<Panel> {
    let mut panels = Vec::new();
    for (which, through) in ["through two daemons", "by a socket"].into_iter().enumerate() {
        let curve = |(_, name, title): (Kind, &str, &str)| {
            let named = figures.iter().filter(|figure| figure.name() == name);
            (title.to_owned(), named.skip(which).step_by(2).map(Figure::median).collect())
        };
        panels.push(Panel {
            title: format!("figure 1: operations {through}, MiB/s, over bytes"),
            over: SIZES.map(|size| size as f64).to_vec(),
            curves: KINDS.map(curve).to_vec(),
        });
    }
    panels
}

pub(super) fn measured(nodes: &Nodes, repetitions: u32) -> Result<Measured, Error> {
    let through = Ends::between(Some(&nodes.near), Some(&nodes.far))?;
    let direct = Ends::between(None, None)?;
    let mut turns = Turns::default();
    for kind in KINDS {
        for size in SIZES {
            for ends in [&through, &direct] {
                let place = turns.add(Operations::new(ends, kind, size)?);
                turns.line(move |taken| taken.figure(place));
            }
        }
    }
    let figures = turns.take(repetitions)?;
    let panels = panels(&figures);
    Ok((figures, panels))
}

#[cfg(test)]
pub(super) fn made_up() -> Vec<Figure> {
    let sizes = |name| SIZES.iter().flat_map(move |size| [(name, *size, 1.0), (name, *size, 2.0)]);
    let all = KINDS.iter().flat_map(|kind| sizes(kind.1));
    let figure =
        |(name, size, value)| Figure::counted(Subject::bandwidth(name, to_usize(size)), value);
    all.map(figure).collect()
}
