//! Puts the batches of one sender's queue back into the order in which they were sent.
//!
//! Several batches are under way at a time, and one that is too long for a message takes another road than one that
//! is not: they may overtake each other. At most the sender's `maxrpc` batches are held.

use std::collections::BTreeMap;

/// The batches of one queue, as they arrive.
#[derive(Debug)]
pub(crate) struct Order<T> {
    next: u64,
    early: BTreeMap<u64, T>,
    early_max: usize,
}

/// What is to be done with a batch that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place<T> {
    /// It is the next one; ask for those behind it afterwards.
    Next(T),
    /// It was put aside.
    Early,
    /// It was here before, or is so far ahead that it cannot be: the sender is broken.
    Wrong(T),
}

impl<T> Order<T> {
    /// `early_max`: batches that the sender may have under way.
    pub(crate) fn new(early_max: usize) -> Self {
        Self { next: 0, early: BTreeMap::new(), early_max }
    }

    /// A batch has arrived; `keep` makes of it what can be put aside.
    pub(crate) fn arrive<B>(
        &mut self,
        number: u64,
        batch: B,
        keep: impl FnOnce(B) -> T,
    ) -> Place<B> {
        if number == self.next {
            self.next += 1;
            return Place::Next(batch);
        }
        let is_wrong = number < self.next
            || number - self.next > self.early_max as u64
            || self.early.contains_key(&number);
        if is_wrong {
            return Place::Wrong(batch);
        }
        self.early.insert(number, keep(batch));
        Place::Early
    }

    /// The batch behind the last one, if it has arrived before.
    pub(crate) fn following(&mut self) -> Option<T> {
        let batch = self.early.remove(&self.next)?;
        self.next += 1;
        Some(batch)
    }

    /// Takes all that was put aside.
    pub(crate) fn clear(&mut self) -> Vec<T> {
        std::mem::take(&mut self.early).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn batches_come_out_in_order_whatever_order_they_arrive_in(
            sent in Just((0..8u64).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let mut order = Order::new(8);
            let mut seen = Vec::new();
            for number in sent {
                if let Place::Next(batch) = order.arrive(number, number, |batch| batch) {
                    seen.push(batch);
                    seen.extend(std::iter::from_fn(|| order.following()));
                }
            }
            prop_assert_eq!(seen, (0..8).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_batch_that_was_here_or_is_too_far_ahead_is_refused() {
        let mut order = Order::new(2);
        assert_eq!(order.arrive(0, 'a', |batch| batch), Place::Next('a'));
        assert_eq!(order.arrive(0, 'b', |batch| batch), Place::Wrong('b'));
        assert_eq!(order.arrive(3, 'c', |batch| batch), Place::Early);
        assert_eq!(order.arrive(3, 'd', |batch| batch), Place::Wrong('d'));
        assert_eq!(order.arrive(4, 'e', |batch| batch), Place::Wrong('e'));
        assert_eq!(order.clear(), ['c']);
    }
}
