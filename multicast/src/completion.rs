//! Something that ends once, waited for or awaited.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

/// Something under way. It goes on when this is dropped.
#[must_use = "how it ends is told here only"]
pub struct Completion<T>(Arc<Shared<T>>);

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

enum State<T> {
    Open(Option<Waker>),
    Over(T),
    Taken,
}

impl<T> Completion<T> {
    /// One that is under way, and what ends it.
    pub(crate) fn new() -> (Self, Completer<T>) {
        let state = Mutex::new(State::Open(None));
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        (Self(Arc::clone(&shared)), Completer(shared))
    }

    /// Waits for the end. Not in the function that says where an object goes, nor in a plain handler of the engine: the thread that runs
    /// those is the one that would bring the end.
    ///
    /// # Panics
    /// Its outcome was taken already.
    pub fn wait(self) -> T {
        let mut state = self.0.lock();
        loop {
            if let Some(over) = state.take() {
                return over;
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for at most this long; gives itself back when it has not ended by then.
    ///
    /// # Errors
    /// Itself, still under way.
    ///
    /// # Panics
    /// Its outcome was taken already.
    pub fn wait_within(self, limit: Duration) -> Result<T, Self> {
        let until = Instant::now().checked_add(limit);
        let mut state = self.0.lock();
        loop {
            if let Some(over) = state.take() {
                return Ok(over);
            }
            let left = until.map_or(limit, |it| it.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                drop(state);
                return Err(self);
            }
            let waited = self.0.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The outcome, once, if it has ended.
    ///
    /// # Panics
    /// Its outcome was taken already.
    pub fn try_take(&mut self) -> Option<T> {
        self.0.lock().take()
    }
}

impl<T> Future for Completion<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.lock();
        if let Some(over) = state.take() {
            return Poll::Ready(over);
        }
        *state = State::Open(Some(context.waker().clone()));
        Poll::Pending
    }
}

impl<T> fmt::Debug for Completion<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Completion")
    }
}

/// Ends a [`Completion`], once.
pub(crate) struct Completer<T>(Arc<Shared<T>>);

impl<T> Completer<T> {
    pub(crate) fn complete(self, outcome: T) {
        let mut state = self.0.lock();
        let before = std::mem::replace(&mut *state, State::Over(outcome));
        drop(state);
        self.0.changed.notify_all();
        if let State::Open(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> State<T> {
    fn take(&mut self) -> Option<T> {
        match std::mem::replace(self, Self::Taken) {
            Self::Over(outcome) => Some(outcome),
            Self::Taken => panic!("a completion gives its outcome once"),
            open @ Self::Open(_) => {
                *self = open;
                None
            }
        }
    }
}
