//! A word for those who look on, when the ranks take long to come together.

use std::{
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

/// Told once, if at all: whom this process waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Notice {
    at: Instant,
    tell: Option<fn(&str)>,
}

/// So long nobody wonders.
const PATIENCE: Duration = Duration::from_secs(5);

impl Notice {
    /// Counts from now. Where ranks may take less than twice [`PATIENCE`], half of that.
    pub(crate) fn new(tell: Option<fn(&str)>, timeout: Duration) -> Self {
        Self { at: Instant::now() + PATIENCE.min(timeout / 2), tell }
    }

    /// When it is to be told, if it is not yet.
    pub(crate) fn at(&self) -> Option<Instant> {
        self.tell.map(|_| self.at)
    }

    /// Tells it, if it is time.
    pub(crate) fn look(&mut self, words: impl FnOnce() -> String) {
        if self.at <= Instant::now()
            && let Some(tell) = self.tell.take()
        {
            tell(&words());
        }
    }

    /// Tells it while somebody else's code keeps this thread waiting.
    pub(crate) fn during<T>(mut self, words: &str, work: impl FnOnce() -> T) -> T {
        if self.tell.is_none() {
            return work();
        }
        let (working, worked) = mpsc::channel::<()>();
        let words = words.to_owned();
        let wait = move || {
            let left = self.at.saturating_duration_since(Instant::now());
            if worked.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                self.look(|| words);
            }
        };
        // Without a thread there is no notice.
        let waiting = thread::Builder::new().name("hg-job-notice".into()).spawn(wait);
        let result = work();
        drop(working);
        if let Ok(waiting) = waiting {
            let _ = waiting.join();
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_notice_is_told_once_and_only_to_those_who_wait() {
        static TOLD: AtomicU32 = AtomicU32::new(0);
        let tell: fn(&str) = |words| {
            assert_eq!(words, "rank 0");
            TOLD.fetch_add(1, Ordering::SeqCst);
        };
        let told = || TOLD.load(Ordering::SeqCst);
        let hour = Duration::from_secs(3600);
        Notice { at: Instant::now() + hour, tell: Some(tell) }.during("rank 0", || ());
        assert_eq!(told(), 0);
        let mut notice = Notice::new(Some(tell), Duration::ZERO);
        notice.during("rank 0", || while told() == 0 {});
        notice.look(|| "rank 0".into());
        notice.look(|| "rank 0".into());
        assert_eq!((told(), notice.at()), (2, None));
    }
}
