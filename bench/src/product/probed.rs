//! Pulls of an `async` handler, and another thread of its process that asks for the engine's lock meanwhile.
//!
//! What that thread asks, [`hg::Engine::calls_under_way`], takes the lock that every post and every round of progress takes, and
//! does nothing else under it: so it waits for as long as others hold the lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hg::bulk::{Descriptor, Rights};

use super::store::{Refused, to_usize};
use crate::pair;
use crate::raw::pages::Pages;

/// What a handler is to do.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub(crate) struct Plan {
    /// How long to pull, in milliseconds.
    pub(crate) millis: u64,
    /// Whether another thread asks meanwhile.
    pub(crate) asks: bool,
    /// The core of that thread; `None`: any.
    pub(crate) core: Option<usize>,
}

/// What came of it.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Pulled {
    /// Pulls per second.
    pub(crate) rate: f64,
    /// How long each question took, in microseconds.
    pub(crate) waits: Vec<f64>,
}

/// Pulls the same bytes again and again.
pub(crate) async fn pull(
    request: hg::Request,
    from: Descriptor,
    plan: Plan,
) -> Result<Pulled, Refused> {
    let engine = request.engine();
    let pages = Pages::new(to_usize(from.len()), |_| {});
    let buffer = engine.expose(pages.memory(), Rights::empty())?;
    let is_over = Arc::new(AtomicBool::new(false));
    let asker = plan.asks.then(|| {
        let (engine, is_over) = (engine.clone(), Arc::clone(&is_over));
        thread::spawn(move || ask(&engine, &is_over, plan.core))
    });
    let (start, mut pulls) = (Instant::now(), 0.0);
    while start.elapsed() < Duration::from_millis(plan.millis) {
        request.pull(from.clone(), &buffer).await?;
        pulls += 1.0;
    }
    let rate = pulls / start.elapsed().as_secs_f64();
    // Relaxed: only that it ends matters.
    is_over.store(true, Ordering::Relaxed);
    let waits = asker.map_or(Vec::new(), |asker| asker.join().unwrap_or_default());
    Ok(Pulled { rate, waits })
}

/// Asks at some distance until the pulls are over.
fn ask(engine: &hg::Engine, is_over: &AtomicBool, core: Option<usize>) -> Vec<f64> {
    // One that cannot go to that core asks from where it is.
    let _ = core.map(pair::pin);
    let mut waits = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let start = Instant::now();
        std::hint::black_box(engine.calls_under_way());
        waits.push(start.elapsed().as_secs_f64() * 1e6);
        while start.elapsed() < DISTANCE {
            std::hint::spin_loop();
        }
    }
    waits
}

/// Between two questions: the lock is mostly the handler's.
const DISTANCE: Duration = Duration::from_micros(20);
