//! What connections may cost that have not said who they are: numbers of them, and time.
//!
//! Past [`STRANGERS_MAX`] of them, or when descriptors run out, the one that has waited longest makes room, unless all have come
//! within [`PATIENCE`]: a crowd of peers that all start at once is no attack. While descriptors are scarce and nobody makes room, who
//! comes waits as long ([`Scarcity`]), and is refused then.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// Connections that have not said who they are, before the oldest are closed.
pub const STRANGERS_MAX: usize = 1024;
/// How long a stranger is let alone in any case.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Connections accepted at a time.
pub const ACCEPTS: usize = 64;
/// How long a listener rests that found no free descriptor.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// All strangers of one context, by the transport's names of them.
#[derive(Debug)]
pub struct Strangers<K>(BTreeSet<(Instant, K)>);

impl<K> Default for Strangers<K> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<K: Copy + Ord> Strangers<K> {
    /// A connection was accepted. Says whether there are too many now: then [`Strangers::to_shed`] is to be closed.
    #[must_use]
    pub fn came(&mut self, since: Instant, key: K) -> bool {
        self.0.insert((since, key));
        self.0.len() > STRANGERS_MAX
    }

    /// One that came then has said who it is, or has come to nothing.
    pub fn went(&mut self, since: Instant, key: K) {
        self.0.remove(&(since, key));
    }

    /// The one that makes room: who has waited longest, if that is long enough.
    #[must_use]
    pub fn to_shed(&self, now: Instant) -> Option<K> {
        let (since, key) = self.0.first()?;
        (now.saturating_duration_since(*since) >= PATIENCE).then_some(*key)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Who comes while descriptors are scarce.
#[derive(Debug)]
pub struct Scarcity<S> {
    waits: Option<S>,
    /// Nobody was welcomed since.
    since: Option<Instant>,
}

/// What becomes of one that has come.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn<S> {
    /// There is room for it.
    Welcomed(S),
    /// It is to be told that there is none.
    Refused(S),
    /// It, and whoever comes after it, is looked at again after [`ACCEPT_PAUSE`].
    Waits,
}

impl<S> Default for Scarcity<S> {
    fn default() -> Self {
        Self { waits: None, since: None }
    }
}

impl<S> Scarcity<S> {
    /// The one that waits, whose turn it is before all others.
    pub fn take_waiting(&mut self) -> Option<S> {
        self.waits.take()
    }

    /// One has come, or has its turn again.
    pub fn came(&mut self, now: Instant, who: S, has_room: bool) -> Turn<S> {
        if has_room {
            self.since = None;
            return Turn::Welcomed(who);
        }
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) >= PATIENCE {
            return Turn::Refused(who);
        }
        self.waits = Some(who);
        Turn::Waits
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "there is no other way to have a time")]
    fn some_time() -> Instant {
        Instant::now()
    }

    #[test]
    fn one_more_than_may_wait_is_too_many() {
        let (mut strangers, now) = (Strangers::default(), some_time());
        let many = (0..=STRANGERS_MAX).map(|key| strangers.came(now, key));
        assert!(many.eq((0..=STRANGERS_MAX).map(|key| key == STRANGERS_MAX)));
        assert_eq!(strangers.to_shed(now), None, "a crowd that has come at once");
        assert_eq!(strangers.to_shed(now + PATIENCE), Some(0));
    }

    #[test]
    fn while_descriptors_are_scarce_one_waits_and_all_are_refused_later() {
        let (mut scarcity, now) = (Scarcity::default(), some_time());
        assert_eq!(scarcity.came(now, 1, true), Turn::Welcomed(1));
        assert_eq!(scarcity.came(now, 2, false), Turn::Waits);
        assert_eq!((scarcity.take_waiting(), scarcity.take_waiting()), (Some(2), None));
        assert_eq!(scarcity.came(now + ACCEPT_PAUSE, 2, false), Turn::Waits);
        let later = now + PATIENCE;
        assert_eq!(scarcity.take_waiting(), Some(2));
        assert_eq!(scarcity.came(later, 2, false), Turn::Refused(2));
        assert_eq!(scarcity.came(later, 3, false), Turn::Refused(3));
        assert_eq!(scarcity.came(later, 4, true), Turn::Welcomed(4));
        assert_eq!(scarcity.came(later, 5, false), Turn::Waits);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn whoever_has_waited_longest_makes_room_and_nobody_within_the_patience(
            steps in proptest::collection::vec((0_u64..700, 0_u32..50, any::<bool>()), 1..200),
        ) {
            let (mut strangers, mut all, mut now) = (Strangers::default(), BTreeMap::new(), some_time());
            for (pause, key, comes) in steps {
                now += Duration::from_millis(pause);
                if comes && !all.contains_key(&key) {
                    all.insert(key, now);
                    prop_assert!(!strangers.came(now, key), "far from too many");
                } else if let Some(since) = all.remove(&key) {
                    strangers.went(since, key);
                }
                let oldest = all.iter().map(|(key, since)| (*since, *key)).min();
                let sheds = oldest.filter(|(since, _)| *since + PATIENCE <= now).map(|(_, key)| key);
                prop_assert_eq!((strangers.to_shed(now), strangers.len()), (sheds, all.len()));
            }
        }
    }
}
