//! Which posts of one send queue ask for a completion, and what a completion frees. No I/O.
//!
//! ```text
//!  numbers:  1 2 3 4 5 6 7 8 9
//!            s s A s s A s s s        A: asks for a completion, s: silent
//!            ----- freed by the completion of 3;   asked = 6, posted = 9
//! ```
//! A queue pair completes in order, so a completion of number n is the end of everything up to n. Posts that are silent stay in the queue until
//! one behind them has asked: so one of them asks when it is the `every`-th, when the queue is half full of silent ones, or when
//! somebody waits for it. Whoever needs what the silent ones at the end hold, or [finds](Signals::look) the queue idle, asks by a post that does nothing else.

/// The posts of one send queue.
#[derive(Debug)]
pub(crate) struct Signals {
    /// Places of the queue.
    depth: u64,
    /// Silent posts in a row, and one.
    every: u64,
    posted: u64,
    asked: u64,
    freed: u64,
    /// The last post at the last look.
    looked_at: u64,
}

/// What a look at a queue finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Silent {
    /// Nothing is silent, or a completion to come ends it.
    Nothing,
    /// It was posted to since the look before.
    InUse,
    /// It was not: the completion is to be asked for.
    Idle,
}

impl Signals {
    /// A queue of `depth` places, of which every `every`-th post asks.
    pub(crate) fn new(depth: u32, every: u32) -> Self {
        let depth = u64::from(depth.max(1));
        let every = u64::from(every).clamp(1, (depth / 2).max(1));
        Self { depth, every, posted: 0, asked: 0, freed: 0, looked_at: 0 }
    }

    /// Whether the queue takes one more.
    pub(crate) fn has_room(&self) -> bool {
        self.posted - self.freed < self.depth
    }

    /// Whether the next post asks for a completion; `must`: somebody waits for it.
    pub(crate) fn asks(&self, must: bool) -> bool {
        must || self.posted - self.asked + 1 >= self.every
    }

    /// The next post was taken: its number.
    pub(crate) fn posted(&mut self, asks: bool) -> u64 {
        self.posted += 1;
        if asks {
            self.asked = self.posted;
        }
        self.posted
    }

    /// The number of the last post.
    pub(crate) fn last(&self) -> u64 {
        self.posted
    }

    /// Whether posts wait for a completion that none has asked for.
    pub(crate) fn is_silent(&self) -> bool {
        self.posted > self.asked
    }

    /// A look at what is silent, some time after the one before.
    pub(crate) fn look(&mut self) -> Silent {
        let before = std::mem::replace(&mut self.looked_at, self.posted);
        match self.is_silent() {
            false => Silent::Nothing,
            true if before == self.posted => Silent::Idle,
            true => Silent::InUse,
        }
    }

    /// Whether a completion is to come.
    pub(crate) fn is_awaited(&self) -> bool {
        self.asked > self.freed
    }

    /// A completion has come: how many posts it ends, the oldest first. None for a number that was never posted.
    pub(crate) fn completed(&mut self, number: u64) -> u64 {
        if number > self.posted || number <= self.freed {
            return 0;
        }
        let count = number - self.freed;
        self.freed = number;
        count
    }

    /// The number up to which everything has ended.
    pub(crate) fn freed(&self) -> u64 {
        self.freed
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn every_post_asks_where_every_is_one() {
        let mut signals = Signals::new(8, 1);
        for number in 1..=8 {
            assert!(signals.asks(false));
            assert_eq!(signals.posted(true), number);
        }
        assert!(!signals.has_room());
    }

    #[test]
    fn one_in_so_many_asks_and_frees_those_before_it() {
        let mut signals = Signals::new(128, 32);
        let mut asked = 0;
        for _ in 0..32 * 100 {
            assert!(signals.has_room());
            let asks = signals.asks(false);
            let number = signals.posted(asks);
            if asks {
                asked += 1;
                assert_eq!(signals.completed(number), 32);
            }
        }
        assert_eq!(asked, 100);
    }

    #[test]
    fn a_completion_that_comes_twice_or_was_never_asked_for_frees_nothing() {
        let mut signals = Signals::new(8, 4);
        signals.posted(true);
        assert_eq!((signals.completed(2), signals.completed(1), signals.completed(1)), (0, 1, 0));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Beside a naive queue that remembers each post.
        #[test]
        fn a_full_queue_always_has_a_completion_to_come_and_each_post_is_freed_once(
            depth in 1_u32..64,
            every in 1_u32..100,
            steps in proptest::collection::vec((any::<bool>(), any::<bool>()), 1..500),
        ) {
            let mut signals = Signals::new(depth, every);
            let (mut queue, mut to_come) = (VecDeque::new(), VecDeque::new());
            for (is_post, must) in steps {
                if is_post && signals.has_room() {
                    let asks = signals.asks(must);
                    let number = signals.posted(asks);
                    queue.push_back(number);
                    if asks {
                        to_come.push_back(number);
                    }
                } else if let Some(number) = to_come.pop_front() {
                    let count = signals.completed(number);
                    let freed: Vec<_> = (0..count).filter_map(|_| queue.pop_front()).collect();
                    prop_assert_eq!(freed.last(), Some(&number));
                    prop_assert_eq!(signals.freed(), number);
                }
                prop_assert!(queue.len() <= depth as usize);
                prop_assert_eq!(signals.has_room(), queue.len() < depth as usize);
                prop_assert!(signals.has_room() || signals.is_awaited(), "it would stand still");
                prop_assert_eq!(signals.is_awaited(), !to_come.is_empty());
                prop_assert_eq!(signals.is_silent(), queue.back() != to_come.back() && !queue.is_empty());
            }
        }
    }
}
