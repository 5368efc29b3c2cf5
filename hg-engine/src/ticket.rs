//! A turn that somebody awaits: of a job for a thread (`pool`), of a request for memory (`budget`).

use std::{mem, sync::Arc, task::Waker};

use crate::lock::Mutex;

/// A place in a queue.
#[derive(Debug)]
pub(crate) struct Ticket(Mutex<Turn>);

/// How far its turn is.
#[derive(Debug)]
pub(crate) enum Turn {
    /// Who is to be told.
    Waits(Option<Waker>),
    HasCome,
    /// There is no queue any more.
    Never,
}

impl Ticket {
    pub(crate) fn new(turn: Turn) -> Arc<Self> {
        Arc::new(Self(Mutex::new(turn)))
    }

    /// Whether it has come, or never will; otherwise has a waker told.
    pub(crate) fn has_come(&self, waker: &Waker) -> Option<bool> {
        let new = waker.clone();
        let mut turn = self.0.lock();
        match &mut *turn {
            Turn::Waits(waker) => {
                let before = waker.replace(new);
                drop(turn);
                drop(before);
                None
            }
            Turn::HasCome => Some(true),
            Turn::Never => Some(false),
        }
    }

    /// Whether it has come, or never will.
    pub(crate) fn state(&self) -> Option<bool> {
        match &*self.0.lock() {
            Turn::Waits(_) => None,
            Turn::HasCome => Some(true),
            Turn::Never => Some(false),
        }
    }

    /// It has come, or never will; gives who is to be told.
    pub(crate) fn end(&self, end: Turn) -> Option<Waker> {
        match mem::replace(&mut *self.0.lock(), end) {
            Turn::Waits(waker) => waker,
            Turn::HasCome | Turn::Never => None,
        }
    }
}
