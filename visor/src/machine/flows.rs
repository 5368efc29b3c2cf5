//! What waits for one party: a queue for each source; sources take turns by their weight (deficit round robin).

use std::collections::VecDeque;

use hg_na::Message;
use rustc_hash::FxHashMap;

use super::party::ConnectionKey;
use crate::wire::{FRAME_COST, FRAME_MAX, cost};

/// Bytes that a source of weight 1 may send in its turn: a frame of any length.
#[expect(clippy::cast_possible_truncation, reason = "64 KiB")]
const QUANTUM: u32 = FRAME_MAX as u32;

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

#[derive(Debug)]
struct Flow {
    frames: VecDeque<Outgoing>,
    weight: u32,
    /// Bytes that it may still send in this turn.
    credit: u32,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    by_source: FxHashMap<u64, Flow>,
    /// Sources with frames, in the order of their turns.
    turns: VecDeque<u64>,
    /// Given out, and given back.
    returned: Option<Outgoing>,
    bytes: u64,
}

impl Flows {
    /// Adds a frame behind all others of its source.
    pub(crate) fn push(&mut self, (source, weight): (u64, u32), outgoing: Outgoing) {
        self.bytes += outgoing.cost();
        let flow = self.by_source.entry(source).or_insert_with(|| {
            self.turns.push_back(source);
            Flow { frames: VecDeque::new(), weight: weight.max(1), credit: 0 }
        });
        flow.frames.push_back(outgoing);
    }

    /// Takes the next frame out.
    pub(crate) fn pop(&mut self) -> Option<Outgoing> {
        let outgoing = self.returned.take().or_else(|| self.next())?;
        self.bytes -= outgoing.cost();
        Some(outgoing)
    }

    fn next(&mut self) -> Option<Outgoing> {
        loop {
            let source = *self.turns.front()?;
            let flow = self.by_source.get_mut(&source)?;
            let len = flow.frames.front().map_or(0, Outgoing::len);
            if flow.credit < len {
                flow.credit = flow.credit.saturating_add(QUANTUM.saturating_mul(flow.weight));
                self.turns.rotate_left(1);
                continue;
            }
            flow.credit -= len;
            let outgoing = flow.frames.pop_front();
            if flow.frames.is_empty() {
                self.by_source.remove(&source);
                self.turns.pop_front();
            }
            return outgoing;
        }
    }

    /// Puts back what [`Flows::pop`] gave: it is the next one.
    pub(crate) fn put_back(&mut self, outgoing: Outgoing) {
        self.bytes += outgoing.cost();
        self.returned = Some(outgoing);
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.returned.is_none() && self.turns.is_empty()
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
            flows.push((1, 1), frame(1, 16_000));
            flows.push((2, 3), frame(2, 4000));
            flows.push((3, 1), frame(3, 100));
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
    fn each_source_keeps_its_order_and_nothing_is_left() {
        let mut flows = Flows::default();
        for at in 0..30 {
            flows.push((u64::from(at % 3), 1), frame(at, 1));
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
        assert!(flows.by_source.is_empty() && flows.turns.is_empty());
    }
}
