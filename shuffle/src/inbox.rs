//! What waits for delivery at its destination. No I/O, no thread, no clock.
//!
//! Messages come in chunks, one a batch. What is not delivered yet is *acknowledged* up to a number of messages and of
//! bytes, the lower of both; what lies beyond keeps its parents (the batches that it came in) until deliveries make
//! room. A message of this rank to itself makes its sender wait in the same way. What was delivered is counted by chunks:
//! the memory of one is free when all of it was delivered.
//!
//! Messages of this rank to itself make batches, too: the last chunk is *open* while it waits for more of them, and all
//! others are *due*. It is closed when it is full, by whatever comes behind it, or by its driver.

use std::collections::VecDeque;

use crate::message::Message;

/// The messages of one rank that wait for its callback.
#[derive(Debug)]
pub(crate) struct Inbox<P> {
    /// Acknowledged and not delivered, at most.
    max: Amount,
    /// Bytes at which a chunk of own messages is full.
    target: usize,
    chunks: VecDeque<Chunk>,
    /// Messages of the last chunk, while it is open.
    open: u32,
    /// Own messages may join the last chunk.
    is_own: bool,
    /// What was put in, handed out by `take`, and delivered, ever.
    pushed: Amount,
    taken: Amount,
    done: Amount,
    /// Who waits until all up to here is acknowledged; in order. How many bytes came with it.
    parents: VecDeque<(Amount, u64, P)>,
    /// To be dropped by the driver outside of its lock.
    pub(crate) released: Vec<P>,
    spare: Vec<Vec<u8>>,
    /// Most messages that waited at a time.
    pub(crate) waiting_max: u64,
}

/// Messages, and their bytes with their heads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Amount {
    fn of(chunk: &Chunk) -> Self {
        Self { messages: u64::from(chunk.messages), bytes: chunk.bytes.len() as u64 }
    }

    fn plus(self, other: Self) -> Self {
        let Self { messages, bytes } = other;
        Self {
            messages: self.messages.saturating_add(messages),
            bytes: self.bytes.saturating_add(bytes),
        }
    }
}

/// Messages to be delivered, one behind the other; hand it back by [`Inbox::finish`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) bytes: Vec<u8>,
    pub(crate) messages: u32,
}

impl<P> Inbox<P> {
    /// `max`: acknowledged before they are delivered; `target`: bytes of own messages that make a batch.
    pub(crate) fn new(max: Amount, target: usize) -> Self {
        Self {
            max,
            target: target.min(OWN_CHUNK),
            chunks: VecDeque::new(),
            open: 0,
            is_own: false,
            pushed: Amount::default(),
            taken: Amount::default(),
            done: Amount::default(),
            parents: VecDeque::new(),
            released: Vec::new(),
            spare: Vec::new(),
            waiting_max: 0,
        }
    }

    /// A buffer for a chunk.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// A chunk was delivered: releases the parents of what is acknowledged now, and keeps the buffer for one to come.
    pub(crate) fn finish(&mut self, chunk: Chunk) {
        self.done = self.done.plus(Amount::of(&chunk));
        while self.parents.front().is_some_and(|(end, ..)| self.is_acknowledged(*end)) {
            self.released.extend(self.parents.pop_front().map(|(.., parent)| parent));
        }
        let Chunk { mut bytes, .. } = chunk;
        if self.spare.len() < SPARES && bytes.capacity() <= SPARE_MAX {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    /// Puts the messages of a batch in. `delivered`: messages delivered so far, ever. Gives the parent back if it need not
    /// wait.
    pub(crate) fn push_chunk(&mut self, chunk: Chunk, parent: P, delivered: u64) -> Option<P> {
        self.close();
        let amount = Amount::of(&chunk);
        self.chunks.push_back(chunk);
        self.note_parent(amount, parent, delivered)
    }

    /// The same for a short batch, which is copied behind others where there is room.
    pub(crate) fn push_short(
        &mut self,
        (bytes, messages): (&[u8], u32),
        parent: P,
        delivered: u64,
    ) -> Option<P> {
        self.close();
        match self.chunks.back_mut() {
            Some(last) if last.bytes.len() + bytes.len() <= OWN_CHUNK => {
                last.bytes.extend_from_slice(bytes);
                last.messages += messages;
            }
            _ => {
                let mut buffer = self.buffer();
                buffer.extend_from_slice(bytes);
                self.chunks.push_back(Chunk { bytes: buffer, messages });
            }
        }
        let amount = Amount { messages: u64::from(messages), bytes: bytes.len() as u64 };
        self.note_parent(amount, parent, delivered)
    }

    fn note_parent(&mut self, amount: Amount, parent: P, delivered: u64) -> Option<P> {
        self.pushed = self.pushed.plus(amount);
        self.note_waiting(delivered);
        if self.is_acknowledged(self.pushed) {
            return Some(parent);
        }
        self.parents.push_back((self.pushed, amount.bytes, parent));
        None
    }

    /// Puts a message of this rank to itself in; what was put in up to it, for [`Inbox::is_acknowledged`].
    #[inline]
    pub(crate) fn push_own(&mut self, message: &Message<'_>) -> Amount {
        match self.chunks.back_mut() {
            Some(last) if self.is_own && last.bytes.len() < OWN_CHUNK => {
                message.write(&mut last.bytes);
                last.messages += 1;
                self.open = if last.bytes.len() < self.target { last.messages } else { 0 };
            }
            _ => {
                let mut bytes = self.buffer();
                message.write(&mut bytes);
                self.open = u32::from(bytes.len() < self.target);
                self.is_own = true;
                self.chunks.push_back(Chunk { bytes, messages: 1 });
            }
        }
        self.pushed = self.pushed.plus(Amount { messages: 1, bytes: message.len() as u64 });
        self.pushed
    }

    /// Puts a whole chunk of such messages in, which takes no more.
    pub(crate) fn push_own_chunk(&mut self, chunk: Chunk) -> Amount {
        self.close();
        self.pushed = self.pushed.plus(Amount::of(&chunk));
        self.chunks.push_back(chunk);
        self.pushed
    }

    /// Messages are delivered without being put in: nothing waits before them.
    pub(crate) fn begin_passing(&mut self, amount: Amount) {
        self.pushed = self.pushed.plus(amount);
        self.taken = self.pushed;
    }

    /// They were.
    pub(crate) fn end_passing(&mut self, amount: Amount) {
        self.done = self.done.plus(amount);
    }

    /// Counts a chunk that comes too late to be delivered.
    pub(crate) fn strand(&mut self, chunk: &Chunk) {
        let amount = Amount::of(chunk);
        for count in [&mut self.pushed, &mut self.taken, &mut self.done] {
            *count = count.plus(amount);
        }
    }

    /// Whether one more message would be acknowledged at once: within the limits, or alone.
    pub(crate) fn has_room(&self, message: &Message<'_>) -> bool {
        let next = self.pushed.plus(Amount { messages: 1, bytes: message.len() as u64 });
        self.is_acknowledged(next) || self.pushed == self.done
    }

    /// The open chunk waits for nothing more.
    pub(crate) fn close(&mut self) {
        self.open = 0;
        self.is_own = false;
    }

    /// Whether there is an open chunk.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open > 0
    }

    /// The next messages to deliver; those of an open chunk only on request.
    pub(crate) fn take(&mut self, also_open: bool) -> Option<Chunk> {
        let is_last = self.chunks.len() == 1;
        if is_last && self.is_open() && !also_open {
            return None;
        }
        let chunk = self.chunks.pop_front()?;
        if is_last {
            self.close();
        }
        self.taken = self.taken.plus(Amount::of(&chunk));
        Some(chunk)
    }

    /// Whether this, and all before it, is delivered or within the limits.
    #[inline]
    pub(crate) fn is_acknowledged(&self, end: Amount) -> bool {
        end.messages <= self.done.messages.saturating_add(self.max.messages)
            && end.bytes <= self.done.bytes.saturating_add(self.max.bytes)
    }

    /// How many messages are to be delivered before all up to here is within half of the limits.
    pub(crate) fn half_free_at(&self, end: Amount) -> u64 {
        let by_messages = end.messages.saturating_sub(self.max.messages / 2);
        let bytes = end.bytes.saturating_sub(self.max.bytes / 2);
        if self.done.bytes >= bytes {
            return by_messages;
        }
        let mut at = self.taken;
        for chunk in &self.chunks {
            if at.bytes >= bytes {
                break;
            }
            at = at.plus(Amount::of(chunk));
        }
        by_messages.max(at.messages)
    }

    /// Bytes that are not delivered, less those that other ranks' limits hold down, are more than the limit and this.
    #[inline]
    pub(crate) fn exceeds(&self, beyond: u64) -> bool {
        let (waiting, limit) =
            (self.pushed.bytes - self.done.bytes, self.max.bytes.saturating_add(beyond));
        waiting > limit
            && waiting - self.parents.iter().map(|(_, bytes, _)| bytes).sum::<u64>() > limit
    }

    /// Whether any batch waits to be acknowledged.
    pub(crate) fn has_parents(&self) -> bool {
        !self.parents.is_empty()
    }

    /// Messages put in, ever.
    pub(crate) fn pushed(&self) -> u64 {
        self.pushed.messages
    }

    /// Messages of the chunks that were delivered, ever.
    pub(crate) fn done(&self) -> u64 {
        self.done.messages
    }

    /// Whether a chunk was taken that is not delivered.
    pub(crate) fn is_delivering(&self) -> bool {
        self.taken != self.done
    }

    /// Messages that wait to be taken.
    pub(crate) fn len(&self) -> u64 {
        self.pushed.messages - self.taken.messages
    }

    /// Those of them that are due.
    #[inline]
    pub(crate) fn due(&self) -> u64 {
        self.len() - u64::from(self.open)
    }

    /// Drops everything; returns how many messages that were, and releases all parents.
    pub(crate) fn clear(&mut self) -> u64 {
        let stranded = self.len();
        self.chunks.clear();
        self.close();
        (self.taken, self.done) = (self.pushed, self.pushed);
        self.released.extend(self.parents.drain(..).map(|(.., parent)| parent));
        stranded
    }

    /// Notes how many wait; for own messages the driver does this when a chunk begins, and when one is due.
    pub(crate) fn note_waiting(&mut self, delivered: u64) {
        self.waiting_max = self.waiting_max.max(self.pushed.messages.saturating_sub(delivered));
    }
}

/// Bytes at which a chunk of own messages takes no more.
const OWN_CHUNK: usize = 16 << 10;
/// Buffers kept for chunks to come, and how large they may be.
const SPARES: usize = 16;
const SPARE_MAX: usize = 256 << 10;

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Messages;

    const NO_LIMIT: u64 = u64::MAX;

    fn inbox<P>(messages: u64, target: usize) -> Inbox<P> {
        Inbox::new(Amount { messages, bytes: NO_LIMIT }, target)
    }

    fn finish<P>(inbox: &mut Inbox<P>) {
        let chunk = inbox.take(true).unwrap();
        inbox.finish(chunk);
    }

    fn chunk(messages: u32) -> Chunk {
        let mut bytes = Vec::new();
        for kind in 0..messages {
            Message { kind, source: 0, to: 1, bytes: b"x" }.write(&mut bytes);
        }
        Chunk { bytes, messages }
    }

    #[test]
    fn a_batch_is_acknowledged_when_its_last_message_is_within_the_limit() {
        let mut inbox = inbox(5, 0);
        assert_eq!(inbox.push_chunk(chunk(3), 'a', 0), Some('a'));
        assert_eq!(inbox.push_chunk(chunk(3), 'b', 0), None);
        assert_eq!(inbox.push_chunk(chunk(7), 'c', 0), None);
        finish(&mut inbox);
        assert_eq!(inbox.released, ['b']);
        finish(&mut inbox);
        assert_eq!(inbox.released, ['b']);
        finish(&mut inbox);
        assert_eq!(inbox.released, ['b', 'c'], "more messages than the limit do not wait for ever");
    }

    #[test]
    fn the_lower_of_both_limits_counts_and_what_is_longer_than_it_waits_until_it_is_delivered() {
        let (short, long) = (chunk(1).bytes.len() as u64, chunk(9).bytes.len() as u64);
        let mut inbox = Inbox::new(Amount { messages: 100, bytes: 2 * short }, 0);
        assert_eq!(inbox.push_chunk(chunk(1), 'a', 0), Some('a'));
        assert_eq!(inbox.push_chunk(chunk(1), 'b', 0), Some('b'));
        assert_eq!(inbox.push_chunk(chunk(1), 'c', 0), None);
        assert_eq!(inbox.push_chunk(chunk(9), 'd', 0), None);
        assert_eq!((inbox.exceeds(0), inbox.exceeds(long)), (false, false), "others hold it down");
        finish(&mut inbox);
        assert_eq!(inbox.released, ['c']);
        finish(&mut inbox);
        finish(&mut inbox);
        assert_eq!(inbox.released, ['c']);
        finish(&mut inbox);
        assert_eq!(inbox.released, ['c', 'd']);
    }

    #[test]
    fn a_sender_is_woken_when_half_of_the_lower_limit_is_free() {
        let len = own(0).len() as u64;
        let mut by_messages = inbox::<()>(4, 0);
        let end = (0..5).map(|kind| by_messages.push_own(&own(kind))).last().unwrap();
        assert!(!by_messages.is_acknowledged(end));
        assert_eq!(by_messages.half_free_at(end), 3);
        let mut by_bytes = Inbox::<()>::new(Amount { messages: 100, bytes: 4 * len }, 0);
        let mut end = Amount::default();
        for kind in 0..5 {
            end = by_bytes.push_own(&own(kind));
            by_bytes.close();
        }
        assert!(!by_bytes.is_acknowledged(end) && !by_bytes.has_room(&own(5)));
        assert_eq!(by_bytes.half_free_at(end), 3);
        (0..3).for_each(|_| finish(&mut by_bytes));
        assert!(by_bytes.half_free_at(end) <= by_bytes.done() && by_bytes.has_room(&own(5)));
    }

    #[test]
    fn what_a_callback_sends_to_itself_beyond_the_limit_is_counted() {
        let len = own(0).len() as u64;
        let mut inbox = Inbox::<()>::new(Amount { messages: 100, bytes: 2 * len }, 0);
        for kind in 0..4 {
            inbox.push_own(&own(kind));
        }
        assert_eq!((inbox.exceeds(len), inbox.exceeds(2 * len)), (true, false));
        finish(&mut inbox);
        assert!(!inbox.exceeds(0));
    }

    fn own(kind: u32) -> Message<'static> {
        Message { kind, source: 1, to: 1, bytes: b"" }
    }

    fn kinds(chunk: &Chunk) -> Vec<u32> {
        Messages::of(&chunk.bytes).map(|message| message.unwrap().kind).collect()
    }

    #[test]
    fn own_messages_share_a_chunk_and_come_out_in_order() {
        let mut inbox = inbox(2, 0);
        inbox.push_chunk(chunk(1), (), 0);
        let ends = [7, 8].map(|kind| {
            let end = inbox.push_own(&own(kind));
            (end.messages, inbox.is_acknowledged(end))
        });
        assert_eq!(ends, [(2, true), (3, false)]);
        assert_eq!((inbox.len(), inbox.due(), inbox.pushed()), (3, 3, 3));
        assert_eq!(kinds(&inbox.take(false).unwrap()), [0]);
        assert_eq!(kinds(&inbox.take(false).unwrap()), [7, 8]);
        assert_eq!((inbox.len(), inbox.take(true)), (0, None));
        inbox.push_own(&own(9));
        assert_eq!(inbox.due(), 1);
    }

    #[test]
    fn a_chunk_of_own_messages_is_due_when_it_is_full_or_closed_or_asked_for() {
        let mut inbox = inbox::<()>(100, 40);
        inbox.push_own(&own(0));
        inbox.push_own(&own(1));
        assert_eq!(
            (inbox.len(), inbox.due(), inbox.is_open(), inbox.take(false)),
            (2, 0, true, None)
        );
        inbox.push_own(&own(2));
        assert_eq!((inbox.due(), inbox.is_open()), (3, false), "48 bytes are over 40");
        assert_eq!(kinds(&inbox.take(false).unwrap()), [0, 1, 2]);
        inbox.push_own(&own(3));
        inbox.push_chunk(chunk(1), (), 0);
        assert_eq!(inbox.due(), 2, "nothing overtakes it");
        assert_eq!(kinds(&inbox.take(false).unwrap()), [3]);
        inbox.push_own(&own(4));
        assert_eq!((kinds(&inbox.take(false).unwrap()), inbox.take(false)), (vec![0], None));
        assert_eq!(kinds(&inbox.take(true).unwrap()), [4]);
        inbox.push_own(&own(5));
        inbox.close();
        inbox.push_own(&own(6));
        assert_eq!((inbox.due(), inbox.len()), (1, 2), "what comes behind a closed one waits anew");
    }

    #[test]
    fn what_is_dropped_is_counted_and_keeps_nobody_waiting() {
        let mut inbox = inbox(1, 0);
        assert_eq!(inbox.push_chunk(chunk(3), 'a', 0), None);
        assert_eq!(inbox.push_chunk(chunk(4), 'b', 0), None);
        assert_eq!(inbox.clear(), 7);
        assert_eq!((inbox.released.as_slice(), inbox.len()), (&['a', 'b'][..], 0));
    }

    #[test]
    fn short_batches_share_a_chunk_in_order_with_what_lies_before_and_behind_them() {
        let mut inbox = inbox(3, 1000);
        inbox.push_own(&own(7));
        let short = chunk(2);
        assert_eq!(inbox.push_short((&short.bytes, 2), 'a', 0), Some('a'));
        assert_eq!(inbox.push_short((&short.bytes, 2), 'b', 0), None);
        assert_eq!((inbox.len(), inbox.due()), (5, 5));
        inbox.push_own(&own(8));
        assert_eq!(kinds(&inbox.take(false).unwrap()), [7, 0, 1, 0, 1]);
        assert_eq!(inbox.take(false), None, "what comes behind them waits for more");
        assert_eq!(kinds(&inbox.take(true).unwrap()), [8]);
        let long = vec![0; OWN_CHUNK];
        inbox.push_short((&long, 1), 'c', 5);
        inbox.push_short((&short.bytes, 2), 'd', 5);
        assert_eq!(inbox.take(false).unwrap().bytes.len(), OWN_CHUNK);
        assert_eq!(kinds(&inbox.take(false).unwrap()), [0, 1]);
    }
}
