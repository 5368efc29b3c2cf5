//! Calls as programs make them: from an engine with its thread for progress, waited for or awaited, from one thread or several.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use super::call::check;
use super::target::Target;
use super::{builder, call_once, echo};
use crate::error::{Context, Error};
use crate::measure::Wait;

/// Who collects the answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum By {
    /// `Call::wait`.
    Wait,
    /// `.await` on tokio's runtime of one thread.
    Tokio,
    /// `.await` on an executor of a few lines: `smol::future::block_on`.
    Small,
}

impl By {
    /// As the command line has it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            By::Wait => "wait",
            By::Tokio => "tokio",
            By::Small => "small",
        }
    }
}

/// An engine that calls, as `hg::open` gives it.
#[derive(Debug)]
pub(crate) struct Origin {
    engine: hg::Engine,
    peer: hg::Peer,
    target: Rc<Target>,
    tokio: tokio::runtime::Runtime,
}

impl Origin {
    /// Opens it and makes the first call.
    pub(crate) fn connect(url: &str, wait: Wait, target: &Rc<Target>) -> Result<Origin, Error> {
        let engine = builder(url, wait).open(url)?;
        let peer = engine.lookup(target.address())?;
        let tokio = tokio::runtime::Builder::new_current_thread().build().context("a runtime")?;
        target.running(|| call_once(&engine, &peer, 0))?;
        Ok(Origin { engine, peer, target: Rc::clone(target), tokio })
    }

    /// Whom it calls.
    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// `count` calls, one after the other.
    pub(crate) fn calls(&self, by: By, count: u64) -> Result<(), Error> {
        let waited = |value| call_once(&self.engine, &self.peer, value);
        let awaited = async {
            for value in 0..count {
                check(value, self.engine.call(echo, &self.peer, (value,)).await?)?;
            }
            Ok(())
        };
        match by {
            By::Wait => (0..count).try_for_each(waited),
            By::Tokio => self.tokio.block_on(awaited),
            By::Small => smol::future::block_on(pin!(awaited)),
        }
    }

    /// Calls of so many threads until `time` has passed, each with one in flight; how many each has made, in a second.
    pub(crate) fn together(&self, threads: usize, time: Duration) -> Result<Vec<f64>, Error> {
        let (engine, peer) = (&self.engine, &self.peer);
        let start = Barrier::new(threads);
        in_threads(threads, |_| calls_per_second(engine, peer, &start, time))
    }

    /// `count` calls of each of so many threads.
    pub(crate) fn count_together(&self, threads: usize, count: u64) -> Result<(), Error> {
        let (engine, peer) = (&self.engine, &self.peer);
        let one = |_| (0..count).try_for_each(|value| call_once(engine, peer, value));
        in_threads(threads, one).map(drop)
    }
}

/// Threads that call as many contexts of a target: by one engine with as many, or by an engine each.
#[derive(Debug)]
pub(crate) struct Crew {
    engines: Vec<(hg::Engine, hg::Peer)>,
    threads: usize,
}

impl Crew {
    /// One engine with as many contexts as threads.
    pub(crate) fn of_contexts(
        url: &str,
        wait: Wait,
        target: &Target,
        threads: usize,
    ) -> Result<Crew, Error> {
        let engine = builder(url, wait).contexts(threads).open(url)?;
        let peer = engine.lookup(target.address())?;
        Ok(Crew { engines: vec![(engine, peer)], threads })
    }

    /// An engine for each thread.
    pub(crate) fn of_engines(
        url: &str,
        wait: Wait,
        target: &Target,
        threads: usize,
    ) -> Result<Crew, Error> {
        let engine = |context| {
            let engine = builder(url, wait).open(url)?;
            let peer = engine.lookup(engine.address_at(target.address(), context)?)?;
            Ok((engine, peer))
        };
        let engines: Result<_, Error> = (0..threads).map(engine).collect();
        Ok(Crew { engines: engines?, threads })
    }

    /// Calls of all threads together until `time` has passed, in a second.
    pub(crate) fn together(&self, time: Duration) -> Result<f64, Error> {
        let start = Barrier::new(self.threads);
        let one = |thread: usize| {
            let (engine, peer) = &self.engines[thread % self.engines.len()];
            calls_per_second(engine, peer, &start, time)
        };
        Ok(in_threads(self.threads, one)?.iter().sum())
    }
}

/// Calls until `time` has passed, with one in flight, once all have come so far; how many, in a second.
fn calls_per_second(
    engine: &hg::Engine,
    peer: &hg::Peer,
    start: &Barrier,
    time: Duration,
) -> Result<f64, Error> {
    start.wait();
    let start = Instant::now();
    let mut made = 0_u32;
    while start.elapsed() < time {
        (0..CALLS_PER_LOOK).try_for_each(|value| call_once(engine, peer, value))?;
        made += 1;
    }
    Ok(f64::from(made) * CALLS_PER_LOOK as f64 / start.elapsed().as_secs_f64())
}

/// What each of so many threads has come to.
fn in_threads<T: Send>(
    threads: usize,
    one: impl Fn(usize) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let one = &one;
    thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|it| scope.spawn(move || one(it))).collect();
        let ended = started.into_iter().map(|it| it.join());
        ended.map(|it| it.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// Calls between two looks at the clock.
const CALLS_PER_LOOK: u64 = 8;
