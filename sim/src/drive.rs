//! Progress of an engine by threads of its process, as users write it.

use std::{os::fd::AsFd as _, sync::Arc, time::Duration};

use hg_engine::Engine;
use hg_na::Error;

use crate::{
    stage::Stage,
    story::{Settings, contexts},
};

/// Starts what makes the progress of an engine that has no thread for it.
pub(crate) fn start(stage: &Arc<dyn Stage>, handle: &Engine, settings: &Settings) {
    if settings.background {
        return;
    }
    let start = |handle: &Engine, drive: fn(&dyn Stage, &Engine)| {
        let (here, handle) = (Arc::clone(stage), handle.clone());
        stage.spawn(Box::new(move || drive(here.as_ref(), &handle)));
    };
    for context in contexts(handle) {
        start(&context, if settings.event_loops { event_loop } else { in_turn });
    }
}

fn in_turn(stage: &dyn Stage, handle: &Engine) {
    while !stage.is_closed() {
        handle.progress(Duration::from_millis(5));
    }
}

/// A foreign loop, which sleeps on the descriptor.
fn event_loop(stage: &dyn Stage, handle: &Engine) {
    let events = match handle.event_loop() {
        Ok(events) => events,
        Err(Error::Closed) => return,
        Err(error) => return stage.fail(format!("open: an event loop: {error}")),
    };
    while !stage.is_closed() {
        while events.progress() {}
        match events.may_sleep() {
            Ok(true) => stage.sleep_on(events.as_fd()),
            Ok(false) => stage.yield_now(),
            Err(Error::Closed) => return,
            Err(error) => return stage.fail(format!("open: an event loop: {error}")),
        }
    }
}
