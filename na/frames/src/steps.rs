//! How long a thread sleeps between two looks at what can only be polled.
//!
//! | looks in vain | sleeps in between |
//! |---:|---|
//! | 64 | none |
//! | 16 each | 16 us, 32 us, 64 us, ..., 2 ms |
//! | from the 193rd on, some 70 ms after anything came | 4 ms |
//!
//! Whatever comes, or is posted, begins this again. What the set has meanwhile, a wake among it, ends a step.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// The longest step.
pub(crate) const LONGEST: Duration = Duration::from_millis(4);
const SHORTEST: Duration = Duration::from_micros(16);
/// Looks in vain before the first sleep.
const LOOKS: u32 = 64;
/// Sleeps of one length.
const EQUAL: u32 = 16;
/// Lengths shorter than the longest one.
const GROWS: u32 = 8;

/// Looks in vain so far.
#[derive(Debug, Default)]
pub(crate) struct Steps(AtomicU32);

impl Steps {
    /// Something has come, or is expected.
    pub(crate) fn begin_again(&self) {
        // Relaxed: one sleep more or less does no harm.
        if self.0.load(Ordering::Relaxed) > 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }

    /// The next sleep.
    pub(crate) fn next(&self) -> Duration {
        // Relaxed: as above.
        let looks = self.0.load(Ordering::Relaxed);
        self.0.store(looks.saturating_add(1), Ordering::Relaxed);
        after(looks)
    }
}

/// How long is slept after so many looks.
fn after(looks: u32) -> Duration {
    match looks.checked_sub(LOOKS).map(|slept| slept / EQUAL) {
        None => Duration::ZERO,
        Some(grown) if grown < GROWS => SHORTEST * (1 << grown),
        Some(_) => LONGEST,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_grow_to_the_longest_one_and_begin_again() {
        let steps = Steps::default();
        let all: Vec<_> = (0..300).map(|_| steps.next()).collect();
        assert!(all[..64].iter().all(Duration::is_zero));
        assert!(all.is_sorted() && all.windows(2).all(|it| it[1] <= it[0].max(SHORTEST / 2) * 2));
        assert!(all[192..].iter().all(|it| *it == LONGEST));
        let in_all: Duration = all[..192].iter().sum();
        assert!((Duration::from_millis(60)..Duration::from_millis(80)).contains(&in_all));
        steps.begin_again();
        assert_eq!(steps.next(), Duration::ZERO);
        assert_eq!(after(u32::MAX), LONGEST);
    }
}
