//! When a context that spins reads a connection without being told to: at once where messages come one by one, and
//! about when the next batch is due where they come in batches.
//!
//! An empty read is a system call for nothing. A batch's answers take their time, which is much the same from batch to
//! batch; so the first look is made after as many rounds as the last one took. Where it finds the batch, the next look
//! is a sixteenth earlier; where it comes too soon, an eighth later at most: an interruption of the other side
//! costs the batches after it little. Looks that find nothing come apart as what was waited grows, by a quarter of it.
//! A single message ends this: the next one is looked for in every round again.

/// Messages of one read that make a batch.
const BATCH_MIN: usize = 8;
/// Rounds between two looks, at least, while batches come.
const APART: u32 = 16;
/// The same at most.
const APART_MAX: u32 = 128;
/// Rounds before the first look, at most: what a single message after batches may wait.
const GAP_MAX: u32 = 1024;
/// The kernel is asked for other connections once in so many batches, and once in so many rounds at least.
const BATCHES_PER_ASK: u32 = 4;
const ASK_MAX: u32 = 2048;

/// The pace of one connection's batches, in rounds without bytes.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// The last read found a batch.
    is_batched: bool,
    /// Rounds after which the next one is looked for.
    gap: u32,
    /// The next look.
    next: u32,
    /// A look has found nothing.
    was_early: bool,
}

impl Pace {
    /// Whether to look, after so many rounds.
    #[inline]
    pub(crate) fn is_time(&self, rounds: u32) -> bool {
        !self.is_batched || rounds >= self.next
    }

    /// A look has found nothing.
    pub(crate) fn missed(&mut self, rounds: u32) {
        self.was_early = true;
        self.next = rounds.saturating_add((rounds / 4).clamp(APART, APART_MAX));
    }

    /// So many messages came after so many rounds, looked for or told.
    pub(crate) fn came(&mut self, rounds: u32, messages: usize) {
        self.is_batched = messages >= BATCH_MIN;
        let gap = if !self.is_batched {
            0
        } else if self.was_early || rounds < self.gap {
            rounds.min(self.gap + self.gap / 8 + APART)
        } else {
            self.gap - self.gap / 16
        };
        self.gap = gap.min(GAP_MAX);
        self.next = self.gap.max(APART);
        self.was_early = false;
    }

    /// Rounds after which the kernel may be asked for other connections.
    pub(crate) fn ask_after(&self) -> u32 {
        if self.is_batched { ASK_MAX.min(self.gap * BATCHES_PER_ASK) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    /// Looks until a batch that takes so many rounds is there; says after how many rounds, and how many looks.
    fn batch(pace: &mut Pace, takes: u32) -> (u32, u32) {
        let mut looks = 0;
        for rounds in 0.. {
            if pace.is_time(rounds) {
                looks += 1;
                if rounds >= takes {
                    pace.came(rounds, BATCH_MIN);
                    return (rounds, looks);
                }
                pace.missed(rounds);
            }
        }
        unreachable!("the look comes")
    }

    #[test]
    fn batches_that_take_equally_long_are_found_by_the_first_look_mostly_and_soon() {
        for takes in [0, 10, 100, 500, 1000] {
            let mut pace = Pace::default();
            for _ in 0..100 {
                batch(&mut pace, takes);
            }
            let (rounds, looks) = (0..100).fold((0, 0), |(rounds, looks), _| {
                let (after, seen) = batch(&mut pace, takes);
                (rounds + after, looks + seen)
            });
            assert!(looks <= 150, "{looks} looks for 100 batches of {takes} rounds");
            let most = (takes + takes / 4 + APART) * 100;
            assert!(rounds <= most, "{rounds} rounds for 100 batches of {takes} rounds");
        }
    }

    #[test]
    fn a_single_message_ends_it_and_one_late_batch_delays_the_next_ones_little() {
        let mut pace = Pace::default();
        for _ in 0..100 {
            batch(&mut pace, 100);
        }
        batch(&mut pace, 100_000);
        let (after, _) = batch(&mut pace, 0);
        assert!(after <= 200, "{after} rounds");
        pace.came(7, 1);
        assert!(pace.is_time(0) && pace.ask_after() == 0);
    }

    proptest! {
        #[test]
        fn nothing_waits_longer_than_the_longest_gap(takes in proptest::collection::vec(0_u32..5000, 1..200)) {
            let mut pace = Pace::default();
            for takes in takes {
                let (after, _) = batch(&mut pace, takes);
                prop_assert!(after <= GAP_MAX.max(takes + APART_MAX.min(takes / 4 + APART)), "{after} for {takes}");
                prop_assert!(pace.ask_after() <= ASK_MAX);
            }
        }
    }
}
