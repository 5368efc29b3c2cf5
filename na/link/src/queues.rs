//! Messages that wait for credits or a connection, each kind in the order of posting.

use std::collections::VecDeque;

use crate::sending::{Lane, Sending};

/// What waits to be sent to one peer.
#[derive(Debug, Default)]
pub struct Queues {
    /// By [`Lane::place`].
    waiting: [VecDeque<Sending>; 3],
}

impl Queues {
    /// Adds a message behind all others of its kind.
    #[inline]
    pub fn push(&mut self, lane: Lane, sending: Sending) {
        self.waiting[lane.place()].push_back(sending);
    }

    /// How many of a kind wait.
    #[inline]
    #[must_use]
    pub fn len(&self, lane: Lane) -> usize {
        self.waiting[lane.place()].len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.iter().all(VecDeque::is_empty)
    }

    /// The next one of a kind.
    #[inline]
    #[must_use]
    pub fn front(&self, lane: Lane) -> Option<&Sending> {
        self.waiting[lane.place()].front()
    }

    /// Takes the next one of a kind out.
    #[inline]
    pub fn pop(&mut self, lane: Lane) -> Option<Sending> {
        self.waiting[lane.place()].pop_front()
    }

    /// Puts back what [`Queues::pop`] gave, and what could not leave, or not as a whole.
    #[inline]
    pub fn put_back(&mut self, lane: Lane, sending: Sending) {
        self.waiting[lane.place()].push_front(sending);
    }

    /// Takes a message out by its number, unless a part of it has left: the other side waits for the rest then.
    pub fn cancel(&mut self, serial: u64) -> Option<Sending> {
        // Each queue is in the order of posting, so of numbers.
        let (queue, at) = self.waiting.iter_mut().find_map(|queue| {
            let at = queue.binary_search_by_key(&serial, |sending| sending.id.serial).ok()?;
            Some((queue, at))
        })?;
        if queue[at].left > 0 { None } else { queue.remove(at) }
    }

    /// Whether none up to this number waits.
    #[must_use]
    pub fn has_passed_on(&self, serial: u64) -> bool {
        self.waiting.iter().filter_map(VecDeque::front).all(|sending| sending.id.serial > serial)
    }

    /// Takes all out.
    pub fn drain(&mut self) -> impl Iterator<Item = Sending> {
        self.waiting.iter_mut().flat_map(|queue| queue.drain(..))
    }
}

#[cfg(test)]
mod tests {
    use hg_na::{Message, OpId};

    use super::*;

    #[test]
    fn a_message_that_waits_is_taken_back_from_among_all_others() {
        let mut queues = Queues::default();
        let id = |serial| OpId { scope: 0, serial };
        for serial in 0..300_u64 {
            let lane = Lane::ALL[usize::try_from(serial % 3).unwrap()];
            queues.push(lane, Sending::new(id(serial), serial, 0, Message::inline(0)));
        }
        for serial in (0..300).map(|at| at * 7 % 300) {
            assert_eq!(queues.cancel(serial).map(|it| it.id), Some(id(serial)));
            assert!(queues.cancel(serial).is_none());
        }
        assert!(queues.is_empty());
    }

    #[test]
    fn one_of_which_a_part_has_left_is_not_taken_back() {
        let mut queues = Queues::default();
        let id = OpId { scope: 0, serial: 7 };
        let message = Message::from(vec![0; 100]);
        queues.put_back(Lane::Expected, Sending { left: 60, ..Sending::new(id, 0, 1, message) });
        assert!(queues.cancel(7).is_none() && queues.front(Lane::Expected).is_some());
        assert!(!queues.has_passed_on(7) && queues.has_passed_on(6));
    }
}
