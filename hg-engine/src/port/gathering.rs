//! Handlers of one round whose transfers wait for each other, and are moved together.
//!
//! A round with several requests starts their handlers one after the other, as ever. One that begins a short transfer, which
//! the transport would rather do with others, is left where it awaits that; when so many wait, or all handlers were started,
//! the transfers are moved and the handlers polled again, directly.

use std::{mem, sync::Arc, task::Poll};

use hg_core::table::Key;
use hg_na::Message;

use super::{NOTES_MAX, Port};
use crate::{
    late::contain,
    request::{Inside, in_handler},
    running::Task,
    tasks::Tasks,
};

/// A handler that waits in its round.
pub(super) struct Gathered {
    /// Its task; `None`: it has ended, and has left transfers that somebody else has.
    pub(super) key: Option<Key>,
    /// Which start it was.
    pub(super) start: u64,
    /// Where its handler is.
    pub(super) place: usize,
}

/// Those of a round, in the order in which they were started; and what all rounds start handlers with.
#[derive(Default)]
pub(super) struct Gathering {
    handlers: Vec<Gathered>,
    /// Where the futures of each handler are put, by its place among all.
    spares: Vec<Vec<Task>>,
    /// Handlers' futures that were started, to tell them apart.
    pub(super) starts: u64,
}

impl Gathering {
    /// Where the futures of the handler at this place are put.
    #[inline]
    pub(super) fn spares_of(&mut self, place: usize) -> &mut Vec<Task> {
        if self.spares.len() <= place {
            self.spares.resize_with(place + 1, Vec::new);
        }
        &mut self.spares[place]
    }

    /// The handlers have other places now, or none any more.
    pub(super) fn take_places(&mut self) -> Vec<Vec<Task>> {
        mem::take(&mut self.spares)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.handlers.is_empty()
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.handlers.len() >= NOTES_MAX
    }

    #[inline]
    pub(super) fn add(&mut self, handler: Gathered) {
        self.handlers.push(handler);
    }
}

impl Port {
    /// Moves what waits, and polls those that wait for it. What they begin then is not waited for.
    #[inline(never)]
    pub(super) fn finish_gathered(
        self: &Arc<Self>,
        gathering: &mut Gathering,
        tasks: &mut Tasks,
        answer: &mut Message,
    ) {
        let mut handlers = mem::take(&mut gathering.handlers);
        let waker_of = |start| {
            let of_start = handlers.iter().find(|it| it.start == start);
            tasks.waker(of_start?.key?)
        };
        let mut over = Vec::with_capacity(NOTES_MAX);
        let is_all = self.state.lock().flush_notes(waker_of, &mut over);
        in_handler(Inside::Async, || {
            for noted in over {
                contain("memory that was dropped", || noted.give_back());
            }
        });
        for Gathered { key, start, place } in handlers.drain(..) {
            let Some(key) = key else { continue };
            let spares = gathering.spares_of(place);
            let moved = if is_all { start } else { 0 };
            match tasks.poll_again(key, self, (answer, spares), moved) {
                Some((due, Poll::Ready(run))) => self.finish_start(due, &run, answer, start),
                Some((due, Poll::Pending)) => self.leave_round(due, start),
                None => {}
            }
        }
        gathering.handlers = handlers; // For its memory.
    }
}
