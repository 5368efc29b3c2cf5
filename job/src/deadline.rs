//! When a bound has passed.

use std::time::{Duration, Instant};

/// So long after now; of more than [`LONGEST`], that.
pub(crate) fn after(within: Duration) -> Instant {
    Instant::now() + within.min(LONGEST)
}

/// Longer than this nobody waits, which is some 30 years: sums of it and of an `Instant` stay an `Instant`.
pub(crate) const LONGEST: Duration = Duration::from_secs(1_000_000_000);
