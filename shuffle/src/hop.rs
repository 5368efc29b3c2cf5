//! One next hop: its queue, and the batches under way to it.

use std::{
    collections::VecDeque,
    mem,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use hg::CallError;

use crate::{
    lock::locked,
    message::{Message, Messages},
    overflow::Overflow,
    parent::Parent,
    queue::{Counts, Loaded, Outgoing, Queue},
    room::{Room, State, Waiting},
    rpc::{From, Lane, Refused, batch},
};

/// How a batch ended.
pub(crate) type Ended = Result<(), CallError<Refused>>;

/// A batch under way.
struct Sent {
    number: u64,
    call: hg::OwnedCall<batch>,
    /// How it ended, if it did at once and was looked at.
    ended: Option<Ended>,
}

impl Sent {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Ended> {
        match self.ended.take() {
            Some(ended) => Poll::Ready(ended),
            None => self.call.poll_outcome(context),
        }
    }
}

/// A next hop. Of its locks, `calls` is taken before `room`; no answer is sent while either is held.
pub(crate) struct Hop {
    pub(crate) rank: u32,
    pub(crate) lane: Lane,
    /// How this rank calls that one.
    pub(crate) from: From,
    engine: hg::Engine,
    peer: hg::Peer,
    /// Bytes in front of a batch: the head of its message. A batch at least so long is sent from where it was written;
    /// of shorter ones inside a node, the copy into shared memory is the sending.
    head: usize,
    in_place_from: usize,
    /// Changes when something has left the wait queue or was acknowledged, or the hop has failed.
    room: Room<Queue<Parent>>,
    /// Under way, in the order in which they were sent, which is that of their answers.
    calls: Mutex<VecDeque<Sent>>,
    waker: Waker,
    shared: Shared,
    turned_away: AtomicU64,
}

/// What the hops of a process have in common.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    /// Batches under way over all hops of this lane.
    pub(crate) in_flight: Arc<AtomicU64>,
    /// The shuffle has failed: nobody waits any more.
    pub(crate) is_failed: Arc<AtomicBool>,
    pub(crate) overflow: Arc<Overflow>,
}

/// What came of putting a message in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pushed {
    /// Of its batch.
    pub(crate) number: u64,
    /// Its sender is to wait until it has left.
    pub(crate) waits: bool,
    /// A batch has begun that is to leave after a while.
    pub(crate) lingers: bool,
    /// A batch has left with it.
    pub(crate) leaves: bool,
}

impl Hop {
    pub(crate) fn new(
        (rank, lane): (u32, Lane),
        from: From,
        (engine, peer): (hg::Engine, hg::Peer),
        queue: Queue<Parent>,
        waker: Waker,
        shared: Shared,
    ) -> Self {
        let (head, in_place_from) = match engine.room_in_place(batch, (from, lane, 0, &[])) {
            Some(head) if lane == Lane::Network => (head, 0),
            Some(head) => (head, engine.message_max()),
            None => (0, usize::MAX),
        };
        let queue = queue.with_room(head);
        Self {
            rank,
            lane,
            from,
            engine,
            peer,
            head,
            in_place_from,
            room: Room::new(queue),
            calls: Mutex::default(),
            waker,
            shared,
            turned_away: AtomicU64::new(0),
        }
    }

    /// Whom it reaches, by which engine.
    pub(crate) fn ends(&self) -> (&hg::Engine, &hg::Peer) {
        (&self.engine, &self.peer)
    }

    /// Puts a message in, and sends what is full; `count` counts it. `Err`: the hop has failed, and the message was not
    /// taken.
    #[inline]
    pub(crate) fn push(
        &self,
        message: &Message<'_>,
        count: Option<&AtomicU64>,
    ) -> Result<Pushed, Gone> {
        let mut state = self.room.lock();
        if state.queue.is_failed() {
            return Err(Gone);
        }
        // It is accounted for, also when the shuffle fails meanwhile.
        count.inspect(|count| add_one(count));
        if state.queue.push_loading(message) {
            let number = state.queue.first();
            let lingers = state.queue.lingers();
            return Ok(Pushed { number, waits: false, lingers, leaves: false });
        }
        Ok(self.push_otherwise(state, message))
    }

    /// The first message of a batch, the last one, or one that waits.
    #[inline(never)]
    fn push_otherwise(
        &self,
        mut state: MutexGuard<'_, State<Queue<Parent>>>,
        message: &Message<'_>,
    ) -> Pushed {
        let number = state.queue.push(message, Instant::now);
        let overflows = state.queue.has_last_waiting() && self.shared.overflow.is_callback();
        if overflows {
            let bytes = message.len() as u64;
            // Under the lock: what leaves is counted after what came.
            self.shared.overflow.add(bytes);
            state.queue.note_overflow(bytes);
        }
        let outgoing = state.queue.poll_batch(Instant::now);
        let waits = !(overflows || state.queue.has_left(number));
        let (lingers, waiting) = (state.queue.lingers(), state.waiting());
        self.unlock(state);
        let leaves = outgoing.is_some();
        if let Some(outgoing) = outgoing {
            self.send(outgoing);
            self.wake(waiting);
        }
        Pushed { number, waits, lingers, leaves }
    }

    /// Puts in what has come in one batch for this hop, and sends what may leave; `run` is empty afterwards. Whether a batch is
    /// left that is to leave after a while. `Err`: the hop has failed, and the messages were dropped: their origins count them
    /// as in doubt.
    pub(crate) fn push_run(&self, run: &mut Loaded, parent: &Parent) -> Result<bool, Gone> {
        let mut state = self.room.lock();
        if state.queue.is_failed() {
            self.turned_away.fetch_add(run.messages.into(), Ordering::Relaxed);
            run.clear(self.head);
            return Err(Gone);
        }
        state.queue.push_run(run, parent, Instant::now);
        drop(state);
        Ok(self.pump())
    }

    /// Puts a whole batch of this rank's messages in, and sends what may leave; `sent` counts it, by destination. `Err`:
    /// the hop has failed, and the messages were dropped. A buffer for the next one comes with it.
    pub(crate) fn push_batch(
        &self,
        loaded: Loaded,
        sent: &[AtomicU64],
    ) -> Result<(Pushed, Vec<u8>), Gone> {
        let mut state = self.room.lock();
        for message in Messages::of(&loaded.bytes[self.head..]).flatten() {
            add_one(&sent[message.to as usize]);
        }
        if state.queue.is_failed() {
            state.queue.drop_batch(&loaded, self.from.rank);
            return Err(Gone);
        }
        let bytes = (loaded.bytes.len() - self.head) as u64;
        let number = state.queue.push_batch(loaded);
        let overflows = state.queue.has_last_waiting() && self.shared.overflow.is_callback();
        if overflows {
            self.shared.overflow.add(bytes);
            state.queue.note_overflow(bytes);
        }
        drop(state);
        let lingers = self.pump();
        let mut state = self.room.lock();
        let waits = !(overflows || state.queue.has_left(number));
        let buffer = state.queue.new_buffer();
        Ok((Pushed { number, waits, lingers, leaves: true }, buffer))
    }

    /// A buffer for a batch that is filled elsewhere.
    pub(crate) fn new_buffer(&self) -> Vec<u8> {
        self.room.lock().queue.new_buffer()
    }

    /// Bytes of a batch's buffer in front of its messages.
    pub(crate) fn head(&self) -> usize {
        self.head
    }

    /// Bytes of payload at which its batches are full.
    pub(crate) fn target(&self) -> usize {
        self.room.lock().queue.target()
    }

    /// Puts a message in only if it would not wait.
    pub(crate) fn try_push(
        &self,
        message: &Message<'_>,
        count: &AtomicU64,
    ) -> Result<Option<Pushed>, Gone> {
        if self.room.lock().queue.would_wait() {
            return Ok(None);
        }
        // Somebody else may have taken the room meanwhile: then it waits like any other, but its sender does not.
        self.push(message, Some(count)).map(Some)
    }

    /// Sends off all that is here. What [`Queue::is_flushed`] is asked with.
    pub(crate) fn begin_flush(&self) -> u64 {
        let mark = self.room.lock().queue.flush();
        self.pump();
        mark
    }

    /// Sleeps until somebody makes room, or the shuffle has failed.
    pub(crate) fn wait_for(&self, mut is_over: impl FnMut(&Queue<Parent>) -> bool) {
        self.room.wait_until(|queue| is_over(queue) || self.has_failed());
    }

    /// The same for a thread that makes the progress itself, with `turn`, which ends early when anything here has
    /// changed.
    pub(crate) fn wait_helping(
        &self,
        mut is_over: impl FnMut(&Queue<Parent>) -> bool,
        turn: impl FnMut(),
    ) {
        self.room.wait_helping(|queue| is_over(queue) || self.has_failed(), turn);
    }

    /// The shuffle's flag is up before waiters are woken, under the lock.
    fn has_failed(&self) -> bool {
        self.shared.is_failed.load(Ordering::SeqCst)
    }

    /// Wakes who waits here, if anybody does.
    fn wake(&self, waiting: Waiting) {
        self.room.wake(waiting, || self.engine.interrupt_progress());
    }

    /// Whether the queue is so.
    pub(crate) fn is(&self, so: impl FnOnce(&Queue<Parent>) -> bool) -> bool {
        so(&self.room.lock().queue)
    }

    /// Sends every batch that may leave. Whether one is left that is to leave after a while.
    pub(crate) fn pump(&self) -> bool {
        self.pump_after(false)
    }

    /// The same; then wakes who waits, once, if that or what came before may have made room.
    fn pump_after(&self, mut has_changed: bool) -> bool {
        loop {
            let mut state = self.room.lock();
            let outgoing = state.queue.poll_batch(Instant::now);
            let (lingers, waiting) = (state.queue.lingers(), state.waiting());
            self.unlock(state);
            if let Some(outgoing) = outgoing {
                self.send(outgoing);
                has_changed = true;
                continue;
            }
            if has_changed {
                self.wake(waiting);
            }
            return lingers;
        }
    }

    /// Wakes who waits here, to look what has happened.
    pub(crate) fn wake_waiters(&self) {
        drop(self.room.lock());
        self.wake(Waiting::EVERYBODY);
    }

    /// Takes the answers that have come. Whether a batch is left that is to leave after a while; `Err`: why the hop
    /// does not work any more.
    pub(crate) fn collect(&self) -> (bool, Ended) {
        let mut context = Context::from_waker(&self.waker);
        let mut calls = locked(&self.calls);
        let mut ended = Ok(());
        let mut state = None;
        while let Some(sent) = calls.front_mut()
            && let Poll::Ready(result) = sent.poll(&mut context)
        {
            let number = sent.number;
            calls.pop_front();
            // SeqCst: see `Inner::wait_for_lane`.
            self.shared.in_flight.fetch_sub(1, Ordering::SeqCst);
            match result {
                Ok(()) => {
                    let state = state.get_or_insert_with(|| self.room.lock());
                    state.queue.acknowledge(number);
                }
                Err(error) => {
                    if let CallError::Handler(_) = &error {
                        let state = state.get_or_insert_with(|| self.room.lock());
                        state.queue.refuse(number);
                    }
                    ended = Err(error);
                }
            }
        }
        let has_changed = state.is_some();
        drop(state);
        drop(calls);
        (self.pump_after(has_changed), ended)
    }

    /// Makes a batch leave that has lingered. When to ask again.
    pub(crate) fn handle_timeout(&self, now: Instant, linger: Duration) -> Option<Instant> {
        let next = self.room.lock().queue.handle_timeout(now, linger);
        match next {
            Some(next) if next > now => Some(next),
            _ => self.pump().then_some(now + linger),
        }
    }

    /// Nothing goes this way any more: the next hop is gone.
    pub(crate) fn fail(&self) {
        let mut state = self.room.lock();
        state.queue.fail(self.from.rank);
        self.release(state);
    }

    /// Takes nothing more, and drops what was not sent; see [`Hop::wait_until_empty`].
    pub(crate) fn close(&self) {
        let mut state = self.room.lock();
        state.queue.close(self.from.rank);
        self.release(state);
    }

    /// Waits until nothing is left here, neither waiting nor under way, but not beyond a moment.
    pub(crate) fn wait_until_empty(&self, limit: Instant) {
        let left = || {
            let left = limit.saturating_duration_since(Instant::now());
            (!left.is_zero()).then_some(left)
        };
        self.room.wait_while_time_is_left(|queue| queue.unacknowledged() == 0, left);
    }

    /// Whether it is gone.
    pub(crate) fn is_failed(&self) -> bool {
        self.room.lock().queue.is_failed()
    }

    /// Messages of this rank to another one that were dropped here.
    pub(crate) fn own_dropped(&self, to: u32) -> u64 {
        self.room.lock().queue.own_dropped(to)
    }

    /// Messages that other ranks sent were to go this way, but the next hop is gone.
    pub(crate) fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    pub(crate) fn counts(&self) -> Counts {
        self.room.lock().queue.counts()
    }

    /// For a state dump: works on a process that is stuck. `None`: somebody holds the lock.
    pub(crate) fn describe(&self) -> Option<String> {
        let state = self.room.try_lock()?;
        let queue = &state.queue;
        let ((batches, bytes), counts) = (queue.unsent(), queue.counts());
        Some(format!(
            "{:?} to rank {}: {batches} batches of {bytes} bytes here, {} under way, {} messages unacknowledged, \
             {} threads wait; ever {} messages, {} waited, {} batches, {} before they were full",
            self.lane,
            self.rank,
            queue.in_flight(),
            queue.unacknowledged(),
            state.waiting().count(),
            counts.messages,
            counts.waits,
            counts.batches,
            counts.early,
        ))
    }

    /// The end of what lets everybody go: wakes who waits, and releases parents without the lock.
    fn release(&self, state: MutexGuard<'_, State<Queue<Parent>>>) {
        self.unlock(state);
        self.wake(Waiting::EVERYBODY);
    }

    /// The end of a change: tells of what waits here no longer.
    #[inline]
    fn unlock(&self, mut state: MutexGuard<'_, State<Queue<Parent>>>) {
        let released = mem::take(&mut state.queue.released);
        let departed = mem::take(&mut state.queue.departed);
        drop(state);
        drop(released);
        self.shared.overflow.take(departed);
    }

    fn send(&self, outgoing: Outgoing) {
        let Outgoing { number, bytes, .. } = outgoing;
        let mut calls = locked(&self.calls);
        self.shared.in_flight.fetch_add(1, Ordering::Relaxed);
        let (engine, peer) = (&self.engine, &self.peer);
        let (mut call, emptied) = if bytes.len() >= self.in_place_from {
            let args = (self.from, self.lane, number, &[][..]);
            (engine.call_in_place(batch, peer, args, bytes), None)
        } else {
            let args = (self.from, self.lane, number, &bytes[self.head..]);
            (engine.call_owned(batch, peer, args), Some(bytes))
        };
        // Answers are taken in order: one behind others is looked at when those have gone, and nobody is woken for it.
        let ended = if calls.is_empty() {
            match call.poll_outcome(&mut Context::from_waker(&self.waker)) {
                Poll::Ready(ended) => Some(ended),
                Poll::Pending => None,
            }
        } else {
            None
        };
        let is_over = ended.is_some();
        calls.push_back(Sent { number, call, ended });
        drop(calls);
        if is_over {
            // Whoever makes progress next finds it noted.
            self.waker.wake_by_ref();
            self.engine.interrupt_progress();
        }
        if let Some(bytes) = emptied {
            self.room.lock().queue.reuse(bytes);
        }
    }
}

/// Counts one more. Relaxed, and not one step: whoever counts the same holds the same lock.
#[inline]
pub(crate) fn add_one(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}

/// The hop has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone;

/// Where hops and tasks are noted that have something to do.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    noted: Mutex<Vec<u32>>,
    /// `noted` is not empty.
    is_any: AtomicBool,
}

struct Note {
    index: u32,
    ready: Arc<Ready>,
}

impl Wake for Note {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut noted = locked(&self.ready.noted);
        if noted.last() != Some(&self.index) {
            noted.push(self.index);
        }
        // Release: whoever sees it sees what was woken for.
        self.ready.is_any.store(true, Ordering::Release);
    }
}

impl Ready {
    /// The numbers that were noted since, each once.
    pub(crate) fn take(&self) -> Vec<u32> {
        if !self.is_any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut list = locked(&self.noted);
        self.is_any.store(false, Ordering::Relaxed);
        let mut noted = mem::take(&mut *list);
        drop(list);
        noted.sort_unstable();
        noted.dedup();
        noted
    }

    /// A waker that notes this number.
    pub(crate) fn waker(self: &Arc<Self>, index: u32) -> Waker {
        Arc::new(Note { index, ready: Arc::clone(self) }).into()
    }
}
