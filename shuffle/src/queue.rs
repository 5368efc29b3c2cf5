//! What waits for one next hop: batches under construction and under way. No I/O, no thread, no clock.
//!
//! ```text
//!            push                     poll_batch                acknowledge
//!   message ------> waiting | loading ----------> in flight(n) ------------> gone
//! ```
//! Messages are put into numbered batches at once, so that each is copied once. The first batch is *loading*: it leaves as soon
//! as it is ripe (its target is reached), urgent or has lingered, and fewer than `max_in_flight` are under way; until then it takes
//! more messages, up to [`GATHERED`] bytes beyond which only its target counts. So messages that leave by themselves share a batch
//! where they would wait for one another. All other batches *wait*: whoever sent their messages (a parent) is told only when they
//! begin to load. That late word is the whole flow control: upstream keeps its own batch in flight until then, and so on back to
//! the application. Batches are under way up to a number and to bytes, whichever is less; one always may be.
//!
//! A parent is a value that is handed back, in `released`, once nothing of it waits here any more.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use crate::message::{Message, Messages};

/// The queue of one next hop.
#[derive(Debug)]
pub(crate) struct Queue<P> {
    max_in_flight: usize,
    /// Bytes under way at which no other batch leaves.
    bytes_max: u64,
    bytes_in_flight: u64,
    target: usize,
    /// Bytes up to which the batch that loads takes messages while it cannot leave, though it is ripe.
    gathered: usize,
    /// Bytes in front of a batch's messages, for whatever it is sent with.
    room: usize,
    /// Bytes of the last batch that was sent.
    typical: usize,
    /// Not sent yet; the number of the front one is `first`.
    unsent: VecDeque<Batch<P>>,
    first: u64,
    in_flight: VecDeque<InFlight>,
    /// Batches below this number leave though they are not full.
    urgent: u64,
    /// Parents of which nothing waits here any more, to be dropped by the driver outside of its lock.
    pub(crate) released: Vec<P>,
    /// Bytes of callbacks' messages that wait here no longer, for [`crate::overflow`].
    pub(crate) departed: u64,
    spare: Vec<Vec<u8>>,
    is_failed: bool,
    counts: Counts,
    /// Of the dropped messages, those of a rank's own, by destination.
    own_dropped: BTreeMap<u32, u64>,
}

/// A batch on its way to be sent.
#[derive(Debug)]
struct Batch<P> {
    bytes: Vec<u8>,
    payload: usize,
    messages: u32,
    /// Of messages that came here while the batch had to wait.
    parents: Vec<P>,
    /// Bytes of such messages of callbacks.
    overflow: u64,
    /// When it began to load, if it was not ripe then.
    since: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct InFlight {
    number: u64,
    messages: u32,
    bytes: u64,
}

/// Messages that were put together outside of the queue, behind the room that it was told of.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) bytes: Vec<u8>,
    pub(crate) payload: usize,
    pub(crate) messages: u32,
}

/// A batch to be sent now; hand its buffer back by [`Queue::reuse`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    /// Consecutive per queue: the receiver puts batches into this order.
    pub(crate) number: u64,
    pub(crate) messages: u32,
    /// Behind the room that the queue was told of.
    pub(crate) bytes: Vec<u8>,
}

/// What a queue has seen, for statistics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages put in.
    pub messages: u64,
    /// Batches sent.
    pub batches: u64,
    /// Batches that left before they had their target.
    pub early: u64,
    /// Messages that found no room and waited.
    pub waits: u64,
    /// Most batches that waited at a time.
    pub waiting_max: u64,
    /// Messages here now that the next hop has not acknowledged.
    pub unacknowledged: u64,
    /// Messages that were not sent on, since the next hop was gone or the shuffle ended: they were not delivered.
    pub dropped: u64,
    /// Messages that were sent on to a next hop which never acknowledged them: it may have taken them or not.
    pub unanswered: u64,
}

impl<P: Clone + PartialEq> Queue<P> {
    /// `target`: bytes of payload at which a batch leaves; 0 and 1: with one message.
    pub(crate) fn new(max_in_flight: u32, target: usize) -> Self {
        Self {
            max_in_flight: usize::try_from(max_in_flight).unwrap_or(usize::MAX),
            bytes_max: u64::MAX,
            bytes_in_flight: 0,
            target,
            gathered: target.max(GATHERED),
            room: 0,
            typical: 0,
            unsent: VecDeque::new(),
            first: 0,
            in_flight: VecDeque::new(),
            urgent: 0,
            released: Vec::new(),
            departed: 0,
            spare: Vec::new(),
            is_failed: false,
            counts: Counts::default(),
            own_dropped: BTreeMap::new(),
        }
    }

    /// The same with so many bytes in front of each batch.
    pub(crate) fn with_room(self, room: usize) -> Self {
        Self { room, ..self }
    }

    /// The same with so many bytes under way at most, and one batch.
    pub(crate) fn with_bytes_max(self, bytes_max: u64) -> Self {
        Self { bytes_max, ..self }
    }

    /// Puts a message into the batch that loads, if that has room and goes on loading: `false` otherwise. It neither
    /// waits nor makes anything leave.
    #[inline]
    pub(crate) fn push_loading(&mut self, message: &Message<'_>) -> bool {
        if self.unsent.len() != 1 || self.first < self.urgent {
            return false;
        }
        let (has_slot, target, room) = (self.has_slot(), self.target, self.room);
        let Some(batch) = self.unsent.front_mut() else { return false };
        let (payload, len) =
            (batch.payload + message.bytes.len(), batch.bytes.len() - room + message.len());
        let leaves = has_slot && reaches((payload, len), target);
        if leaves || batch.reaches(self.gathered, room) {
            return false;
        }
        message.write(&mut batch.bytes);
        batch.payload = payload;
        batch.messages += 1;
        self.counts.messages += 1;
        true
    }

    /// Puts a message in; returns the number of its batch.
    #[inline]
    pub(crate) fn push(&mut self, message: &Message<'_>, clock: impl Fn() -> Instant) -> u64 {
        if self.takes_no_more() {
            let bytes = self.new_buffer();
            self.unsent.push_back(Batch::new(bytes));
        }
        let batch = self.unsent.back_mut().expect("pushed above");
        message.write(&mut batch.bytes);
        batch.payload += message.bytes.len();
        batch.messages += 1;
        self.note_pushed(1, None, clock);
        self.last_number()
    }

    /// Puts messages in that came together, and empties their buffer, or puts another one in its place: long ones are not
    /// copied. `parent` is kept while they wait.
    pub(crate) fn push_run(&mut self, run: &mut Loaded, parent: &P, clock: impl Fn() -> Instant) {
        let Loaded { payload, messages, .. } = *run;
        let is_long = reaches((payload, run.bytes.len() - self.room), self.gathered);
        if is_long || self.takes_no_more() {
            let bytes = std::mem::take(&mut run.bytes);
            self.unsent.push_back(Batch { payload, messages, ..Batch::new(bytes) });
            run.bytes = self.new_buffer();
            // What lies before a long one waits for no more.
            self.urgent = self.urgent.max(self.last_number());
        } else if let Some(batch) = self.unsent.back_mut() {
            batch.bytes.extend_from_slice(&run.bytes[self.room..]);
            batch.payload += payload;
            batch.messages += messages;
        }
        run.clear(self.room);
        self.note_pushed(messages, Some(parent), clock);
    }

    /// Whether what comes next begins another batch.
    fn takes_no_more(&self) -> bool {
        self.unsent.back().is_none_or(|last| last.reaches(self.gathered, self.room))
    }

    /// So many messages were put into the last batch.
    fn note_pushed(&mut self, messages: u32, parent: Option<&P>, clock: impl Fn() -> Instant) {
        self.counts.messages += u64::from(messages);
        let (target, room, batches) = (self.target, self.room, self.unsent.len());
        let Some(batch) = self.unsent.back_mut() else { return };
        if batches == 1 {
            return batch.load(clock, target, room);
        }
        self.counts.waits += u64::from(messages);
        self.counts.waiting_max = self.counts.waiting_max.max(batches as u64);
        if let Some(parent) = parent
            && batch.parents.last() != Some(parent)
        {
            batch.parents.push(parent.clone());
        }
    }

    /// Puts a whole batch in, which waits for no more messages, nor do those before it; returns its number.
    pub(crate) fn push_batch(&mut self, Loaded { bytes, payload, messages }: Loaded) -> u64 {
        self.counts.messages += u64::from(messages);
        self.unsent.push_back(Batch { payload, messages, ..Batch::new(bytes) });
        let number = self.last_number();
        self.urgent = self.urgent.max(number + 1);
        if self.has_last_waiting() {
            self.counts.waits += u64::from(messages);
            self.counts.waiting_max = self.counts.waiting_max.max(self.unsent.len() as u64);
        }
        number
    }

    /// Drops a whole batch that the queue takes no more.
    pub(crate) fn drop_batch(&mut self, batch: &Loaded, me: u32) {
        self.counts.messages += u64::from(batch.messages);
        self.note_dropped(batch.messages, &batch.bytes, me);
    }

    /// The message or batch that was pushed last is a callback's, which does not wait for room, though it has none.
    pub(crate) fn note_overflow(&mut self, bytes: u64) {
        if let Some(last) = self.unsent.back_mut() {
            last.overflow += bytes;
        }
    }

    /// Whether the message that was pushed last waits.
    pub(crate) fn has_last_waiting(&self) -> bool {
        self.unsent.len() > 1
    }

    /// The next batch to send, if one is ripe or urgent and may be under way.
    #[inline]
    pub(crate) fn poll_batch(&mut self, clock: impl Fn() -> Instant) -> Option<Outgoing> {
        let front = self.unsent.front()?;
        let is_ripe = front.reaches(self.target, self.room);
        if !self.has_slot() || !(is_ripe || self.first < self.urgent) {
            return None;
        }
        let Batch { bytes, messages, .. } = self.unsent.pop_front()?;
        self.typical = bytes.len();
        let number = self.first;
        self.first += 1;
        let len = bytes.len() as u64;
        self.bytes_in_flight += len;
        self.in_flight.push_back(InFlight { number, messages, bytes: len });
        self.counts.batches += 1;
        self.counts.early += u64::from(!is_ripe);
        self.load_front(clock);
        Some(Outgoing { number, messages, bytes })
    }

    /// The next hop has taken a batch in.
    pub(crate) fn acknowledge(&mut self, number: u64) {
        self.take_in_flight(number);
    }

    /// The next hop has refused a batch: it was not taken in, nor will those behind it be.
    pub(crate) fn refuse(&mut self, number: u64) {
        let messages = self.take_in_flight(number).map_or(0, |batch| batch.messages);
        self.counts.dropped += u64::from(messages);
    }

    /// A batch is not under way any more.
    fn take_in_flight(&mut self, number: u64) -> Option<InFlight> {
        let at = self.in_flight.iter().position(|batch| batch.number == number)?;
        let batch = self.in_flight.remove(at)?;
        self.bytes_in_flight -= batch.bytes;
        Some(batch)
    }

    /// A buffer for a batch: as large as the last one was, so that messages are not moved when it grows.
    pub(crate) fn new_buffer(&mut self) -> Vec<u8> {
        let mut bytes = self.spare.pop().unwrap_or_else(|| {
            Vec::with_capacity((self.typical + self.typical / 16).min(self.kept_max()))
        });
        bytes.resize(self.room, 0);
        bytes
    }

    /// Bytes of payload at which a batch is full.
    pub(crate) fn target(&self) -> usize {
        self.target
    }

    /// Largest buffer that is made or kept ahead.
    fn kept_max(&self) -> usize {
        self.room + self.gathered.saturating_mul(3)
    }

    /// Takes a buffer back, for a batch to come.
    pub(crate) fn reuse(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARES && buffer.capacity() <= self.kept_max() {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// The number of the batch that loads, or will.
    #[inline]
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Whether the messages of this batch have left the wait queue.
    #[inline]
    pub(crate) fn has_left(&self, number: u64) -> bool {
        number <= self.first || self.is_failed
    }

    /// Sends off all that is here, full or not; returns what [`Queue::is_flushed`] is asked with.
    pub(crate) fn flush(&mut self) -> u64 {
        self.urgent = self.first + self.unsent.len() as u64;
        self.urgent
    }

    /// Whether all that was here at [`Queue::flush`] has been acknowledged. Of what a closed or failed queue has dropped
    /// nobody can say that.
    pub(crate) fn is_flushed(&self, mark: u64) -> bool {
        if self.is_failed {
            return false;
        }
        let oldest = self.in_flight.iter().map(|batch| batch.number).min();
        oldest.unwrap_or(self.first).min(self.first) >= mark
    }

    /// Makes a batch urgent that has been loading for `linger`; otherwise, when it will have.
    pub(crate) fn handle_timeout(&mut self, now: Instant, linger: Duration) -> Option<Instant> {
        let limit = self.unsent.front()?.since?.checked_add(linger)?;
        if limit > now {
            return Some(limit);
        }
        // Those behind it may be urgent already.
        self.urgent = self.urgent.max(self.first + 1);
        None
    }

    /// Nothing more is taken in or sent; what is under way may still be acknowledged. `me`: whose messages are its own.
    pub(crate) fn close(&mut self, me: u32) {
        self.is_failed = true;
        for batch in &mut self.unsent {
            self.released.append(&mut batch.parents);
            self.departed += std::mem::take(&mut batch.overflow);
        }
        for batch in std::mem::take(&mut self.unsent) {
            self.note_dropped(batch.messages, &batch.bytes, me);
        }
    }

    fn note_dropped(&mut self, messages: u32, bytes: &[u8], me: u32) {
        self.counts.dropped += u64::from(messages);
        for message in Messages::of(&bytes[self.room..]).flatten() {
            if message.source == me && !message.is_broadcast() {
                *self.own_dropped.entry(message.to).or_default() += 1;
            }
        }
    }

    /// The next hop is gone: nothing is acknowledged any more either.
    pub(crate) fn fail(&mut self, me: u32) {
        self.close(me);
        let under_way = self.in_flight.drain(..).map(|batch| u64::from(batch.messages));
        self.counts.unanswered += under_way.sum::<u64>();
        self.bytes_in_flight = 0;
    }

    /// Whether [`Queue::close`] or [`Queue::fail`] was called.
    pub(crate) fn is_failed(&self) -> bool {
        self.is_failed
    }

    /// Messages of this rank to another one that were dropped here.
    pub(crate) fn own_dropped(&self, to: u32) -> u64 {
        self.own_dropped.get(&to).copied().unwrap_or(0)
    }

    /// Whether a message put in now would have to wait.
    pub(crate) fn would_wait(&self) -> bool {
        let is_full = |front: &Batch<P>| front.reaches(self.gathered, self.room);
        self.unsent.len() > 1 || self.unsent.front().is_some_and(is_full)
    }

    /// Messages here that the next hop has not acknowledged.
    pub(crate) fn unacknowledged(&self) -> u64 {
        let unsent = self.unsent.iter().map(|batch| u64::from(batch.messages)).sum::<u64>();
        unsent + self.in_flight.iter().map(|batch| u64::from(batch.messages)).sum::<u64>()
    }

    /// What this queue has seen, and what it holds.
    pub(crate) fn counts(&self) -> Counts {
        Counts { unacknowledged: self.unacknowledged(), ..self.counts }
    }

    /// Batches under way.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether a batch has begun that is neither ripe nor urgent: it lingers.
    pub(crate) fn lingers(&self) -> bool {
        let front = self.unsent.front();
        front.is_some_and(|front| front.since.is_some() && !front.reaches(self.target, self.room))
            && self.first >= self.urgent
    }

    /// Batches that are not sent yet, and their bytes, heads included.
    pub(crate) fn unsent(&self) -> (usize, usize) {
        (self.unsent.len(), self.unsent.iter().map(|batch| batch.bytes.len() - self.room).sum())
    }

    fn has_slot(&self) -> bool {
        self.in_flight.len() < self.max_in_flight
            && (self.bytes_in_flight < self.bytes_max || self.in_flight.is_empty())
    }

    fn last_number(&self) -> u64 {
        self.first + self.unsent.len() as u64 - 1
    }

    /// The front batch has left the wait queue.
    fn load_front(&mut self, clock: impl Fn() -> Instant) {
        if let Some(front) = self.unsent.front_mut() {
            self.released.append(&mut front.parents);
            self.departed += std::mem::take(&mut front.overflow);
            front.load(clock, self.target, self.room);
        }
    }
}

impl Loaded {
    /// Takes all messages out, behind so many bytes.
    pub(crate) fn clear(&mut self, room: usize) {
        self.bytes.truncate(room);
        (self.payload, self.messages) = (0, 0);
    }

    /// Puts a message in.
    #[inline]
    pub(crate) fn push(&mut self, message: &Message<'_>) {
        message.write(&mut self.bytes);
        self.payload += message.bytes.len();
        self.messages += 1;
    }
}

impl<P> Batch<P> {
    fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, payload: 0, messages: 0, parents: Vec::new(), overflow: 0, since: None }
    }

    /// Begins to load, unless it has; a ripe one leaves without lingering.
    #[inline]
    fn load(&mut self, clock: impl Fn() -> Instant, target: usize, room: usize) {
        if self.since.is_none() && !self.reaches(target, room) {
            self.since = Some(clock());
        }
    }

    #[inline]
    fn reaches(&self, target: usize, room: usize) -> bool {
        reaches((self.payload, self.bytes.len() - room), target)
    }
}

/// Whether a batch of so much payload and so many bytes has its target. Heads count where payloads are so small that they are
/// most of it.
#[inline]
pub(crate) fn reaches((payload, len): (usize, usize), target: usize) -> bool {
    target <= 1 || payload >= target || len >= target.saturating_mul(2)
}

/// Bytes up to which messages share a batch that cannot leave yet, whatever its target.
pub(crate) const GATHERED: usize = 16 << 10;
/// Buffers kept for batches to come.
const SPARES: usize = 16;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
