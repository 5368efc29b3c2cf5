//! When the send queues of an endpoint are looked at, which may have gone idle. No I/O, no clock.
//!
//! What silent posts hold comes back with the next completion. So as long as something is silent, all queues are looked at each [`PERIOD`], by whichever
//! context that is awake comes first: of one that nobody has posted to since the look before, the completion is asked for. So there is one for
//! each time that a queue goes idle, 100 to 200 ms after its last post, none for a sleep between call and answer, and no timer while nothing is silent.
//!
//! # Protocol   (with the endpoint's lock, but L1)
//! P1 puts into a queue what is silent there           L1 [`Idle::is_due`], in each round of each context
//! P2 [`Idle::begins`]                                 L2 [`Idle::is_due`] once more, now with the lock
//! S1 puts into the queues what was submitted          L3 puts into the queues what was submitted, looks, asks; [`Idle::looked`]
//! S2 [`Idle::deadline`], before each sleep
//! - S1, S2: who sleeps has put in what he has submitted himself, if nobody has: so he wakes for a look, unless there was one since that found
//!   nothing silent. No matter who has put it in, and whether that one makes progress ever again.
//! - Who posts while another thread of his context sleeps does S1 and S2 once more, and wakes it if a look is due, unless one was when it fell asleep:
//!   then it wakes by itself. Whether others have looked since, and it is not the first that is due, says nothing.
//! - L1 may be late to see P2, and looks later.
//! - L2: two that find a look due at once are one look; the second would find all idle.
//!
//! `tests/loom_idle.rs` checks it: it fails without S1, without L2, or where only a first look that is due ends a sleep.

use std::time::{Duration, Instant};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// Longer than what a peer takes to answer, so that calls one after the other are no idle periods.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);

/// No look is due, ever.
const NEVER: u64 = u64::MAX;
/// The first look is due at once: the others count from it.
const AT_ONCE: u64 = 0;

/// When queues are looked at.
#[derive(Debug)]
pub(crate) struct Idle {
    since: Instant,
    /// In nanoseconds since then.
    due: AtomicU64,
}

// Relaxed, all of them: it is changed with the endpoint's lock; who reads it without is late at worst.
impl Idle {
    pub(crate) fn new(since: Instant) -> Self {
        Self { since, due: AtomicU64::new(NEVER) }
    }

    fn number(&self, when: Instant) -> u64 {
        let nanos = when.saturating_duration_since(self.since).as_nanos();
        u64::try_from(nanos).map_or(NEVER - 1, |it| it.min(NEVER - 1))
    }

    /// Something silent was put into a queue.
    pub(crate) fn begins(&self) {
        if self.due.load(Ordering::Relaxed) == NEVER {
            self.due.store(AT_ONCE, Ordering::Relaxed); // P2
        }
    }

    /// Whether it is time to look.
    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let due = self.due.load(Ordering::Relaxed); // L1
        due != NEVER && due <= self.number(now)
    }

    /// All were looked at; `goes_on`: some have silent posts that were not asked for.
    pub(crate) fn looked(&self, now: Instant, goes_on: bool) {
        let due = if goes_on { self.number(now + PERIOD) } else { NEVER };
        self.due.store(due, Ordering::Relaxed); // L3
    }

    /// When to look.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let due = self.due.load(Ordering::Relaxed); // S2
        (due != NEVER).then(|| self.since + Duration::from_nanos(due))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert, proptest};

    use super::*;
    use crate::signals::{Signals, Silent};

    const CONTEXTS: usize = 3;
    const EVERY: u32 = 8;
    const STEP: Duration = Duration::from_millis(10);

    /// Contexts that post to one queue, whose completions come at once, and look where it is time.
    struct World {
        now: Instant,
        idle: Idle,
        signals: Signals,
        is_port_down: bool,
        /// When there was a post last.
        posted_at: Instant,
        /// Completions that the idle queue has asked for.
        asked: u64,
    }

    impl World {
        fn new() -> Self {
            let now = Instant::now();
            let signals = Signals::new(64, EVERY);
            Self {
                now,
                idle: Idle::new(now),
                signals,
                is_port_down: false,
                posted_at: now,
                asked: 0,
            }
        }

        fn posts(&mut self, must: bool) {
            let asks = self.signals.asks(must);
            let number = self.signals.posted(asks);
            if asks {
                self.signals.completed(number);
            } else {
                self.idle.begins();
            }
        }

        /// A round of a context.
        fn rounds(&mut self) {
            if !self.idle.is_due(self.now) {
                return;
            }
            let found = self.signals.look();
            let asks = found == Silent::Idle && !self.is_port_down;
            self.idle.looked(self.now, found != Silent::Nothing && !asks);
            if asks {
                assert!(self.now - self.posted_at >= PERIOD, "it is in use");
                self.posts(true);
                self.asked += 1;
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn an_idle_queue_asks_once_and_one_in_use_does_not_whoever_looks(
            steps in proptest::collection::vec((any::<bool>(), 0_u8..8, 0_u32..15, 0_u8..20), 1..200),
        ) {
            let mut world = World::new();
            // Times without a post that are as long as a period.
            let (mut pauses, mut posts) = (0, 0_u64);
            for (is_post, foreign, wait, port) in steps {
                world.is_port_down = if port < 2 { port == 0 } else { world.is_port_down };
                let is_post = is_post && !world.is_port_down;
                if is_post {
                    pauses += u64::from(world.now - world.posted_at >= PERIOD);
                    (posts, world.posted_at) = (posts + 1, world.now);
                    // Now and then one that asks for itself.
                    world.posts(foreign == 0);
                }
                for _ in 0..wait {
                    world.now += STEP;
                    (0..CONTEXTS).for_each(|_| world.rounds());
                }
                prop_assert!(world.signals.freed() + u64::from(EVERY) > posts, "one in so many");
            }
            world.is_port_down = false;
            // Those who sleep until a look is due.
            let mut looks = 0;
            while let Some(due) = world.idle.deadline() {
                (world.now, looks) = (due.max(world.now), looks + 1);
                prop_assert!(looks <= 3, "they wake for ever");
                world.rounds();
            }
            prop_assert!(!world.signals.is_silent(), "something stays");
            prop_assert!(world.asked <= pauses + 1, "{} for {pauses}", world.asked);
        }
    }
}
