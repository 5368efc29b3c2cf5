//! Calls of several threads: on one connection, on one that a lock guards, on one each.

use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Measured;
use super::node::{Nodes, origin, target};
use crate::error::Error;
use crate::measure::{Measure, Subject, Unit};
use crate::plot::Panel;
use crate::product::call_once;
use crate::product::target::Target;
use crate::report::Figure;
use crate::turns::Turns;

/// Numbers of threads.
const THREADS: [usize; 2] = [3, 6];
/// How long one repetition takes.
const STRETCH: Duration = Duration::from_millis(100);
/// Calls between two looks at the clock.
const CALLS_PER_LOOK: u64 = 8;

/// Threads that call as long as they are told to.
struct Crew {
    figure: &'static str,
    threads: usize,
    /// One for all, or one each.
    connections: Vec<(hg::Engine, hg::Peer)>,
    /// Held for each call.
    lock: Option<Mutex<()>>,
    _target: Target,
}

impl Crew {
    fn new(
        figure: &'static str,
        nodes: &Nodes,
        (threads, engines): (usize, usize),
        is_locked: bool,
    ) -> Result<Crew, Error> {
        let target = target(Some(&nodes.far), 1)?;
        let connect = |_| {
            let (builder, url) = origin(Some(&nodes.near));
            let engine = builder.open(url)?;
            let peer = engine.lookup(target.address())?;
            call_once(&engine, &peer, 0)?;
            Ok((engine, peer))
        };
        let connections = (0..engines).map(connect).collect::<Result<_, Error>>()?;
        let lock = is_locked.then(Mutex::default);
        Ok(Crew { figure, threads, connections, lock, _target: target })
    }

    /// Calls of one thread until the time is over; how many.
    fn calls(&self, thread: usize, start: &Barrier) -> Result<u64, Error> {
        let (engine, peer) = &self.connections[thread % self.connections.len()];
        start.wait();
        let (start, mut made) = (Instant::now(), 0);
        while start.elapsed() < STRETCH {
            for value in 0..CALLS_PER_LOOK {
                let lock = self.lock.as_ref();
                let _held = lock.map(|it| it.lock().unwrap_or_else(PoisonError::into_inner));
                call_once(engine, peer, value)?;
            }
            made += CALLS_PER_LOOK;
        }
        Ok(made)
    }
}

impl Measure for Crew {
    fn subject(&self) -> Subject {
        let inflight = Some(self.threads as u64);
        Subject { inflight, ..Subject::new(self.figure, Unit::PerSecond) }
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
        Ok(made? as f64 / STRETCH.as_secs_f64())
    }
}

/// How threads share a connection, and what that is called: in the order in which they are measured.
const WAYS: [(&str, &str); 3] = [
    ("calls_on_one_connection", "one connection"),
    ("calls_under_a_lock", "one under a lock"),
    ("calls_on_one_each", "one each"),
];

/// The calls of each way, over the numbers of threads.
fn panel(figures: &[Figure]) -> Panel {
    let curve = |(name, title): (&str, &str)| {
        let own = figures.iter().filter(|figure| figure.name() == name);
        (title.to_owned(), own.map(Figure::median).collect())
    };
    Panel {
        title: "calls a second, over threads".to_owned(),
        over: THREADS.map(|threads| threads as f64).to_vec(),
        curves: WAYS.map(curve).to_vec(),
    }
}

pub(super) fn measured(nodes: &Nodes, repetitions: u32) -> Result<Measured, Error> {
    let mut turns = Turns::default();
    for threads in THREADS {
        let crew = |figure, engines, locked| Crew::new(figure, nodes, (threads, engines), locked);
        let one = turns.add(crew(WAYS[0].0, 1, false)?);
        let locked = turns.add(crew(WAYS[1].0, 1, true)?);
        let each = turns.add(crew(WAYS[2].0, threads, false)?);
        for place in [one, locked, each] {
            turns.line(move |taken| taken.figure(place));
        }
        turns.ratio_line("one_connection_to_one_each", one, each);
        turns.ratio_line("under_a_lock_to_one_each", locked, each);
    }
    let figures = turns.take(repetitions)?;
    let panels = vec![panel(&figures)];
    Ok((figures, panels))
}
