//! What waits for delivery at its destination. No I/O, no thread, no clock.
//!
//! Messages come in chunks, one a batch. The first `max` messages that are not delivered yet are *acknowledged*;
//! those beyond keep their parents (the batches that they came in) until deliveries make room. A message of this rank
//! to itself makes its sender wait in the same way.
//!
//! Messages of this rank to itself make batches, too: the last chunk is *open* while it waits for more of them, and all
//! others are *due*. It is closed when it is full, by whatever comes behind it, or by its driver.

use std::collections::VecDeque;

use crate::message::Message;

/// The messages of one rank that wait for its callback.
#[derive(Debug)]
pub(crate) struct Inbox<P> {
    max: u64,
    /// Bytes at which a chunk of own messages is full.
    target: usize,
    chunks: VecDeque<Chunk>,
    /// Messages of the last chunk, while it is open.
    open: u32,
    /// Own messages may join the last chunk.
    is_own: bool,
    /// Messages put in, and handed out by `take`, ever.
    pushed: u64,
    taken: u64,
    /// Who waits until the message with this number is acknowledged; in order.
    parents: VecDeque<(u64, P)>,
    /// To be dropped by the driver outside of its lock.
    pub(crate) released: Vec<P>,
    spare: Vec<Vec<u8>>,
    /// Most messages that waited at a time.
    pub(crate) waiting_max: u64,
}

/// Messages to be delivered, one behind the other; hand the buffer back by [`Inbox::reuse`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) bytes: Vec<u8>,
    pub(crate) messages: u32,
}

impl<P> Inbox<P> {
    /// `max`: messages acknowledged before they are delivered; `target`: bytes of own messages that make a batch.
    pub(crate) fn new(max: usize, target: usize) -> Self {
        Self {
            max: max as u64,
            target: target.min(OWN_CHUNK),
            chunks: VecDeque::new(),
            open: 0,
            is_own: false,
            pushed: 0,
            taken: 0,
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

    /// Takes a buffer back, for a chunk to come.
    pub(crate) fn reuse(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARES && buffer.capacity() <= SPARE_MAX {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// Puts the messages of a batch in. `delivered`: messages delivered so far, ever. Gives the parent back if it need not
    /// wait.
    pub(crate) fn push_chunk(&mut self, chunk: Chunk, parent: P, delivered: u64) -> Option<P> {
        self.close();
        let messages = chunk.messages;
        self.chunks.push_back(chunk);
        self.note_parent(messages, parent, delivered)
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
        self.note_parent(messages, parent, delivered)
    }

    fn note_parent(&mut self, messages: u32, parent: P, delivered: u64) -> Option<P> {
        self.pushed += u64::from(messages);
        self.note_waiting(delivered);
        if self.is_acknowledged(self.pushed, delivered) {
            return Some(parent);
        }
        self.parents.push_back((self.pushed, parent));
        None
    }

    /// Puts a message of this rank to itself in; returns its number, for [`Inbox::is_acknowledged`].
    #[inline]
    pub(crate) fn push_own(&mut self, message: &Message<'_>) -> u64 {
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
        self.pushed += 1;
        self.pushed
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
        self.taken += u64::from(chunk.messages);
        Some(chunk)
    }

    /// Releases the parents of messages for which there is room now.
    pub(crate) fn handle_delivered(&mut self, delivered: u64) {
        while self
            .parents
            .front()
            .is_some_and(|(number, _)| self.is_acknowledged(*number, delivered))
        {
            self.released.extend(self.parents.pop_front().map(|(_, parent)| parent));
        }
    }

    /// Whether this message, and all before it, are delivered or within the limit.
    pub(crate) fn is_acknowledged(&self, number: u64, delivered: u64) -> bool {
        number <= delivered.saturating_add(self.max)
    }

    /// How many messages are to be delivered before a parent is released.
    pub(crate) fn next_release(&self) -> Option<u64> {
        self.parents.front().map(|(number, _)| number.saturating_sub(self.max))
    }

    /// Messages put in, ever.
    pub(crate) fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Messages that wait to be taken.
    pub(crate) fn len(&self) -> u64 {
        self.pushed - self.taken
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
        self.taken = self.pushed;
        self.released.extend(self.parents.drain(..).map(|(_, parent)| parent));
        stranded
    }

    /// Notes how many wait; for own messages the driver does this when a chunk begins, and when one is due.
    pub(crate) fn note_waiting(&mut self, delivered: u64) {
        self.waiting_max = self.waiting_max.max(self.pushed.saturating_sub(delivered));
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

    fn chunk(messages: u32) -> Chunk {
        let mut bytes = Vec::new();
        for kind in 0..messages {
            Message { kind, source: 0, to: 1, bytes: b"x" }.write(&mut bytes);
        }
        Chunk { bytes, messages }
    }

    #[test]
    fn a_batch_is_acknowledged_when_its_last_message_is_within_the_limit() {
        let mut inbox = Inbox::new(5, 0);
        assert_eq!(inbox.push_chunk(chunk(3), 'a', 0), Some('a'));
        assert_eq!(inbox.push_chunk(chunk(3), 'b', 0), None);
        assert_eq!(inbox.push_chunk(chunk(7), 'c', 0), None);
        assert_eq!(inbox.next_release(), Some(1));
        inbox.handle_delivered(1);
        assert_eq!((inbox.released.as_slice(), inbox.next_release()), (&['b'][..], Some(8)));
        inbox.handle_delivered(7);
        assert_eq!(inbox.released, ['b']);
        inbox.handle_delivered(8);
        assert_eq!(inbox.released, ['b', 'c'], "more messages than the limit do not wait for ever");
        assert_eq!(inbox.next_release(), None);
    }

    fn own(kind: u32) -> Message<'static> {
        Message { kind, source: 1, to: 1, bytes: b"" }
    }

    fn kinds(chunk: &Chunk) -> Vec<u32> {
        Messages::of(&chunk.bytes).map(|message| message.unwrap().kind).collect()
    }

    #[test]
    fn own_messages_share_a_chunk_and_come_out_in_order() {
        let mut inbox = Inbox::new(2, 0);
        inbox.push_chunk(chunk(1), (), 0);
        let numbers = [7, 8].map(|kind| {
            let number = inbox.push_own(&own(kind));
            (number, inbox.is_acknowledged(number, 0))
        });
        assert_eq!(numbers, [(2, true), (3, false)]);
        assert_eq!((inbox.len(), inbox.due(), inbox.pushed()), (3, 3, 3));
        assert_eq!(kinds(&inbox.take(false).unwrap()), [0]);
        assert_eq!(kinds(&inbox.take(false).unwrap()), [7, 8]);
        assert_eq!((inbox.len(), inbox.take(true)), (0, None));
        inbox.push_own(&own(9));
        assert_eq!(inbox.due(), 1);
    }

    #[test]
    fn a_chunk_of_own_messages_is_due_when_it_is_full_or_closed_or_asked_for() {
        let mut inbox = Inbox::<()>::new(100, 40);
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
        let mut inbox = Inbox::new(1, 0);
        assert_eq!(inbox.push_chunk(chunk(3), 'a', 0), None);
        assert_eq!(inbox.push_chunk(chunk(4), 'b', 0), None);
        assert_eq!(inbox.clear(), 7);
        assert_eq!((inbox.released.as_slice(), inbox.len()), (&['a', 'b'][..], 0));
    }

    #[test]
    fn short_batches_share_a_chunk_in_order_with_what_lies_before_and_behind_them() {
        let mut inbox = Inbox::new(3, 1000);
        inbox.push_own(&own(7));
        let short = chunk(2);
        assert_eq!(inbox.push_short((&short.bytes, 2), 'a', 0), Some('a'));
        assert_eq!(inbox.push_short((&short.bytes, 2), 'b', 0), None);
        assert_eq!((inbox.len(), inbox.due(), inbox.next_release()), (5, 5, Some(2)));
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
