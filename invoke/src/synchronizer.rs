//! Counts events down, and tells whoever waits.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use crate::{Error, Worker};

/// Counts calls down to none: waited for, polled, awaited, or followed by a closure. Clones are the same.
///
/// All of it is under one lock, which nobody holds while anything of a user's runs.
#[derive(Clone, Default)]
pub struct Synchronizer {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    left: u64,
    failed: Option<Error>,
    wakers: Vec<Waker>,
    then: Vec<Then>,
}

type Then = Box<dyn FnOnce(Result<(), Error>) + Send>;

impl Synchronizer {
    /// Of no event yet: each call that it is given to adds one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many events are to come.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.lock().left
    }

    /// What has become of all events: `None` while some are to come.
    #[must_use]
    pub fn result(&self) -> Option<Result<(), Error>> {
        let state = self.lock();
        (state.left == 0).then(|| state.failed.clone().map_or(Ok(()), Err))
    }

    /// Makes the worker's progress until there are none left.
    ///
    /// # Errors
    /// The first failure: [`Error::Gone`]; [`Error::Inside`] in a function that was called.
    pub fn wait(&self, worker: &Worker) -> Result<(), Error> {
        worker.wait_until(|| self.result())
    }

    /// Runs a closure when there are none left: at once if that is so, else by the thread that counts the last one. It is not to wait.
    pub fn then(&self, run: impl FnOnce(Result<(), Error>) + Send + 'static) {
        let mut state = self.lock();
        state.then.push(Box::new(run));
        Self::tell(state);
    }

    pub(crate) fn expect_one(&self) {
        self.lock().left += 1;
    }

    /// One event has come, or will not come.
    pub(crate) fn count(&self, failed: Option<Error>) {
        let mut state = self.lock();
        state.left -= 1;
        if state.failed.is_none() {
            state.failed = failed;
        }
        Self::tell(state);
    }

    fn tell(mut state: MutexGuard<'_, State>) {
        if state.left > 0 {
            return;
        }
        let (wakers, then) = (std::mem::take(&mut state.wakers), std::mem::take(&mut state.then));
        let result = state.failed.clone().map_or(Ok(()), Err);
        drop(state);
        for run in then {
            run(result.clone());
        }
        for waker in wakers {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whole between any two statements that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Future for Synchronizer {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.lock();
        if state.left == 0 {
            return Poll::Ready(state.failed.clone().map_or(Ok(()), Err));
        }
        if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

impl fmt::Debug for Synchronizer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Synchronizer({} left)", self.left())
    }
}
