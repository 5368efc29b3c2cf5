//! Threads for what may block: handlers, and giving back much memory.
//!
//! ```text
//! add --> queue of its origin --+-- an idle thread ------> runs it, then the next one; idle for IDLE_MAX, it ends
//!                               +-- a new thread --------> the same
//!                               +-- none is to be had ---> it stays queued; tried again when a job is added, when a thread
//!                                                          becomes free, and when `next_try` has come
//! ```
//! A pool belongs to one engine, which has another one for pieces of transfers (`moving.rs`). So handlers of two engines of a process that
//! call each other do not compete for threads.
//! An idle pool has no threads.
//!
//! # Shares
//! [`Queues`] serves the origins in turn. An origin has at most as many threads as are still to be had, so there is one left for
//! the next origin: alone it has half of the limit, beside another one a third. The engine's own jobs may have all of them: pieces of
//! transfers, one of each peer at a time, and memory to be given back.
//! A job takes what others need, as bytes of large arguments, once it has its thread: who waits for one holds nothing.
//!
//! # No thread to be had
//! The system may refuse a thread (a limit on processes or on memory). Then the threads that are there go on, and nobody
//! waits or spins. Where there is none at all, the engine's own jobs are run by whoever finds that out, once a pool's patience is over. Whoever makes progress tries again by a timer, which grows up to [`RETRY_MAX`]. Until there is a thread again
//! the shares are those of the threads that are there.

mod queues;

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

pub(crate) use self::queues::Origin;
use self::queues::{Queues, Work};
use crate::{
    contain::contain,
    lock::{Mutex, MutexGuard},
    platform::{Job, Platform, Thread},
};

/// How long a thread stays without anything to do.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(5);
/// Time to the first further try where no thread was to be had; it doubles with each refusal.
const RETRY_MIN: Duration = Duration::from_millis(10);
/// Time between two tries at most.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// The threads of one engine for what may block.
pub(crate) struct Pool {
    /// Of its threads.
    name: &'static str,
    /// How long jobs of the engine's own wait where no thread at all is to be had.
    patience: Duration,
    platform: Arc<dyn Platform>,
    threads_max: usize,
    /// Who opened the engine.
    process: u32,
    state: Mutex<State>,
    /// Whether `State::refused` is there, to look without the lock.
    is_refused: AtomicBool,
    /// Threads of others that run jobs of the engine's own, since there is none of the pool's.
    helpers: AtomicUsize,
    /// Tells whoever makes progress that there is another time to look at ([`Pool::next_try`]).
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct State {
    queues: Queues,
    /// Threads that live, or are being started.
    threads: usize,
    /// Those that wait for a job. The last one is taken first, so that the others end.
    idle: Vec<Arc<Seat>>,
    refused: Option<Refused>,
    is_closed: bool,
}

/// No thread was to be had.
#[derive(Debug, Clone, Copy)]
struct Refused {
    since: Instant,
    next_try: Instant,
    interval: Duration,
}

/// Where a thread waits for a job.
struct Seat {
    thread: Thread,
    given: Mutex<Given>,
}

enum Given {
    Nothing,
    Job(Work),
    End,
}

impl Pool {
    /// No thread yet, and at most so many (at least one), by its name and its patience.
    pub(crate) fn new(
        (name, patience): (&'static str, Duration),
        platform: Arc<dyn Platform>,
        threads_max: usize,
    ) -> Self {
        let process = platform.process();
        Self {
            name,
            patience,
            platform,
            threads_max: threads_max.max(1),
            process,
            state: Mutex::default(),
            is_refused: AtomicBool::new(false),
            helpers: AtomicUsize::new(0),
            wake: OnceLock::new(),
        }
    }

    /// What tells whoever makes progress to look at [`Pool::next_try`] again. Set once.
    pub(crate) fn wake_by(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _before = self.wake.set(Box::new(wake));
    }

    /// Has a job run, at some time. Starts a thread perhaps: not under a lock. Once the pool is closed, the job is dropped.
    pub(crate) fn add(self: &Arc<Self>, origin: Origin, job: Job) {
        let Some(mut state) = self.enter() else { return };
        if state.is_closed {
            drop(state);
            return contain("a job that was dropped", || drop(job));
        }
        state.queues.push(origin, job);
        self.distribute(state);
    }

    /// Drops memory, which may take long.
    pub(crate) fn free(self: &Arc<Self>, memory: Box<dyn Send>) {
        self.add(Origin::Engine, Box::new(move || drop(memory)));
    }

    /// When to call [`Pool::retry`].
    pub(crate) fn next_try(&self) -> Option<Instant> {
        // Relaxed: whoever sets it wakes afterwards.
        if !self.is_refused.load(Ordering::Relaxed) {
            return None;
        }
        let state = self.enter()?;
        let is_waiting = state.queues.waiting() > 0;
        state.refused.filter(|_| is_waiting).map(|refused| refused.next_try)
    }

    /// Whether it is time for [`Pool::retry`].
    #[inline]
    pub(crate) fn is_retry_due(&self, now: Instant) -> bool {
        // Relaxed: as above.
        self.is_refused.load(Ordering::Relaxed) && self.next_try().is_some_and(|at| at <= now)
    }

    /// Tries to start threads once more. What waits may be all of origins that have their shares; then it tries nothing, and is not to
    /// be called again at once either.
    #[cold]
    pub(crate) fn retry(self: &Arc<Self>) {
        let now = self.platform.now();
        if let Some(mut state) = self.enter() {
            if let Some(refused) = &mut state.refused {
                refused.next_try = now + refused.interval;
            }
            self.distribute(state);
        }
    }

    /// The same, when what it gives is dropped: not under a lock.
    #[cold]
    pub(crate) fn retry_later(self: &Arc<Self>) -> Box<dyn Send> {
        struct Retry(Arc<Pool>);

        impl Drop for Retry {
            fn drop(&mut self) {
                self.0.retry();
            }
        }

        Box::new(Retry(Arc::clone(self)))
    }

    /// Drops what is queued, and lets the threads end: idle ones at once, others after their job. Waits for none.
    pub(crate) fn close(&self) {
        let Some(mut state) = self.enter() else { return };
        state.is_closed = true;
        state.refused = None;
        self.is_refused.store(false, Ordering::Relaxed);
        let jobs = state.queues.take_all();
        let idle = std::mem::take(&mut state.idle);
        state.threads -= idle.len();
        drop(state);
        for seat in idle {
            *seat.given.lock() = Given::End;
            seat.thread.unpark();
        }
        jobs.into_iter().for_each(|job| contain("a job that was dropped", || drop(job)));
    }

    /// Threads that live.
    #[cfg(test)]
    pub(crate) fn threads(&self) -> usize {
        self.state.lock().threads
    }

    /// `None` in a forked child, where a thread that the child lacks may hold the lock for ever.
    fn enter(&self) -> Option<MutexGuard<'_, State>> {
        self.state.enter(|| self.platform.process() != self.process)
    }

    /// Gives queued jobs to threads, as far as there are threads and shares.
    fn distribute<'p>(self: &'p Arc<Self>, mut state: MutexGuard<'p, State>) {
        let mut refusal = None;
        loop {
            let capacity = state.capacity(self.threads_max);
            let has_idle = !state.idle.is_empty();
            let work = if has_idle { state.queues.next(capacity) } else { None };
            if let Some(work) = work
                && let Some(seat) = state.idle.pop()
            {
                *seat.given.lock() = Given::Job(work);
                drop(state);
                seat.thread.unpark();
            } else if refusal.is_none()
                && state.threads < self.threads_max
                && let Some(work) = state.queues.next(self.threads_max)
            {
                state.threads += 1;
                drop(state);
                refusal = self.start_thread(work).err();
            } else {
                break;
            }
            state = self.state.lock();
        }
        drop(state);
        if let Some(Some(error)) = refusal {
            tracing::warn!(%error, "no thread is to be had for handlers that block: they wait");
        }
    }

    /// Starts a thread with this job. Where none is to be had, the job goes back; gives why, the first time.
    #[cold]
    fn start_thread(self: &Arc<Self>, work: Work) -> Result<(), Option<io::Error>> {
        let first = Arc::new(Mutex::new(Some(work)));
        let (pool, seat) = (Arc::clone(self), Arc::clone(&first));
        let run = move || {
            let work = seat.lock().take();
            pool.run_thread(work);
        };
        let Err(error) = self.platform.spawn(self.name.to_owned(), Box::new(run)) else {
            let mut state = self.state.lock();
            state.refused = None;
            self.is_refused.store(false, Ordering::Relaxed);
            return Ok(());
        };
        let work = first.lock().take();
        Err(self.refuse(work).then_some(error))
    }

    /// No thread was to be had; says whether for the first time.
    fn refuse(&self, work: Option<Work>) -> bool {
        let mut state = self.state.lock();
        state.threads -= 1;
        let back = work.and_then(|work| state.put_back(work));
        let (before, now) = (state.refused, self.platform.now());
        // What was long ago is another shortage.
        let going_on = before.filter(|refused| now < refused.next_try + RETRY_MAX);
        let since = going_on.map_or(now, |refused| refused.since);
        if !state.is_closed {
            let interval =
                before.map_or(RETRY_MIN, |refused| (2 * refused.interval).min(RETRY_MAX));
            state.refused = Some(Refused { since, next_try: now + interval, interval });
            self.is_refused.store(true, Ordering::Relaxed);
        }
        // With no thread at all there is nobody to do it later, and it may be memory that a thread needs.
        let is_own_turn = state.threads == 0 && now >= since + self.patience;
        let own = if is_own_turn { state.queues.take_own() } else { VecDeque::new() };
        drop(state);
        if let Some(wake) = self.wake.get() {
            wake();
        }
        contain("a job that was dropped", || drop(back));
        if !own.is_empty() {
            // SeqCst: a job that looks whether the engine closes is counted before.
            self.helpers.fetch_add(1, Ordering::SeqCst);
            own.into_iter().for_each(|job| contain("a job of the engine's own", job));
            self.helpers.fetch_sub(1, Ordering::SeqCst);
        }
        before.is_none()
    }

    /// Whether a thread that is not the pool's runs a job of the engine's own, and may be held up by it.
    pub(crate) fn has_helpers(&self) -> bool {
        self.helpers.load(Ordering::SeqCst) > 0
    }

    fn run_thread(self: &Arc<Self>, mut work: Option<Work>) {
        let given = Mutex::new(Given::Nothing);
        let seat = Arc::new(Seat { thread: self.platform.current(), given });
        while let Some(Work { origin, job }) = work {
            contain("a job of the pool", job);
            work = self.next_work(origin, &seat);
        }
    }

    /// What a thread does after a job for this origin; `None`: it ends.
    fn next_work(self: &Arc<Self>, done: Origin, seat: &Arc<Seat>) -> Option<Work> {
        let mut state = self.state.lock();
        state.queues.end(done);
        let capacity = state.capacity(self.threads_max);
        let next = state.queues.next(capacity);
        if next.is_none() {
            if state.is_closed {
                state.threads -= 1;
                return None;
            }
            state.idle.push(Arc::clone(seat));
        }
        if state.queues.waiting() > 0 {
            self.distribute(state);
        } else {
            drop(state);
        }
        if next.is_some() { next } else { self.wait(seat) }
    }

    /// Waits for a job, though not for long.
    fn wait(&self, seat: &Arc<Seat>) -> Option<Work> {
        let mut end = self.platform.now() + IDLE_MAX;
        loop {
            match std::mem::replace(&mut *seat.given.lock(), Given::Nothing) {
                Given::Job(work) => return Some(work),
                Given::End => return None,
                Given::Nothing => {}
            }
            let left = end.saturating_duration_since(self.platform.now());
            if !left.is_zero() {
                self.platform.park_timeout(left);
                continue;
            }
            let mut state = self.state.lock();
            if state.refused.is_some() && state.queues.waiting() > 0 {
                // Others' share: it could not be had again.
                end = self.platform.now() + IDLE_MAX;
            } else if let Some(place) = state.idle.iter().position(|it| Arc::ptr_eq(it, seat)) {
                state.idle.remove(place);
                state.threads -= 1;
                return None;
            }
            // Otherwise it was given something meanwhile, under the lock, or is to end.
        }
    }
}

impl State {
    /// How many threads there are to share.
    fn capacity(&self, threads_max: usize) -> usize {
        if self.refused.is_some() { self.threads } else { threads_max }
    }

    /// A job that was to be run goes back, to be dropped if there is no queue any more.
    fn put_back(&mut self, work: Work) -> Option<Job> {
        if self.is_closed {
            self.queues.end(work.origin);
            return Some(work.job);
        }
        self.queues.put_back(work);
        None
    }
}

#[cfg(test)]
pub(crate) mod tests;
