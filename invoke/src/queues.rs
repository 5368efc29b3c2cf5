//! What waits for the transport, for each end in order: no I/O.
//!
//! An end that takes nothing is asked once a round, however much waits for it, and holds up no other end.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

/// A queue for each end that has something waiting.
#[derive(Debug)]
pub(crate) struct Queues<T>(FxHashMap<u32, VecDeque<T>>);

/// What has become of the first one of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offered {
    /// All of it was taken, or nobody will take it any more.
    Taken,
    /// A part of it was: it is offered again.
    Part,
    /// There is no room.
    Refused,
}

impl<T> Default for Queues<T> {
    fn default() -> Self {
        Self(FxHashMap::default())
    }
}

impl<T> Queues<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn push(&mut self, end: u32, one: T) {
        self.0.entry(end).or_default().push_back(one);
    }

    /// Offers what waits for one end in its order, until something is refused.
    pub(crate) fn offer(&mut self, end: u32, mut take: impl FnMut(u32, &mut T) -> Offered) {
        if let Some(queue) = self.0.get_mut(&end)
            && is_done(end, queue, &mut take)
        {
            self.0.remove(&end);
        }
    }

    /// The same with all ends.
    pub(crate) fn offer_all(&mut self, mut take: impl FnMut(u32, &mut T) -> Offered) {
        self.0.retain(|end, queue| !is_done(*end, queue, &mut take));
    }
}

/// Whether nothing of a queue is left.
fn is_done<T>(
    end: u32,
    queue: &mut VecDeque<T>,
    take: &mut impl FnMut(u32, &mut T) -> Offered,
) -> bool {
    while let Some(first) = queue.front_mut() {
        match take(end, first) {
            Offered::Taken => drop(queue.pop_front()),
            Offered::Part => {}
            Offered::Refused => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_takes_nothing_is_asked_once_and_holds_up_no_other() {
        let mut queues = Queues::default();
        for number in 0..1000 {
            queues.push(number % 2, number);
        }
        let (mut refused, mut taken) = (0, Vec::new());
        queues.offer_all(|end, number| {
            if end == 0 {
                refused += 1;
                return Offered::Refused;
            }
            taken.push(*number);
            Offered::Taken
        });
        let odd: Vec<u32> = (0..1000).filter(|it| it % 2 == 1).collect();
        assert_eq!((refused, taken), (1, odd), "the others in their order");
        let mut parts = Vec::new();
        queues.offer(0, |_, number| {
            parts.push(*number);
            *number += 10;
            if *number > 20 { Offered::Taken } else { Offered::Part }
        });
        assert_eq!(parts[..6], [0, 10, 20, 2, 12, 4]);
        assert!(queues.is_empty());
    }
}
