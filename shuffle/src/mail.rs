//! Delivery: the thread that hands messages to the application, or whoever does it inline; and what waits for it.

#[path = "mail/inline.rs"]
mod inline;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use crate::{
    hop::{Gone, add_one},
    inbox::{Amount, Chunk, Inbox},
    lock::{locked, wait},
    message::{Message, Messages},
    parent::Receipt,
    sync::{
        AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, ThreadId, thread, wait_for,
    },
};

pub(crate) use inline::Callback;

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
///
/// The thread counts each message, for whoever asks, but room is made by chunks: when one was delivered, batches are
/// acknowledged, and those who wait are woken, under the one lock that the next chunk is taken under.
#[derive(Debug)]
pub(crate) struct Mail {
    state: Mutex<State>,
    /// There is something to deliver, or to end.
    work: Condvar,
    /// So much was delivered that somebody goes on who waits, or nobody is to wait any more.
    room: Condvar,
    delivered: Line,
    /// The thread is to be woken by [`Mail::wake_up`].
    is_due: AtomicBool,
    threshold: u64,
    linger: Duration,
    /// Bytes beyond the inbox's limit that deliveries may send to this rank itself.
    callback_max: u64,
    /// Processors are shared: whoever has nothing to do makes room for others before it sleeps.
    yields: bool,
    /// There is no thread: see `inline.rs`.
    is_inline: bool,
}

/// Messages delivered, ever: written by the thread after each, alone on its cache lines (two, since processors fetch pairs), so that
/// those who put messages in do not take it away each time. Relaxed: it is a figure; who relies on deliveries asks under the lock.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Why a message of this rank to itself was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// It was shut down.
    Gone,
    /// Deliveries themselves have sent more than will ever find room.
    Full,
}

#[derive(Debug)]
struct State {
    inbox: Inbox<Receipt>,
    rest: Rest,
    /// The thread has begun, or is to, and goes on until nothing is left.
    has_begun: bool,
    /// Deliver also what is below the threshold.
    flushes: u32,
    /// How many messages each one who waits wants to be delivered.
    targets: Vec<u64>,
    /// When the open chunk was begun.
    open_since: Option<Instant>,
    end: Option<End>,
    /// A rank has failed: nobody waits for deliveries any more, though they go on.
    is_failed: bool,
    /// Who delivers.
    thread: Option<ThreadId>,
    /// Of inline deliveries; gone while somebody delivers.
    callback: Option<Callback>,
}

impl State {
    /// Whether it is this thread that delivers.
    fn is_here(&self) -> bool {
        self.thread == Some(thread::current().id())
    }

    /// Whether enough is due to begin, or anybody wants room that is taken by what is.
    fn is_ripe(&self, threshold: u64) -> bool {
        let due = self.inbox.due();
        let is_wanted = || self.has_begun || self.inbox.has_parents() || !self.targets.is_empty();
        due > threshold || due > 0 && is_wanted()
    }

    /// Somebody begins to wait until so many messages were delivered.
    fn wants(&mut self, target: u64) {
        if self.inbox.done() < target {
            self.targets.push(target);
        }
    }
}

/// What the thread sleeps for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// It does not.
    None,
    /// Any message that is due.
    Empty,
    /// The one beyond the threshold, or who waits for room; meanwhile those that are here linger.
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
    /// `max`: acknowledged before it is delivered; `callback_max`: bytes that deliveries may send to this rank beyond that;
    /// `target`: bytes of a batch of own messages; `yields`: its thread lets others run before it sleeps; `is_inline`: it
    /// has none.
    pub(crate) fn new(
        (max, callback_max, target): (Amount, u64, usize),
        (threshold, linger): (usize, Duration),
        (yields, is_inline): (bool, bool),
    ) -> Self {
        let state = State {
            inbox: Inbox::new(max, target),
            rest: Rest::None,
            has_begun: false,
            flushes: 0,
            targets: Vec::new(),
            open_since: None,
            end: None,
            is_failed: false,
            thread: None,
            callback: None,
        };
        Self {
            state: Mutex::new(state),
            work: Condvar::new(),
            room: Condvar::new(),
            delivered: Line::default(),
            is_due: AtomicBool::new(false),
            threshold: threshold as u64,
            linger,
            callback_max,
            yields,
            is_inline,
        }
    }

    /// A buffer for [`Mail::push_chunk`].
    pub(crate) fn buffer(&self) -> Vec<u8> {
        locked(&self.state).inbox.buffer()
    }

    /// Puts the messages of a batch in. Whoever does this calls [`Mail::wake_up`] soon afterwards.
    pub(crate) fn push_chunk(&self, chunk: Chunk, receipt: Receipt) {
        let mut state = locked(&self.state);
        let released = state.inbox.push_chunk(chunk, receipt, self.delivered());
        self.end_push(state, released);
    }

    /// The same for a short batch.
    pub(crate) fn push_short(&self, batch: (&[u8], u32), receipt: Receipt) {
        let mut state = locked(&self.state);
        let released = state.inbox.push_short(batch, receipt, self.delivered());
        self.end_push(state, released);
    }

    fn end_push(&self, mut state: MutexGuard<'_, State>, released: Option<Receipt>) {
        if self.ends_rest(&mut state) {
            // Relaxed: whoever reads it orders nothing by it.
            self.is_due.store(true, Ordering::Relaxed);
        }
        drop(state);
        drop(released);
    }

    /// Wakes the thread if anything was put in for which it is to begin: once for many batches.
    pub(crate) fn wake_up(&self) {
        if self.is_due.load(Ordering::Relaxed) && self.is_due.swap(false, Ordering::Relaxed) {
            self.begin();
        }
    }

    /// Something is due that nobody delivers yet.
    fn begin(&self) {
        if self.is_inline {
            self.deliver_due();
        } else {
            self.work.notify_all();
        }
    }

    /// Puts a message of this rank to itself in; waits while there is no room, unless a delivery does this: the thread
    /// that makes room must not wait for it. Whether it lingers. `count` counts it, under the lock.
    #[inline]
    pub(crate) fn push_own(
        &self,
        message: &Message<'_>,
        count: Option<&AtomicU64>,
    ) -> Result<bool, NotTaken> {
        let state = locked(&self.state);
        if state.end.is_some() {
            return Err(NotTaken::Gone);
        }
        if state.inbox.exceeds(self.callback_max) && state.is_here() {
            return Err(NotTaken::Full);
        }
        Ok(self.put_own(state, message, count, true))
    }

    /// Puts it in; `may_wait`: for room, if there is none. Whether it lingers.
    #[inline]
    fn put_own(
        &self,
        mut state: MutexGuard<'_, State>,
        message: &Message<'_>,
        count: Option<&AtomicU64>,
        may_wait: bool,
    ) -> bool {
        let was_open = state.inbox.is_open();
        let end = state.inbox.push_own(message);
        count.inspect(|count| add_one(count));
        let lingers = state.inbox.is_open() && state.inbox.is_acknowledged(end);
        if lingers && was_open {
            return true;
        }
        state.inbox.note_waiting(self.delivered());
        if lingers {
            state.open_since = Some(Instant::now());
        } else {
            self.push_due(state, end, may_wait);
        }
        lingers
    }

    /// A buffer for [`Mail::push_own_batch`]. `None`: deliveries themselves have sent more than will ever find room.
    pub(crate) fn own_buffer(&self) -> Option<Vec<u8>> {
        let mut state = locked(&self.state);
        let is_full = state.inbox.exceeds(self.callback_max) && state.is_here();
        (!is_full).then(|| state.inbox.buffer())
    }

    /// A batch of such messages, to be delivered without waiting for more. `Err`: it was counted as what is not delivered any
    /// more.
    pub(crate) fn push_own_batch(&self, batch: Chunk, count: &AtomicU64) -> Result<(), Gone> {
        let mut state = locked(&self.state);
        count.fetch_add(u64::from(batch.messages), Ordering::Relaxed);
        if state.end.is_some() {
            state.inbox.strand(&batch);
            return Err(Gone);
        }
        let end = state.inbox.push_own_chunk(batch);
        state.inbox.note_waiting(self.delivered());
        self.push_due(state, end, true);
        Ok(())
    }

    /// A message of this rank to itself only if there is room, also beyond the limits where nothing waits before it; never waits.
    pub(crate) fn try_push_own(&self, message: &Message<'_>, count: &AtomicU64) -> Option<bool> {
        let mut state = locked(&self.state);
        if state.end.is_some() || !state.inbox.has_room(message) {
            // What is open is to make room, too.
            state.inbox.close();
            state.has_begun = true;
            self.wake(state);
            return None;
        }
        Some(self.put_own(state, message, Some(count), false))
    }

    /// The end of a message that does not linger: its sender waits until half of the room is free, if there is none and it
    /// may.
    fn push_due(&self, mut state: MutexGuard<'_, State>, end: Amount, may_wait: bool) {
        let has_room = state.inbox.is_acknowledged(end);
        if !has_room {
            state.inbox.close();
        }
        if has_room || !may_wait || state.is_here() {
            return self.wake(state);
        }
        let target = state.inbox.half_free_at(end);
        // Before the thread is looked at: it begins for who waits.
        state.wants(target);
        self.wake(state);
        self.wait_for_delivered(target);
    }

    /// Own messages that have lingered become due. When to ask again.
    pub(crate) fn handle_timeout(&self, now: Instant, linger: Duration) -> Option<Instant> {
        let mut state = locked(&self.state);
        if !state.inbox.is_open() {
            return None;
        }
        let limit = state.open_since?.checked_add(linger)?;
        if limit > now {
            return Some(limit);
        }
        state.inbox.close();
        self.wake(state);
        None
    }

    /// Waits until all that is here now was delivered; in a delivery it would wait for itself.
    pub(crate) fn flush(&self) {
        let mut state = locked(&self.state);
        let target = state.inbox.pushed();
        state.wants(target);
        state.flushes += 1;
        drop(state);
        self.begin();
        self.wait_for_delivered(target);
        locked(&self.state).flushes -= 1;
    }

    /// The same inside of a bound.
    pub(crate) fn flush_until(&self, limit: Instant) {
        let mut state = locked(&self.state);
        let target = state.inbox.pushed();
        state.wants(target);
        state.flushes += 1;
        drop(state);
        self.begin();
        let mut state = locked(&self.state);
        while state.inbox.done() < target && state.end != Some(End::Now) {
            let left = limit.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = wait_for(&self.room, (&self.state, state), left);
        }
        state.flushes -= 1;
    }

    /// Lets everybody go who waits, now and ever after.
    pub(crate) fn fail(&self) {
        locked(&self.state).is_failed = true;
        self.room.notify_all();
    }

    /// Ends the thread. What was not delivered.
    pub(crate) fn end(&self, drain: bool) {
        locked(&self.state).end = Some(if drain { End::Drained } else { End::Now });
        self.begin();
        self.room.notify_all();
    }

    /// Hands out messages until it is told to end; returns how many were left. A panic of the callback ends it, too:
    /// `on_panic` is called before anything else, so that whoever finds messages gone knows of the failure.
    pub(crate) fn run(
        &self,
        me: u32,
        mut deliver: impl FnMut(Delivery<'_>),
        on_panic: impl FnOnce(),
    ) -> u64 {
        locked(&self.state).thread = Some(thread::current().id());
        let mut done = None;
        while let Some(chunk) = self.next(done.take()) {
            if !deliver_all(&chunk.bytes, me, &mut deliver, &self.delivered.0) {
                on_panic();
                self.end(false);
                break;
            }
            done = Some(chunk);
        }
        self.clear()
    }

    /// Messages delivered, ever.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered.0.load(Ordering::Relaxed)
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

    /// Messages delivered, ever, if one is being delivered now.
    pub(crate) fn delivering(&self) -> Option<u64> {
        let state = locked(&self.state);
        state.inbox.is_delivering().then(|| self.delivered())
    }

    /// A chunk was delivered.
    fn finish<'m>(
        &'m self,
        mut state: MutexGuard<'m, State>,
        chunk: Chunk,
    ) -> MutexGuard<'m, State> {
        state.inbox.finish(chunk);
        self.tell_of_room(state)
    }

    /// More was delivered: acknowledges what there is room for now, and wakes who has waited for it.
    fn tell_of_room<'m>(&'m self, mut state: MutexGuard<'m, State>) -> MutexGuard<'m, State> {
        let (done, before) = (state.inbox.done(), state.targets.len());
        // Each is told once.
        state.targets.retain(|target| *target > done);
        let wakes = state.targets.len() < before;
        let released = std::mem::take(&mut state.inbox.released);
        if !wakes && released.is_empty() {
            return state;
        }
        drop(state);
        if wakes {
            self.room.notify_all();
        }
        drop(released);
        locked(&self.state)
    }

    /// The next chunk, when this one was delivered; `None` at the end.
    fn next(&self, done: Option<Chunk>) -> Option<Chunk> {
        let mut state = locked(&self.state);
        if let Some(chunk) = done {
            state = self.finish(state, chunk);
        }
        let (mut limit, mut may_yield) = (None, self.yields);
        loop {
            if state.end == Some(End::Now) {
                return None;
            }
            let is_over = limit.is_some_and(|limit| Instant::now() >= limit);
            let all = is_over || state.flushes > 0 || state.end.is_some();
            state.has_begun |= all || state.is_ripe(self.threshold);
            if state.has_begun
                && let Some(chunk) = state.inbox.take(all)
            {
                return Some(chunk);
            }
            state.has_begun = false;
            if state.end.is_some() {
                return None;
            }
            if state.inbox.due() == 0 && std::mem::take(&mut may_yield) {
                // What others put in meanwhile costs nobody a wake-up.
                drop(state);
                thread::yield_now();
                state = locked(&self.state);
                continue;
            }
            if state.inbox.due() == 0 {
                state.rest = Rest::Empty;
                state = wait(&self.work, state);
            } else {
                state.rest = Rest::Lingering;
                let now = Instant::now();
                let left = *limit.get_or_insert(now + self.linger) - now;
                state = wait_for(&self.work, (&self.state, state), left);
            }
            state.rest = Rest::None;
        }
    }

    /// The end of a change that may be worth waking the thread for.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let released = std::mem::take(&mut state.inbox.released);
        let ends = self.ends_rest(&mut state);
        drop(state);
        if ends {
            self.begin();
        }
        drop(released);
    }

    /// Whether the thread is to be woken now. Those who come before it is awake need not wake it again.
    fn ends_rest(&self, state: &mut State) -> bool {
        let is_due = match state.rest {
            Rest::None => false,
            Rest::Empty => state.inbox.due() > 0,
            Rest::Lingering => state.is_ripe(self.threshold),
        };
        if is_due {
            state.rest = Rest::None;
        }
        is_due
    }

    /// Waits until so many messages were delivered, as [`State::wants`] was told, or nobody is to wait any more.
    fn wait_for_delivered(&self, target: u64) {
        let mut state = locked(&self.state);
        while state.inbox.done() < target && state.end != Some(End::Now) && !state.is_failed {
            state = wait(&self.room, state);
        }
    }

    /// Waits until the thread has done what it was told, but not beyond a moment. Whether it has.
    pub(crate) fn wait_until_ended(&self, limit: Instant) -> bool {
        let mut state = locked(&self.state);
        while state.thread.is_some() {
            let left = limit.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = wait_for(&self.room, (&self.state, state), left);
        }
        true
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

/// Hands the messages of a batch to the application, and counts each; `false`: it panicked.
pub(crate) fn deliver_all(
    bytes: &[u8],
    me: u32,
    deliver: &mut impl FnMut(Delivery<'_>),
    delivered: &AtomicU64,
) -> bool {
    let all = || {
        // Batches were checked when they came.
        for message in Messages::of(bytes) {
            let Ok(Message { kind, source, bytes, .. }) = message else { break };
            deliver(Delivery { source, destination: me, kind, bytes });
            add_one(delivered);
        }
    };
    catch_unwind(AssertUnwindSafe(all)).is_ok()
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_message_that_is_being_delivered_is_seen_also_while_others_have_the_lock() {
        let _watchdog = watchdog::Watchdog::start();
        let max = Amount { messages: 8, bytes: 1 << 20 };
        let mail = Mail::new((max, 0, 0), (0, Duration::ZERO), (false, false));
        assert_eq!(mail.delivering(), None);
        let message = Message { kind: 0, source: 0, to: 0, bytes: b"one" };
        mail.push_own(&message, None).unwrap();
        let _chunk = mail.next(None).unwrap();
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            let (begins, begun) = channel();
            let (ends, mail) = (&ends, &mail);
            scope.spawn(move || {
                begins.send(()).unwrap();
                while !ends.load(Ordering::Relaxed) {
                    let state = locked(&mail.state);
                    thread::yield_now();
                    drop(state);
                }
            });
            begun.recv().unwrap();
            let is_seen = (0..20).all(|_| mail.delivering() == Some(0));
            ends.store(true, Ordering::Relaxed);
            assert!(is_seen);
        });
    }
}
