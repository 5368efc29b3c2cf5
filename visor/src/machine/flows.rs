//! What waits for one party: a queue for each source; processes take turns by their weight, and the contexts of one in its turns (deficit
//! round robin).

use std::collections::VecDeque;

use hg_na::Message;
use rustc_hash::FxHashMap;

use super::{party::ConnectionKey, process::Source};
use crate::wire::{FRAME_COST, FRAME_MAX, cost};

/// Bytes that a source of weight 1 may send in its turn: a frame of any length.
#[expect(clippy::cast_possible_truncation, reason = "64 KiB")]
const QUANTUM: u32 = FRAME_MAX as u32;

/// Frames for which an empty queue keeps memory at most.
const KEPT: usize = 64;

/// A frame on its way out.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) frame: Message,
    /// What follows when it has left.
    pub(crate) follows: Follows,
}

/// What follows when a frame has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follows {
    Nothing,
    /// This end of a connection was told that it is over.
    Closed(ConnectionKey, usize),
    /// This end of a connection may send so many bytes again.
    Returned(ConnectionKey, usize, u32),
}

impl Outgoing {
    pub(crate) fn plain(frame: Message) -> Self {
        Self { frame, follows: Follows::Nothing }
    }

    fn len(&self) -> u32 {
        u32::try_from(self.frame.len()).unwrap_or(u32::MAX)
    }

    fn cost(&self) -> u64 {
        u64::from(cost(self.frame.len()))
    }
}

const _: () = assert!(2 * size_of::<Outgoing>() <= FRAME_COST as usize);

/// What gives frames one after the other.
trait Queue: Default {
    /// Bytes of the next frame, if there is one: the one that [`Queue::take`] gives.
    fn next_len(&mut self) -> Option<u32>;
    fn take(&mut self) -> Option<Outgoing>;
}

impl Queue for VecDeque<Outgoing> {
    fn next_len(&mut self) -> Option<u32> {
        self.front().map(Outgoing::len)
    }

    fn take(&mut self) -> Option<Outgoing> {
        let first = self.pop_front();
        if self.is_empty() && self.capacity() > KEPT {
            *self = Self::new();
        }
        first
    }
}

#[derive(Debug)]
struct Turn<Q> {
    queue: Q,
    weight: u32,
    /// Bytes that it may still send in this turn.
    credit: u32,
}

/// Queues that have something, by their sources, which take turns.
#[derive(Debug)]
struct Turns<Q> {
    by_source: FxHashMap<u64, Turn<Q>>,
    order: VecDeque<u64>,
    /// One that has become empty: the next source needs no new memory.
    spare: Option<Q>,
}

impl<Q> Default for Turns<Q> {
    fn default() -> Self {
        Self { by_source: FxHashMap::default(), order: VecDeque::new(), spare: None }
    }
}

impl<Q: Queue> Turns<Q> {
    /// The queue of a source: something is put into it.
    fn of(&mut self, source: u64, weight: u32) -> &mut Q {
        let turn = self.by_source.entry(source).or_insert_with(|| {
            self.order.push_back(source);
            Turn { queue: self.spare.take().unwrap_or_default(), weight: weight.max(1), credit: 0 }
        });
        &mut turn.queue
    }
}

impl<Q: Queue> Queue for Turns<Q> {
    fn next_len(&mut self) -> Option<u32> {
        loop {
            let turn = self.by_source.get_mut(self.order.front()?)?;
            let len = turn.queue.next_len()?;
            if turn.credit >= len {
                return Some(len);
            }
            turn.credit = turn.credit.saturating_add(QUANTUM.saturating_mul(turn.weight));
            self.order.rotate_left(1);
        }
    }

    fn take(&mut self) -> Option<Outgoing> {
        let len = self.next_len()?;
        let turn = self.by_source.get_mut(self.order.front()?)?;
        turn.credit -= len;
        let outgoing = turn.queue.take();
        if turn.queue.next_len().is_none() {
            let source = self.order.pop_front()?;
            self.spare = self.by_source.remove(&source).map(|turn| turn.queue);
        }
        outgoing
    }
}

/// All of it: processes take turns, and in each one's its contexts.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    turns: Turns<Turns<VecDeque<Outgoing>>>,
    /// Given out, and given back.
    returned: Option<Outgoing>,
    bytes: u64,
}

impl Flows {
    /// Adds a frame behind all others of its source, whose process has this weight.
    pub(crate) fn push(&mut self, (process, context): Source, weight: u32, outgoing: Outgoing) {
        self.bytes += outgoing.cost();
        self.turns.of(process, weight).of(context, 1).push_back(outgoing);
    }

    /// Takes the next frame out.
    pub(crate) fn pop(&mut self) -> Option<Outgoing> {
        let outgoing = self.returned.take().or_else(|| self.turns.take())?;
        self.bytes -= outgoing.cost();
        Some(outgoing)
    }

    /// Puts back what [`Flows::pop`] gave: it is the next one.
    pub(crate) fn put_back(&mut self, outgoing: Outgoing) {
        self.bytes += outgoing.cost();
        self.returned = Some(outgoing);
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.returned.is_none() && self.turns.order.is_empty()
    }

    /// Bytes of memory that what waits takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(source: u8, len: usize) -> Outgoing {
        Outgoing::plain(Message::from(vec![source; len]))
    }

    #[test]
    fn sources_get_bytes_by_their_weight_whatever_the_length_of_their_frames() {
        let mut flows = Flows::default();
        for _ in 0..4000 {
            flows.push((1, 1), 1, frame(1, 16_000));
            flows.push((2, 2), 3, frame(2, 4000));
            flows.push((3, 3), 1, frame(3, 100));
        }
        let mut sent = [0_usize; 4];
        while sent.iter().sum::<usize>() < 4_000_000 {
            let frame = flows.pop().unwrap().frame;
            sent[usize::from(frame.as_slice()[0])] += frame.len();
        }
        let share = |it: usize| sent[it] * 100 / sent.iter().sum::<usize>();
        // The third has sent all that it had.
        assert_eq!(sent[3], 400_000);
        assert!((71..=79).contains(&(share(2) * 100 / (share(1) + share(2)))), "{sent:?}");
    }

    #[test]
    fn the_contexts_of_a_process_have_one_share_among_them_in_equal_parts() {
        let mut flows = Flows::default();
        for _ in 0..4000 {
            flows.push((1, 1), 1, frame(1, 16_000));
            for context in 2..6 {
                flows.push((2, u64::from(context)), 1, frame(context, 4000));
            }
        }
        let mut sent = [0_usize; 6];
        while sent.iter().sum::<usize>() < 8_000_000 {
            let frame = flows.pop().unwrap().frame;
            sent[usize::from(frame.as_slice()[0])] += frame.len();
        }
        // A turn, and what is left of one.
        let close = |one: usize, other: usize| one.abs_diff(other) <= 2 * FRAME_MAX;
        assert!(close(sent[1], sent[2..].iter().sum()), "{sent:?}");
        assert!(sent[2..].windows(2).all(|pair| close(pair[0], pair[1])), "{sent:?}");
    }

    #[test]
    fn each_source_keeps_its_order_and_nothing_is_left() {
        let mut flows = Flows::default();
        for at in 0..30 {
            flows.push((u64::from(at % 3 / 2), u64::from(at % 3)), 1, frame(at, 1));
        }
        let first = flows.pop().unwrap();
        flows.put_back(first);
        let mut last = [None; 3];
        for _ in 0..30 {
            let at = flows.pop().unwrap().frame.as_slice()[0];
            assert!(last[usize::from(at % 3)] < Some(at));
            last[usize::from(at % 3)] = Some(at);
        }
        assert!(flows.is_empty() && flows.bytes() == 0 && flows.pop().is_none());
        assert!(flows.turns.by_source.is_empty() && flows.turns.order.is_empty());
    }
}
