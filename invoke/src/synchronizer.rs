//! Counts events down, and tells whoever waits.
//!
//! # State
//! | where | what |
//! |---|---|
//! | `left`, bits 0 to 62 | events that are to come |
//! | `left`, bit 63 | somebody is to be told when there are none |
//! | under the lock | who that is, and the first failure |
//!
//! All changes of `left` are of one word, so whoever enters a waker sees that there are none left, or whoever counts the last one sees the
//! bit. A call that nobody waits for so takes no lock, and neither does whoever spins. `tests/loom.rs` has models of it.

use std::{
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::PoisonError,
    task::{Context, Poll, Waker},
};

use crate::{
    Error, Worker,
    sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering},
};

/// Counts calls down to none: waited for, polled, awaited, or followed by a closure. Clones are the same.
///
/// Nobody holds its lock while anything of a user's runs.
#[derive(Clone)]
pub struct Synchronizer {
    shared: Arc<Shared>,
}

struct Shared {
    left: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    failed: Option<Error>,
    wakers: Vec<Waker>,
    then: Vec<Then>,
}

type Then = Box<dyn FnOnce(Result<(), Error>) + Send>;

impl Synchronizer {
    /// Of no event yet: each call that it is given to adds one.
    #[must_use]
    pub fn new() -> Self {
        let (left, state) = (AtomicU64::new(0), Mutex::new(State::default()));
        Self { shared: Arc::new(Shared { left, state }) }
    }

    /// How many events are to come.
    #[inline]
    #[must_use]
    pub fn left(&self) -> u64 {
        // Acquire: whoever sees none left sees what was done before the last one was counted.
        self.shared.left.load(Ordering::Acquire) & !TOLD
    }

    /// What has become of all events: `None` while some are to come.
    #[must_use]
    pub fn result(&self) -> Option<Result<(), Error>> {
        if self.left() > 0 {
            return None;
        }
        Some(self.lock().failed.clone().map_or(Ok(()), Err))
    }

    /// Makes the worker's progress until there are none left.
    ///
    /// # Errors
    /// The first failure: [`Error::Gone`]; [`Error::Inside`] in a function that was called.
    pub fn wait(&self, worker: &Worker) -> Result<(), Error> {
        worker.wait_until(|| self.result())
    }

    /// Runs a closure when there are none left: at once if that is so, else by the thread that counts the last one. It is not to wait. To be given
    /// after the calls: before the first one there are none left. If it panics, that is said on standard error, and goes no further.
    pub fn then(&self, run: impl FnOnce(Result<(), Error>) + Send + 'static) {
        let mut state = self.lock();
        state.then.push(Box::new(run));
        if self.is_over_or_tells(&state) {
            self.tell(state);
        }
    }

    /// Whether there are none left; otherwise whoever counts the last one finds what was entered.
    fn is_over_or_tells(&self, _entered: &MutexGuard<'_, State>) -> bool {
        // AcqRel: as in `left`, and whoever counts the last one sees what was entered.
        self.shared.left.fetch_or(TOLD, Ordering::AcqRel) & !TOLD == 0
    }

    #[inline]
    pub(crate) fn expect_one(&self) {
        // Relaxed: whoever counts it down has come by a copy of this.
        self.shared.left.fetch_add(1, Ordering::Relaxed);
    }

    /// One event has come, or will not come.
    #[inline]
    pub(crate) fn count(&self, failed: Option<Error>) {
        if let Some(error) = failed {
            self.lock().failed.get_or_insert(error);
        }
        // AcqRel: what was done until now is seen by whoever sees none left, and what was entered with the bit is seen here.
        if self.shared.left.fetch_sub(1, Ordering::AcqRel) == TOLD | 1 {
            self.tell(self.lock());
        }
    }

    /// Tells whoever was entered, unless more is to come again.
    #[cold]
    fn tell(&self, mut state: MutexGuard<'_, State>) {
        if self.left() > 0 {
            return;
        }
        // AcqRel: what follows belongs to those that are entered from now on.
        self.shared.left.fetch_and(!TOLD, Ordering::AcqRel);
        let (wakers, then) = (std::mem::take(&mut state.wakers), std::mem::take(&mut state.then));
        let result = state.failed.clone().map_or(Ok(()), Err);
        drop(state);
        for run in then {
            contain(|| run(result.clone()));
        }
        for waker in wakers {
            contain(|| waker.wake());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whole between any two statements that can panic.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Synchronizer {
    fn default() -> Self {
        Self::new()
    }
}

impl Future for Synchronizer {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.lock();
        if self.left() > 0 {
            if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                state.wakers.push(context.waker().clone());
            }
            // If it is over now, the waker stays, and wakes once in vain at most.
            if !self.is_over_or_tells(&state) {
                return Poll::Pending;
            }
        }
        Poll::Ready(state.failed.clone().map_or(Ok(()), Err))
    }
}

impl fmt::Debug for Synchronizer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Synchronizer({} left)", self.left())
    }
}

/// Runs what is a user's, and to be told something: a panic of it has been said on standard error, and keeps nobody behind it from being told.
pub(crate) fn contain(tell: impl FnOnce()) {
    let _said = catch_unwind(AssertUnwindSafe(tell));
}

/// The bit of `left` that says that somebody is to be told.
const TOLD: u64 = 1 << 63;
