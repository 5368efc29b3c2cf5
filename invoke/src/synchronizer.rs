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
//! bit. A call that nobody waits for so takes no lock, and neither does whoever spins.
//!
//! # Orderings
//! | label | where | meets |
//! |---|---|---|
//! | N1 | an event is counted: release | N2, N3: whoever sees none left sees what was done before each was counted, whoever changes the word between |
//! | N2 | who waits, and who counts the last one, looks: acquire | N1 |
//! | N3 | who polls enters the bit, and finds none left: acquire | N1 |
//!
//! Who is to be told is entered, and taken, under the lock. `tests/loom.rs` has models of it: weaken any of the three, and one fails.

use std::{
    collections::BTreeMap,
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::PoisonError,
    task::{Context, Poll, Waker},
};

use crate::{
    Error, Worker,
    sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering, ord},
};

/// Counts calls down to none: waited for, polled, awaited, or followed by a closure. Clones are the same, and each may be awaited by another task.
///
/// Nobody holds its lock while anything of a user's runs.
pub struct Synchronizer {
    shared: Arc<Shared>,
    /// The number of its waker, once it has been polled in vain; otherwise 0.
    entered: u64,
}

struct Shared {
    left: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    failed: Option<Error>,
    /// Of each that was polled in vain, by its number.
    wakers: BTreeMap<u64, Waker>,
    numbers: u64,
    then: Vec<Then>,
}

type Then = Box<dyn FnOnce(Result<(), Error>) + Send>;

impl Synchronizer {
    /// Of no event yet: each call that it is given to adds one.
    #[must_use]
    pub fn new() -> Self {
        let (left, state) = (AtomicU64::new(0), Mutex::new(State::default()));
        Self { shared: Arc::new(Shared { left, state }), entered: 0 }
    }

    /// How many events are to come.
    #[inline]
    #[must_use]
    pub fn left(&self) -> u64 {
        self.shared.left.load(ord("N2", Ordering::Acquire)) & !TOLD // N2
    }

    /// What has become of all events: `None` while some are to come.
    #[must_use]
    pub fn result(&self) -> Option<Result<(), Error>> {
        if self.left() > 0 {
            return None;
        }
        Some(self.shared.lock().failed.clone().map_or(Ok(()), Err))
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
        let mut state = self.shared.lock();
        state.then.push(Box::new(run));
        if self.is_over_or_tells(&state) {
            self.tell(state);
        }
    }

    /// Whether there are none left; otherwise whoever counts the last one finds what was entered.
    fn is_over_or_tells(&self, _entered: &MutexGuard<'_, State>) -> bool {
        self.shared.left.fetch_or(TOLD, ord("N3", Ordering::Acquire)) & !TOLD == 0 // N3
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
            self.shared.lock().failed.get_or_insert(error);
        }
        if self.shared.left.fetch_sub(1, ord("N1", Ordering::Release)) == TOLD | 1 {
            // N1; whoever is told sees the others' by N2, which `tell` begins with.
            self.tell(self.shared.lock());
        }
    }

    /// Tells whoever was entered, unless more is to come again.
    #[cold]
    fn tell(&self, mut state: MutexGuard<'_, State>) {
        if self.left() > 0 {
            return;
        }
        // Relaxed: the bit is set and taken under the lock.
        self.shared.left.fetch_and(!TOLD, Ordering::Relaxed);
        let (wakers, then) = (std::mem::take(&mut state.wakers), std::mem::take(&mut state.then));
        let result = state.failed.clone().map_or(Ok(()), Err);
        drop(state);
        for run in then {
            contain(|| run(result.clone()));
        }
        for waker in wakers.into_values() {
            contain(|| waker.wake());
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Whole between any two statements that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for Synchronizer {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), entered: 0 }
    }
}

impl Drop for Synchronizer {
    fn drop(&mut self) {
        if self.entered != 0 {
            // Nobody awaits it any more. What this ends ends without the lock.
            let waker = self.shared.lock().wakers.remove(&self.entered);
            drop(waker);
        }
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
        let it = self.get_mut();
        let mut state = it.shared.lock();
        let mut replaced = None;
        if it.left() > 0 {
            if it.entered == 0 {
                state.numbers += 1;
                it.entered = state.numbers;
            }
            let is_entered = |known: &Waker| known.will_wake(context.waker());
            if !state.wakers.get(&it.entered).is_some_and(is_entered) {
                replaced = state.wakers.insert(it.entered, context.waker().clone());
            }
            // If it is over now, the waker stays, and wakes once in vain at most.
            if !it.is_over_or_tells(&state) {
                drop(state);
                drop(replaced);
                return Poll::Pending;
            }
        }
        let result = state.failed.clone().map_or(Ok(()), Err);
        drop(state);
        drop(replaced);
        Poll::Ready(result)
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

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicU32, task::Wake};

    use proptest::prelude::*;

    use super::*;

    /// A task that is awaiting, and how often it was woken.
    #[derive(Default)]
    struct Task(AtomicU32);

    impl Wake for Task {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    type Shared = std::sync::Arc<Task>;

    impl Task {
        fn polls(self: &Shared, future: &mut Synchronizer) -> Poll<Result<(), Error>> {
            let waker = Shared::clone(self).into();
            Pin::new(future).poll(&mut Context::from_waker(&waker))
        }

        fn woken(&self) -> u32 {
            self.0.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn a_future_that_is_dropped_leaves_no_waker_behind() {
        let (synchronizer, waits, gives_up) =
            (Synchronizer::new(), Shared::default(), Shared::default());
        synchronizer.expect_one();
        let mut stays = synchronizer.clone();
        assert!(waits.polls(&mut stays).is_pending());
        for _ in 0..1000 {
            let mut future = synchronizer.clone();
            assert!(gives_up.polls(&mut future).is_pending());
            let mut moved = future.clone();
            drop(future);
            assert!(gives_up.polls(&mut moved).is_pending());
        }
        assert_eq!(Shared::strong_count(&gives_up), 1, "nobody keeps the task");
        assert_eq!(synchronizer.shared.lock().wakers.len(), 1);
        synchronizer.count(None);
        assert_eq!((waits.woken(), gives_up.woken()), (1, 0));
        assert_eq!(waits.polls(&mut stays), Poll::Ready(Ok(())));
    }

    #[test]
    fn a_future_that_another_task_polls_wakes_that_one() {
        let (synchronizer, before, now) =
            (Synchronizer::new(), Shared::default(), Shared::default());
        synchronizer.expect_one();
        let mut future = synchronizer.clone();
        assert!(before.polls(&mut future).is_pending() && now.polls(&mut future).is_pending());
        assert_eq!(Shared::strong_count(&before), 1);
        synchronizer.count(None);
        assert_eq!((before.woken(), now.woken()), (0, 1));
    }

    /// What happens next.
    #[derive(Debug, Clone, Copy)]
    enum Move {
        Expect,
        /// One has come, or has failed.
        Count(bool),
        Then,
        /// One of the futures is polled, or dropped.
        Poll(usize),
        Drop(usize),
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let one = prop_oneof![
            3 => Just(Move::Expect),
            3 => any::<bool>().prop_map(Move::Count),
            1 => Just(Move::Then),
            3 => (0..4_usize).prop_map(Move::Poll),
            1 => (0..4_usize).prop_map(Move::Drop),
        ];
        prop::collection::vec(one, 0..60)
    }

    /// A synchronizer, who waits for it, and what is expected.
    struct World {
        synchronizer: Synchronizer,
        left: u32,
        has_failed: bool,
        /// Each with its task, whether that is to be woken, and how often it was.
        futures: [(Synchronizer, Shared, bool, u32); 4],
        /// Closures that were given, those that have run, and whether they were told of a failure.
        given: usize,
        ran: std::sync::Arc<std::sync::Mutex<Vec<(usize, bool)>>>,
    }

    impl World {
        fn new() -> Self {
            let synchronizer = Synchronizer::new();
            let futures = std::array::from_fn(|_| Self::future(&synchronizer));
            let (left, has_failed, given, ran) = Default::default();
            Self { synchronizer, left, has_failed, futures, given, ran }
        }

        fn future(of: &Synchronizer) -> (Synchronizer, Shared, bool, u32) {
            (of.clone(), Shared::default(), false, 0)
        }

        fn happens(&mut self, next: Move) {
            let before = self.ran.lock().unwrap().len();
            match next {
                Move::Expect => {
                    self.synchronizer.expect_one();
                    self.left += 1;
                }
                Move::Count(fails) if self.left > 0 => {
                    self.synchronizer.count(fails.then_some(Error::Inside));
                    self.left -= 1;
                    self.has_failed |= fails;
                }
                Move::Count(_) => {}
                Move::Then => {
                    let (given, ran) = (self.given, std::sync::Arc::clone(&self.ran));
                    let note = move |result: Result<(), Error>| {
                        ran.lock().unwrap().push((given, result.is_err()));
                    };
                    self.synchronizer.then(note);
                    self.given += 1;
                }
                Move::Poll(at) => {
                    let (future, task, waits, _) = &mut self.futures[at];
                    let failed = self.has_failed.then_some(Error::Inside);
                    let expected = (self.left == 0).then(|| failed.map_or(Ok(()), Err));
                    assert_eq!(task.polls(future), expected.map_or(Poll::Pending, Poll::Ready));
                    *waits = self.left > 0;
                }
                Move::Drop(at) => self.futures[at] = Self::future(&self.synchronizer),
            }
            self.verify(before);
        }

        /// All that wait are told when there are none left, and nobody is before.
        fn verify(&mut self, before: usize) {
            let ran = self.ran.lock().unwrap();
            let expected = if self.left == 0 { self.given } else { before };
            assert!(ran.iter().map(|it| it.0).eq(0..expected), "each once, in order: {ran:?}");
            assert!(ran[before..].iter().all(|it| it.1 == self.has_failed), "{ran:?}");
            for (_, task, waits, woken) in &mut self.futures {
                if self.left == 0 && std::mem::take(waits) {
                    *woken += 1;
                }
                assert_eq!(task.woken(), *woken);
            }
        }
    }

    proptest! {
        #[test]
        fn whoever_waits_is_told_when_there_are_none_left_and_not_before(moves in moves()) {
            let mut world = World::new();
            for next in moves {
                world.happens(next);
            }
            while world.left > 0 {
                world.happens(Move::Count(false));
            }
        }
    }
}
