//! What waits for the transport, for each end in order: no I/O.
//!
//! An end that takes nothing is asked once a round, however much waits for it, and holds up no other end.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

/// A queue for each end that has something waiting.
#[derive(Debug)]
pub(crate) struct Queues<T> {
    of: FxHashMap<u32, VecDeque<T>>,
    /// Those ends, as they have their turns.
    turns: VecDeque<u32>,
}

/// What has become of the first one of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offered {
    /// All of it was taken, or nobody will take it any more.
    Taken,
    /// A part of it was: it is offered again, at the next turn of its end.
    Part,
    /// There is no room.
    Refused,
}

impl<T> Default for Queues<T> {
    fn default() -> Self {
        Self { of: FxHashMap::default(), turns: VecDeque::new() }
    }
}

impl<T> Queues<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// For how many ends something waits.
    pub(crate) fn ends(&self) -> usize {
        self.of.len()
    }

    pub(crate) fn push(&mut self, end: u32, one: T) {
        let queue = self.of.entry(end).or_default();
        if queue.is_empty() {
            self.turns.push_back(end);
        }
        queue.push_back(one);
    }

    /// Offers what waits, of each end in its order, one at a turn, until all refuse. Who was refused first is the first one next time.
    pub(crate) fn offer_all(&mut self, mut take: impl FnMut(u32, &mut T) -> Offered) {
        let mut refused = VecDeque::new();
        while let Some(end) = self.turns.pop_front() {
            let Some(queue) = self.of.get_mut(&end) else { continue };
            match queue.front_mut().map(|first| take(end, first)) {
                Some(Offered::Refused) => {
                    refused.push_back(end);
                    continue;
                }
                Some(Offered::Taken) => drop(queue.pop_front()),
                Some(Offered::Part) | None => {}
            }
            if queue.is_empty() {
                self.of.remove(&end);
            } else {
                self.turns.push_back(end);
            }
        }
        self.turns = refused;
    }
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
        queues.offer_all(|_, number| {
            parts.push(*number);
            *number += 10;
            if *number > 20 { Offered::Taken } else { Offered::Part }
        });
        assert_eq!(parts[..6], [0, 10, 20, 2, 12, 4]);
        assert!(queues.is_empty());
    }

    #[test]
    fn an_end_that_wants_all_there_is_leaves_their_shares_to_the_others() {
        let mut queues = Queues::default();
        for end in [7, 3, 5] {
            queues.push(end, ());
        }
        // Two a round.
        let mut shares = [0; 8];
        for _ in 0..30 {
            let mut room = 2;
            queues.offer_all(|end, ()| {
                if room == 0 {
                    return Offered::Refused;
                }
                room -= 1;
                shares[end as usize] += 1;
                Offered::Part
            });
        }
        assert_eq!((shares[7], shares[3], shares[5]), (20, 20, 20));
    }
}
