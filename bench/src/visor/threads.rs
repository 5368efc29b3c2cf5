//! Calls, and scattered reads, of several threads: on one connection, on one that a lock guards, on one each.

use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hg::bulk::{Range, RemoteRange, Rights};

use super::Measured;
use super::node::{Nodes, origin, target};
use crate::error::Error;
use crate::measure::{Caches, Measure, Op, Subject, Unit};
use crate::plot::Panel;
use crate::product::store::{Exposed, Layout, to_usize};
use crate::product::target::Target;
use crate::product::{call_once, own};
use crate::report::Figure;
use crate::turns::Turns;

/// Numbers of threads.
const THREADS: [usize; 2] = [3, 6];
/// How long one repetition takes.
const STRETCH: Duration = Duration::from_millis(100);
/// Calls between two looks at the clock.
const CALLS_PER_LOOK: u64 = 8;
/// Bytes of a read, and buffers of the target's to choose from.
const SIZE: u64 = 64 << 10;
const BUFFERS: u64 = 256;
/// Reads go from one buffer to one so far behind it.
const ODD: u64 = 0x9E37_79B9_7F4A_7C15;

/// Threads that call as long as they are told to.
struct Crew {
    figure: &'static str,
    threads: usize,
    /// One for all, or one each.
    connections: Vec<(hg::Engine, hg::Peer)>,
    /// Held for each call.
    lock: Option<Mutex<()>>,
    /// Reads instead of calls: of each thread, where to.
    reads: Option<Reads>,
    _target: Target,
}

/// What is read.
struct Reads {
    local: Vec<Range>,
    remote: Vec<RemoteRange>,
    _exposed: Vec<Exposed>,
}

impl Reads {
    /// Each thread has a buffer of its own, at the engine of its connection.
    fn new(connections: &[(hg::Engine, hg::Peer)], threads: usize) -> Result<Reads, Error> {
        let layout = Layout::new(SIZE, 1, 1, Caches::Hot);
        let far = Layout { buffers: BUFFERS, together: true, seed: 1, ..layout };
        let (engine, peer) = &connections[0];
        let owned = engine.call(own, peer, (far,)).wait()?;
        let remote = |buffer| owned[0].descriptor.range(far.place(buffer).1);
        let expose = |thread| {
            let (engine, _) = &connections[thread % connections.len()];
            layout.expose(engine, Rights::empty())
        };
        let exposed = (0..threads).map(expose).collect::<Result<Vec<_>, _>>()?;
        let exposed: Vec<Exposed> = exposed.into_iter().flatten().collect();
        let local = exposed.iter().map(|it| it.bulk.range(0..SIZE));
        Ok(Reads {
            local: local.collect::<Result<_, _>>()?,
            remote: (0..BUFFERS).map(remote).collect::<Result<_, _>>()?,
            _exposed: exposed,
        })
    }

    fn read(
        &self,
        (engine, peer): &(hg::Engine, hg::Peer),
        thread: usize,
        at: u64,
    ) -> Result<(), Error> {
        // Any order will do, if it is not that of the memory.
        let buffer = (at + thread as u64).wrapping_mul(ODD) % BUFFERS;
        let from = self.remote[to_usize(buffer)].clone();
        Ok(engine.pull(peer, from, self.local[thread].clone()).wait()?)
    }
}

impl Crew {
    fn new(
        figure: &'static str,
        nodes: &Nodes,
        (threads, engines): (usize, usize),
        (is_locked, reads): (bool, bool),
    ) -> Result<Crew, Error> {
        let target = target(Some(&nodes.far), 1)?;
        let connect = |_| {
            let (builder, url) = origin(Some(&nodes.near));
            let engine = builder.open(url)?;
            let peer = engine.lookup(target.address())?;
            call_once(&engine, &peer, 0)?;
            Ok((engine, peer))
        };
        let connections = (0..engines).map(connect).collect::<Result<Vec<_>, Error>>()?;
        let lock = is_locked.then(Mutex::default);
        let reads = reads.then(|| Reads::new(&connections, threads)).transpose()?;
        Ok(Crew { figure, threads, connections, lock, reads, _target: target })
    }

    /// Calls of one thread until the time is over; how many.
    fn calls(&self, thread: usize, start: &Barrier) -> Result<u64, Error> {
        let connection = &self.connections[thread % self.connections.len()];
        start.wait();
        let (start, mut made) = (Instant::now(), 0);
        while start.elapsed() < STRETCH {
            for value in 0..CALLS_PER_LOOK {
                let lock = self.lock.as_ref();
                let _held = lock.map(|it| it.lock().unwrap_or_else(PoisonError::into_inner));
                match &self.reads {
                    None => call_once(&connection.0, &connection.1, value)?,
                    Some(reads) => reads.read(connection, thread, made + value)?,
                }
            }
            made += CALLS_PER_LOOK;
        }
        Ok(made)
    }
}

impl Measure for Crew {
    fn subject(&self) -> Subject {
        let inflight = Some(self.threads as u64);
        match &self.reads {
            None => Subject { inflight, ..Subject::new(self.figure, Unit::PerSecond) },
            Some(_) => {
                let op = Some(Op::Pull);
                Subject { inflight, op, ..Subject::bandwidth(self.figure, to_usize(SIZE)) }
            }
        }
    }

    fn measure(&mut self) -> Result<f64, Error> {
        let start = &Barrier::new(self.threads);
        let this = &*self;
        let made: Result<u64, Error> = thread::scope(|scope| {
            let threads: Vec<_> =
                (0..this.threads).map(|it| scope.spawn(move || this.calls(it, start))).collect();
            let made = threads.into_iter().map(|it| it.join());
            made.map(|it| it.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).sum()
        });
        // Of a read, its bytes in MiB.
        let each = if this.reads.is_some() { SIZE as f64 / f64::from(1 << 20) } else { 1.0 };
        Ok(made? as f64 * each / STRETCH.as_secs_f64())
    }
}

/// How threads share a connection: what that is called in figures of calls, of reads, and in a picture. In the order in which they are
/// measured.
const WAYS: [(&str, &str, &str); 3] = [
    ("calls_on_one_connection", "reads_on_one_connection", "one connection"),
    ("calls_under_a_lock", "reads_under_a_lock", "one under a lock"),
    ("calls_on_one_each", "reads_on_one_each", "one each"),
];

/// The calls and the reads of each way, over the numbers of threads.
pub(super) fn panels(figures: &[Figure]) -> Vec<Panel> {
    let curve = |name: &str, title: &str| {
        let named = figures.iter().filter(|figure| figure.name() == name);
        (title.to_owned(), named.map(Figure::median).collect())
    };
    let over = THREADS.map(|threads| threads as f64).to_vec();
    let calls = WAYS.map(|(name, _, title)| curve(name, title)).to_vec();
    let reads = WAYS.map(|(_, name, title)| curve(name, title)).to_vec();
    let of_reads = "figure 6: scattered reads of 64 KiB, MiB/s, over threads".to_owned();
    let of_calls = "calls a second, over threads".to_owned();
    vec![
        Panel { title: of_reads, over: over.clone(), curves: reads },
        Panel { title: of_calls, over, curves: calls },
    ]
}

pub(super) fn measured(nodes: &Nodes, repetitions: u32) -> Result<Measured, Error> {
    let mut turns = Turns::default();
    for threads in THREADS {
        for reads in [false, true] {
            let mut crew = |way: usize, engines, locked| {
                let figure = if reads { WAYS[way].1 } else { WAYS[way].0 };
                Ok::<_, Error>(turns.add(Crew::new(
                    figure,
                    nodes,
                    (threads, engines),
                    (locked, reads),
                )?))
            };
            let [one, locked, each] =
                [crew(0, 1, false)?, crew(1, 1, true)?, crew(2, threads, false)?];
            for place in [one, locked, each] {
                turns.line(move |taken| taken.figure(place));
            }
            let [to_each, of_lock] = RATIOS[usize::from(reads)];
            turns.ratio_line(to_each, one, each);
            turns.ratio_line(of_lock, locked, each);
        }
    }
    let figures = turns.take(repetitions)?;
    let panels = panels(&figures);
    Ok((figures, panels))
}

/// What the proportions of calls, and of reads, are called: one connection to one each, and one under a lock.
const RATIOS: [[&str; 2]; 2] = [
    ["one_connection_to_one_each", "under_a_lock_to_one_each"],
    ["reads_on_one_connection_to_one_each", "reads_under_a_lock_to_one_each"],
];

#[cfg(test)]
pub(super) fn made_up() -> Vec<Figure> {
    let names = WAYS.iter().flat_map(|way| [way.0, way.1]);
    let both = names.flat_map(|name| THREADS.map(|threads| (name, threads as f64)));
    both.map(|(name, value)| Figure::counted(Subject::new(name, Unit::PerSecond), value)).collect()
}
