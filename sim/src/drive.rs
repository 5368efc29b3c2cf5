//! Progress of an engine by threads of its process, as users write it.

use std::{sync::Arc, time::Duration};

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
    let start = |handle: Engine, context: u8| {
        let here = Arc::clone(stage);
        let is_loop = settings.event_loops;
        stage.spawn(Box::new(move || {
            if is_loop {
                event_loop(here.as_ref(), &handle, context);
            } else {
                in_turn(here.as_ref(), &handle);
            }
        }));
    };
    contexts(handle).zip(0..).for_each(|(handle, context)| start(handle, context));
}

fn in_turn(stage: &dyn Stage, handle: &Engine) {
    while !stage.is_closed() {
        handle.progress(Duration::from_millis(5));
    }
}

/// A foreign loop, which sleeps on the descriptor.
fn event_loop(stage: &dyn Stage, handle: &Engine, context: u8) {
    let events = match handle.event_loop() {
        Ok(events) => events,
        Err(Error::Closed) => return,
        Err(error) => return stage.fail(format!("open: an event loop: {error}")),
    };
    while !stage.is_closed() {
        while events.progress() {}
        match events.may_sleep() {
            Ok(true) => stage.sleep_on(&events, context),
            Ok(false) => stage.yield_now(),
            Err(Error::Closed) => return,
            Err(error) => return stage.fail(format!("open: an event loop: {error}")),
        }
    }
}
