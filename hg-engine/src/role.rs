//! Who makes progress: one thread at a time, and never one that nobody needs.
//!
//! The *role* is a lock around [`Work`]. A caller in `wait` takes it if it is free; otherwise it
//! becomes a *follower*: it parks until its call has settled or the role is handed to it.
//!
//! # Protocol (no follower is forgotten)
//! Everything but the role itself is decided under the state's lock:
//!
//! | follower, state locked | holder |
//! |---|---|
//! | F1 its call has settled: take the outcome, done | H1 state locked, for the last time: `leaving = true`, pop one follower |
//! | F2 try the role; if free, take it | H2 unlock the role |
//! | F3 `leaving`: unlock the state, wait for the role | H3 unpark the popped one |
//! | F4 push itself to `followers`, unlock, park | |
//!
//! A follower that comes before H1 is popped there or later; one that comes after it sees `leaving` and waits for H2,
//! which needs nothing from it. The next holder's first round clears `leaving`. A popped follower whose call has settled
//! meanwhile pops the next one in its stead (F1).
//!
//! # The background thread
//! It steps aside while a caller waits, and for [`GRACE`] after the last one has left, so that calls
//! back to back never wake a second thread. When something else is under way, the last caller wakes it.

use std::{
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use hg_core::{
    call::{CallId, Outcome},
    error::Failure,
};

use crate::{
    builder::Wait,
    lock::{Condvar, Mutex},
    port::{Port, State, Work},
};

/// How long the background thread stays aside after the last caller has left.
const GRACE: Duration = Duration::from_millis(1);
/// Times of [`GRACE`] that one call takes before the background thread stops looking.
const GRACES_UNTIL_DEEP: u32 = 8;

pub(crate) struct Role {
    work: Mutex<Work>,
    /// Callers in `wait` right now; counted only where there is a background thread.
    callers: AtomicUsize,
    /// Callers that have left since the background thread looked.
    departures: AtomicUsize,
    has_background: AtomicBool,
    /// Whether the background thread waits without a limit, because one call takes long.
    deep: AtomicBool,
    aside: Mutex<()>,
    come_back: Condvar,
}

impl Role {
    pub(crate) fn new(work: Work) -> Self {
        Self {
            work: Mutex::new(work),
            callers: AtomicUsize::new(0),
            departures: AtomicUsize::new(0),
            has_background: AtomicBool::new(false),
            deep: AtomicBool::new(false),
            aside: Mutex::new(()),
            come_back: Condvar::new(),
        }
    }

    /// Takes the role, however long that takes.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock()
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Work>> {
        self.work.try_lock()
    }
}

impl Port {
    /// Gives the role up and hands it to a follower, if there is one (H1-H3).
    #[inline]
    pub(crate) fn release(&self, mut work: MutexGuard<'_, Work>) {
        self.flush(&mut work);
        if !std::mem::take(&mut work.has_left) {
            work.successor = self.enter_state().and_then(|mut state| state.leave()); // H1
        }
        let successor = work.successor.take();
        drop(work); // H2
        if let Some(thread) = successor {
            thread.unpark(); // H3
        }
    }

    /// Waits for a call, making progress meanwhile or letting somebody else do it.
    #[inline]
    pub(crate) fn wait_for(self: &Arc<Self>, id: CallId) -> Outcome {
        let background = self.role.has_background.load(Ordering::Relaxed);
        if background {
            self.enter();
        }
        let outcome = self.drive_or_follow(id);
        if background {
            self.leave();
        }
        outcome
    }

    #[inline]
    fn drive_or_follow(self: &Arc<Self>, id: CallId) -> Outcome {
        // With several calls under way the outcome is often there already. Relaxed: a hint.
        if self.has_settled.load(Ordering::Relaxed)
            && let Some(outcome) = self.enter_state().and_then(|mut state| state.calls.take(id))
        {
            return outcome;
        }
        match self.role.try_lock() {
            Some(work) => self.drive_to_outcome(work, id),
            None => self.follow(id),
        }
    }

    /// Makes progress until the call has settled. Gives the role up.
    #[inline]
    fn drive_to_outcome(self: &Arc<Self>, mut work: MutexGuard<'_, Work>, id: CallId) -> Outcome {
        // The outcome is moved once, into its place, and not through every return value on the way.
        let mut outcome = None;
        self.drive(&mut work, None, |state| {
            state.calls.is_settled(id).then(|| outcome = state.calls.take(id))
        });
        self.release(work);
        outcome.unwrap_or_else(|| self.no_outcome())
    }

    #[cold]
    fn no_outcome(&self) -> Outcome {
        let forked = Failure::NotMade(hg_na::Error::Forked);
        Outcome::Failed(if self.is_forked() { forked } else { Failure::Closed })
    }

    #[cold]
    fn follow(self: &Arc<Self>, id: CallId) -> Outcome {
        if self.is_forked() {
            // Whoever held the role is not in this process.
            return Outcome::Failed(Failure::NotMade(hg_na::Error::Forked));
        }
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            let mut state = self.state.lock();
            let me = thread::current();
            state.followers.retain(|thread| thread.id() != me.id());
            if state.calls.is_settled(id) {
                let outcome = state.calls.take(id).unwrap_or(Outcome::Failed(Failure::Closed)); // F1
                let next = if state.leaving { state.followers.pop() } else { None };
                drop(state);
                next.inspect(Thread::unpark);
                return outcome;
            }
            if let Some(work) = self.role.try_lock() {
                drop(state);
                return self.drive_to_outcome(work, id); // F2
            }
            if state.leaving {
                drop(state);
                return self.drive_to_outcome(self.role.lock(), id); // F3
            }
            state.calls.set_waker(id, &waker);
            state.followers.push(me);
            drop(state);
            thread::park(); // F4
        }
    }

    /// Makes progress until `check` finds something, or `limit` has passed.
    pub(crate) fn drive<T>(
        self: &Arc<Self>,
        work: &mut Work,
        limit: Option<Instant>,
        mut check: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<T> {
        let mut idle = Idle::new(self.shared.settings.wait);
        loop {
            let (moved, found) = self.step(work, &mut check);
            if found.is_some() {
                return found;
            }
            if self.closing.load(Ordering::Relaxed) {
                return None;
            }
            if idle.may_poll_on(moved) {
                if idle.out_of_time(limit) {
                    return None;
                }
                std::hint::spin_loop();
                continue;
            }
            if let Err(error) = self.sleep(work, limit) {
                tracing::error!(%error, "sleeping failed");
                return None;
            }
            if limit.is_some_and(|limit| limit <= Instant::now()) {
                return self.step(work, &mut check).1;
            }
        }
    }

    /// Makes progress until something moved, or `limit` has passed; says which.
    pub(crate) fn drive_until_moved(
        self: &Arc<Self>,
        work: &mut Work,
        limit: Option<Instant>,
    ) -> bool {
        let mut idle = Idle::new(self.shared.settings.wait);
        loop {
            let (moved, _) = self.step(work, |_| None::<()>);
            let out_of_time = limit.is_some_and(|limit| limit <= Instant::now());
            if moved || out_of_time || self.closing.load(Ordering::Relaxed) {
                return moved;
            }
            if !idle.may_poll_on(false) && self.sleep(work, limit).is_err() {
                return false;
            }
        }
    }

    fn enter(&self) {
        // SeqCst: the background thread reads the count after it has published that it sleeps.
        self.role.callers.fetch_add(1, Ordering::SeqCst);
        self.notify();
    }

    fn leave(&self) {
        self.role.departures.fetch_add(1, Ordering::Relaxed);
        // SeqCst: `deep` is read after the count was lowered; the background thread raises `deep` before
        // it reads the count.
        let last = self.role.callers.fetch_sub(1, Ordering::SeqCst) == 1;
        let is_busy = || self.enter_state().is_some_and(|state| state.is_busy());
        if last && (self.role.deep.load(Ordering::SeqCst) || is_busy()) && !self.is_forked() {
            drop(self.role.aside.lock());
            self.role.come_back.notify_one();
        }
    }

    /// The background thread: progress whenever no caller makes it.
    pub(crate) fn run_in_background(self: &Arc<Self>) {
        while !self.closing.load(Ordering::Relaxed) {
            if self.callers_left() {
                let mut work = self.role.lock();
                let interrupted =
                    |_: &mut State| (self.role.callers.load(Ordering::SeqCst) > 0).then_some(());
                self.drive(&mut work, None, interrupted);
                self.release(work);
            }
        }
    }

    /// Waits until no caller waits, and none has for a while.
    fn callers_left(&self) -> bool {
        let mut aside = self.role.aside.lock();
        let mut unchanged = 0;
        loop {
            if self.closing.load(Ordering::Relaxed) {
                return false;
            }
            let before = self.role.departures.load(Ordering::Relaxed);
            if unchanged == GRACES_UNTIL_DEEP {
                self.role.deep.store(true, Ordering::SeqCst);
                if self.role.callers.load(Ordering::SeqCst) > 0 {
                    aside = self.role.come_back.wait(aside);
                }
                self.role.deep.store(false, Ordering::SeqCst);
                unchanged = 0;
                continue;
            }
            let timed_out;
            (aside, timed_out) = self.role.come_back.wait_for(aside, GRACE);
            let quiet = self.role.departures.load(Ordering::Relaxed) == before;
            if self.role.callers.load(Ordering::SeqCst) > 0 {
                unchanged = if quiet { unchanged + 1 } else { 0 };
            } else if !timed_out || quiet {
                return true;
            }
        }
    }

    pub(crate) fn start_background(
        self: &Arc<Self>,
    ) -> Result<thread::JoinHandle<()>, hg_na::Error> {
        self.role.has_background.store(true, Ordering::Relaxed);
        let port = Arc::clone(self);
        thread::Builder::new()
            .name(format!("hg-progress-{}", self.index))
            .spawn(move || port.run_in_background())
            .map_err(|error| hg_na::Error::os("pthread_create", error))
    }

    /// Tells everybody who drives or waits that the engine closes.
    pub(crate) fn interrupt(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.waiter.wake();
        drop(self.role.aside.lock());
        self.role.come_back.notify_all();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Decides between polling on and sleeping.
struct Idle {
    wait: Wait,
    rounds: u32,
    since: Option<Instant>,
}

/// Idle rounds between two looks at the clock.
const ROUNDS_PER_LOOK: u32 = 64;

impl Idle {
    fn new(wait: Wait) -> Self {
        Self { wait, rounds: 0, since: None }
    }

    #[inline]
    fn may_poll_on(&mut self, moved: bool) -> bool {
        if moved {
            self.rounds = 0;
            self.since = None;
            return true;
        }
        self.rounds = self.rounds.wrapping_add(1);
        match self.wait {
            Wait::Spin => true,
            Wait::Block => false,
            Wait::Adaptive(spin) => {
                if !self.rounds.is_multiple_of(ROUNDS_PER_LOOK) {
                    return true;
                }
                let since = *self.since.get_or_insert_with(Instant::now);
                if since.elapsed() < spin {
                    return true;
                }
                self.rounds = 0;
                self.since = None;
                false
            }
        }
    }

    fn out_of_time(&self, limit: Option<Instant>) -> bool {
        self.rounds.is_multiple_of(ROUNDS_PER_LOOK)
            && limit.is_some_and(|limit| limit <= Instant::now())
    }
}
