//! What is looked at again and again while a story runs; and how a check fails.

use std::sync::Arc;

use hg_core::backlog;
use hg_engine::Engine;

use crate::{
    stage::Stage,
    state,
    story::{Settings, contexts},
    world,
};

/// Between two looks, in nanoseconds.
pub(crate) const LOOK: u64 = 5_000_000;
/// Bytes of one-way calls that an engine may take for processes that hang, beside its limit and what the transport has.
pub(crate) const BYTES_SLACK: u64 = 20_000;

pub(crate) fn fail(check: &str, why: impl FnOnce() -> String) {
    if state::with(|run| run.checks.has(check)) {
        let why = why();
        world::fail(|| format!("{check}: {why}"));
    }
}

/// Looks again and again at what waits in a process: requests and answers each up to their limit, a short answer for each request in
/// service, and a message of each kind that is longer than all of its limit; and at its large arguments.
pub(crate) fn watch_bytes(here: &Arc<dyn Stage>, handle: Engine, settings: &Settings) {
    let stage = Arc::clone(here);
    let short = settings.in_service_max as u64 * backlog::SHORT_ANSWER;
    let waiting_max = 2 * settings.backlog_bytes_max + short + BYTES_SLACK;
    let large_max = settings.large_in_service_max;
    let watch = move || {
        while !stage.is_closed() {
            for context in contexts(&handle) {
                let sums = [
                    ("wait", context.backlog_bytes(), waiting_max),
                    ("of large arguments are", context.large_in_service_bytes(), large_max),
                ];
                state::with(|run| *run.judged.entry("bytes").or_default() += 1);
                if let Some((what, bytes, most)) = sums.into_iter().find(|it| it.1 as u64 > it.2) {
                    fail("bytes", || {
                        let address = context.address();
                        format!("{bytes} bytes {what} in {address}, {most} at most")
                    });
                }
            }
            world::sleep(LOOK);
        }
    };
    here.spawn(Box::new(watch));
}
