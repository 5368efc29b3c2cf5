//! Delivery: the thread that hands messages to the application, and what waits for it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use crate::{
    inbox::{Chunk, Inbox},
    lock::{locked, wait},
    message::{Message, Messages},
    parent::Parent,
};

/// A message at its destination. Its bytes are valid during the callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery<'a> {
    /// The rank that sent it.
    pub source: u32,
    /// This rank, also for a broadcast.
    pub destination: u32,
    /// The application's type.
    pub kind: u32,
    /// The payload.
    pub bytes: &'a [u8],
}

/// The inbox and its thread.
#[derive(Debug)]
pub(crate) struct Mail {
    state: Mutex<State>,
    /// There is something to deliver, or to end.
    work: Condvar,
    /// Something was delivered that somebody waits for.
    room: Condvar,
    /// Messages delivered, ever.
    delivered: AtomicU64,
    /// Somebody waits in `room`, or a batch waits for its acknowledgement.
    is_awaited: AtomicBool,
    threshold: u64,
    linger: Duration,
}

#[derive(Debug)]
struct State {
    inbox: Inbox<Parent>,
    rest: Rest,
    /// The thread has begun, and goes on until nothing is left.
    has_begun: bool,
    /// Deliver also what is below the threshold.
    flushes: u32,
    waiters: u32,
    end: Option<End>,
    thread: Option<ThreadId>,
}

/// What the thread sleeps for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// It does not.
    None,
    /// Any message.
    Empty,
    /// The one beyond the threshold; meanwhile those that are here linger.
    Lingering,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// When everything was delivered.
    Drained,
    /// Now: what waits is dropped.
    Now,
}

impl Mail {
    pub(crate) fn new(max: usize, threshold: usize, linger: Duration) -> Self {
        let inbox = Inbox::new(max);
        let state = State {
            inbox,
            rest: Rest::None,
            has_begun: false,
            flushes: 0,
            waiters: 0,
            end: None,
            thread: None,
        };
        Self {
            state: Mutex::new(state),
            work: Condvar::new(),
            room: Condvar::new(),
            delivered: AtomicU64::new(0),
            is_awaited: AtomicBool::new(false),
            threshold: threshold as u64,
            linger,
        }
    }

    /// A buffer for [`Mail::push_chunk`].
    pub(crate) fn buffer(&self) -> Vec<u8> {
        locked(&self.state).inbox.buffer()
    }

    /// Puts the messages of a batch in.
    pub(crate) fn push_chunk(&self, chunk: Chunk, parent: Parent) {
        let mut state = locked(&self.state);
        state.inbox.push_chunk(chunk, parent, self.delivered());
        // What was delivered before the flag was up told nobody.
        self.note_awaited(&state);
        state.inbox.handle_delivered(self.delivered());
        self.wake(state);
    }

    /// Puts a message of this rank to itself in; waits while there is no room, unless a delivery does this: the thread
    /// that makes room must not wait for it. `false`: it was shut down.
    pub(crate) fn push_own(&self, message: &Message<'_>) -> bool {
        let mut state = locked(&self.state);
        if state.end.is_some() {
            return false;
        }
        let number = state.inbox.push_own(message, self.delivered());
        let is_delivering = state.thread == Some(thread::current().id());
        self.wake(state);
        if !is_delivering && !self.is_acknowledged(number) {
            self.wait_until(|state, delivered| state.inbox.is_acknowledged(number, delivered));
        }
        true
    }

    /// The same only if there is room.
    pub(crate) fn try_push_own(&self, message: &Message<'_>) -> bool {
        let mut state = locked(&self.state);
        let next = state.inbox.pushed() + 1;
        if state.end.is_some() || !state.inbox.is_acknowledged(next, self.delivered()) {
            return false;
        }
        state.inbox.push_own(message, self.delivered());
        self.wake(state);
        true
    }

    /// Waits until all that is here now was delivered. In a delivery it would wait for itself: `false`.
    pub(crate) fn flush(&self) -> bool {
        let mut state = locked(&self.state);
        if state.thread == Some(thread::current().id()) {
            return false;
        }
        let target = state.inbox.pushed();
        state.flushes += 1;
        self.work.notify_all();
        drop(state);
        self.wait_until(|_, delivered| delivered >= target);
        locked(&self.state).flushes -= 1;
        true
    }

    /// The same inside of a bound.
    pub(crate) fn flush_until(&self, limit: Instant) {
        let mut state = locked(&self.state);
        let target = state.inbox.pushed();
        (state.flushes, state.waiters) = (state.flushes + 1, state.waiters + 1);
        self.work.notify_all();
        self.note_awaited(&state);
        while self.delivered() < target && state.end != Some(End::Now) {
            let left = limit.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.room.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        (state.flushes, state.waiters) = (state.flushes - 1, state.waiters - 1);
        self.note_awaited(&state);
    }

    /// Ends the thread. What was not delivered.
    pub(crate) fn end(&self, drain: bool) {
        locked(&self.state).end = Some(if drain { End::Drained } else { End::Now });
        self.work.notify_all();
        self.room.notify_all();
    }

    /// Hands out messages until it is told to end; returns how many were left. A panic of the callback ends it, too.
    pub(crate) fn run(&self, me: u32, mut deliver: impl FnMut(Delivery<'_>)) -> Result<u64, u64> {
        locked(&self.state).thread = Some(thread::current().id());
        let mut spare = None;
        while let Some(Chunk { bytes, .. }) = self.next(spare.take()) {
            for message in Messages::of(&bytes) {
                // Batches were checked when they came.
                let Ok(Message { kind, source, bytes, .. }) = message else { break };
                let delivery = Delivery { source, destination: me, kind, bytes };
                if catch_unwind(AssertUnwindSafe(|| deliver(delivery))).is_err() {
                    self.end(false);
                    return Err(self.clear());
                }
                self.note_delivered();
            }
            spare = Some(bytes);
        }
        Ok(self.clear())
    }

    /// Messages delivered, ever.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::SeqCst)
    }

    /// Messages that wait for delivery, and the most that ever did. `None`: somebody holds the lock.
    pub(crate) fn waiting(&self) -> Option<(u64, u64)> {
        let state = self.state.try_lock().ok()?;
        Some((state.inbox.pushed() - self.delivered(), state.inbox.waiting_max))
    }

    /// Messages that have come and were not delivered, also those that were dropped.
    pub(crate) fn undelivered(&self) -> u64 {
        let state = locked(&self.state);
        state.inbox.pushed() - self.delivered()
    }

    /// The next chunk; `None` at the end.
    fn next(&self, spare: Option<Vec<u8>>) -> Option<Chunk> {
        let mut state = locked(&self.state);
        if let Some(spare) = spare {
            state.inbox.reuse(spare);
        }
        let mut limit = None;
        loop {
            if state.end == Some(End::Now) {
                return None;
            }
            let is_over = limit.is_some_and(|limit| Instant::now() >= limit);
            let is_due = is_over || state.flushes > 0 || state.end.is_some();
            state.has_begun |= is_due || state.inbox.len() > self.threshold;
            if state.has_begun
                && let Some(chunk) = state.inbox.take()
            {
                return Some(chunk);
            }
            state.has_begun = false;
            if state.end.is_some() {
                return None;
            }
            if state.inbox.len() == 0 {
                state.rest = Rest::Empty;
                state = wait(&self.work, state);
            } else {
                state.rest = Rest::Lingering;
                let now = Instant::now();
                let left = *limit.get_or_insert(now + self.linger) - now;
                let waited = self.work.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            state.rest = Rest::None;
        }
    }

    /// The end of a change that may be worth waking the thread for.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let released = std::mem::take(&mut state.inbox.released);
        self.note_awaited(&state);
        let is_due = match state.rest {
            Rest::None => false,
            Rest::Empty => state.inbox.len() > 0,
            Rest::Lingering => state.inbox.len() > self.threshold,
        };
        if is_due {
            // Those who come before it is awake need not wake it again.
            state.rest = Rest::None;
        }
        drop(state);
        if is_due {
            self.work.notify_one();
        }
        drop(released);
    }

    fn is_acknowledged(&self, number: u64) -> bool {
        locked(&self.state).inbox.is_acknowledged(number, self.delivered())
    }

    fn wait_until(&self, is_over: impl Fn(&State, u64) -> bool) {
        let mut state = locked(&self.state);
        state.waiters += 1;
        self.note_awaited(&state);
        // The flag is up before the count is read; see `note_delivered`.
        while !is_over(&state, self.delivered()) && state.end != Some(End::Now) {
            state = wait(&self.room, state);
        }
        state.waiters -= 1;
        self.note_awaited(&state);
    }

    /// SeqCst, here and in `note_delivered`: either the count is seen here, or the flag is seen there.
    fn note_awaited(&self, state: &State) {
        let is_awaited = state.waiters > 0 || state.inbox.has_parents();
        self.is_awaited.store(is_awaited, Ordering::SeqCst);
    }

    fn note_delivered(&self) {
        let delivered = self.delivered.fetch_add(1, Ordering::SeqCst) + 1;
        if self.is_awaited.load(Ordering::SeqCst) {
            let mut state = locked(&self.state);
            state.inbox.handle_delivered(delivered);
            let released = std::mem::take(&mut state.inbox.released);
            self.note_awaited(&state);
            let waiters = state.waiters;
            drop(state);
            if waiters > 0 {
                self.room.notify_all();
            }
            drop(released);
        }
    }

    /// Drops what waits; returns how many messages that were.
    pub(crate) fn clear(&self) -> u64 {
        let mut state = locked(&self.state);
        state.thread = None;
        let stranded = state.inbox.clear();
        let released = std::mem::take(&mut state.inbox.released);
        drop(state);
        self.room.notify_all();
        drop(released);
        stranded
    }
}
