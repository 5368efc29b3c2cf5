//! A callback that does not return keeps others waiting: it is told aloud, once.

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use super::Inner;

/// What was seen of the thread of callbacks.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    looked: Option<Instant>,
    /// Messages delivered when it was first seen at the one that it is at, and when that was.
    at: Option<(u64, Instant)>,
    is_told: bool,
}

impl Watch {
    /// The thread is at a message, behind so many; or at none. For how long, if that is to be told.
    fn look(
        &mut self,
        now: Instant,
        delivering: Option<u64>,
        notice: Duration,
    ) -> Option<Duration> {
        let seen = match (delivering, self.at) {
            (Some(at), Some((before, since))) if at == before => (at, since),
            (Some(at), _) => (at, now),
            (None, _) => {
                self.at = None;
                return None;
            }
        };
        self.at = Some(seen);
        let stands = now.saturating_duration_since(seen.1);
        (stands >= notice && !std::mem::replace(&mut self.is_told, true)).then_some(stands)
    }
}

impl Inner {
    /// How often it is looked at.
    pub(super) fn look_interval(&self) -> Duration {
        self.options.callback_notice.clamp(INTERVAL_MIN, INTERVAL)
    }

    /// Looks now and then whether the callback returns: asked by the clock.
    pub(crate) fn look_at_callback(&self, now: Instant) {
        let Ok(mut watch) = self.watch.try_lock() else { return };
        let is_early = |looked| now.saturating_duration_since(looked) < self.look_interval();
        if watch.is_told || watch.looked.is_some_and(is_early) {
            return;
        }
        watch.looked = Some(now);
        let (delivering, notice) = (self.mail.delivering(), self.options.callback_notice);
        let Some(stands) = watch.look(now, delivering, notice) else { return };
        drop(watch);
        let (rank, name, seconds) = (self.routes.me(), &self.name, stands.as_secs());
        tracing::warn!(shuffle = name, rank, seconds, "a callback has not returned");
        if !tracing::enabled!(tracing::Level::WARN) {
            // Nobody else says it, and others wait. That nobody reads it is no harm.
            let _ = writeln!(
                std::io::stderr(),
                "shuffle `{name}`: the callback of rank {rank} has not returned for {seconds} s; what is sent to it waits"
            );
        }
    }
}

/// How often a callback is looked at, and at most, where that is to be told sooner.
const INTERVAL: Duration = Duration::from_secs(1);
const INTERVAL_MIN: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callback_that_stays_at_one_message_is_told_once_and_one_that_goes_on_is_not() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let (mut watch, long) = (Watch::default(), 10 * second);
        let mut look = |now, at: Option<u64>| watch.look(now, at, long);
        assert_eq!(look(start, None), None);
        for at in 0..30 {
            assert_eq!(look(start + at * second, Some(u64::from(at))), None);
        }
        let start = start + 30 * second;
        assert_eq!(look(start, Some(30)), None);
        assert_eq!(look(start + long / 2, Some(30)), None);
        assert_eq!(look(start + long, None), None, "it had nothing to do in between");
        assert_eq!(look(start + long, Some(30)), None);
        assert_eq!(look(start + 2 * long, Some(30)), Some(long));
        assert_eq!(look(start + 3 * long, Some(30)), None);
    }
}
