//! What is looked at while a rank runs, for a picture or for a line on a terminal.

use std::{
    io::{self, Write as _},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Looks, as often as fits: when there are too many, every other one goes, and so on.
#[derive(Debug)]
struct Samples<S> {
    interval: Duration,
    taken: Vec<S>,
}

impl<S> Samples<S> {
    fn push(&mut self, sample: S) {
        if self.taken.len() == SAMPLES_MAX {
            let mut is_odd = false;
            self.taken.retain(|_| {
                is_odd = !is_odd;
                is_odd
            });
            self.interval *= 2;
        }
        self.taken.push(sample);
    }
}

/// A thread that looks from time to time.
#[derive(Debug)]
pub struct Sampler<S> {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Vec<S>>>,
}

#[derive(Debug, Default)]
struct Shared {
    is_over: Mutex<bool>,
    ended: Condvar,
}

impl<S: Send + 'static> Sampler<S> {
    /// One that never looks.
    #[must_use]
    pub fn idle() -> Self {
        Self { shared: Arc::default(), thread: None }
    }

    /// `look` is given the time since this call. `show` makes a line for the terminal of what was seen so far; it is told
    /// whether it is the last one.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(
        look: impl Fn(Duration) -> S + Send + 'static,
        show: Option<impl Fn(&[S], bool) -> String + Send + 'static>,
    ) -> io::Result<Self> {
        let (shared, begin) = (Arc::<Shared>::default(), Instant::now());
        let looking = Arc::clone(&shared);
        let run = move || looking.run(|| look(begin.elapsed()), show);
        let thread = thread::Builder::new().name("samples".to_owned()).spawn(run)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What was seen.
    #[must_use]
    pub fn end(mut self) -> Vec<S> {
        self.stop()
    }
}

impl<S> Sampler<S> {
    fn stop(&mut self) -> Vec<S> {
        *self.shared.is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.ended.notify_all();
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl<S> Drop for Sampler<S> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn run<S>(&self, look: impl Fn() -> S, show: Option<impl Fn(&[S], bool) -> String>) -> Vec<S> {
        let mut samples = Samples { interval: INTERVAL, taken: Vec::new() };
        loop {
            let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = self.ended.wait_timeout_while(is_over, samples.interval, |over| !*over);
            let is_over = *waited.unwrap_or_else(PoisonError::into_inner).0;
            samples.push(look());
            if let Some(show) = &show {
                let _ = io::stderr().write_all(show(&samples.taken, is_over).as_bytes());
            }
            if is_over {
                return samples.taken;
            }
        }
    }
}

/// A bar that is filled in part, with words behind it, over the line before.
#[expect(clippy::cast_precision_loss, reason = "shown in a few digits")]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 1")]
#[must_use]
pub fn bar(part: f64, words: &str, is_over: bool) -> String {
    let part = if is_over { 1.0 } else { part.clamp(0.0, 1.0) };
    let filled = (part * WIDTH as f64) as usize;
    let bar = format!("{}{}", "#".repeat(filled), ".".repeat(WIDTH - filled));
    let end = if is_over { "\n" } else { "" };
    format!("\r[{bar}] {:3.0} %, {words}\x1b[K{end}", part * 100.0)
}

/// How often at first, and how many at most.
const INTERVAL: Duration = Duration::from_millis(20);
const SAMPLES_MAX: usize = 512;
/// Of the bar, in characters.
const WIDTH: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_samples_are_thinned_and_the_last_one_stays() {
        let mut samples = Samples { interval: INTERVAL, taken: Vec::new() };
        for time in 0..2000 {
            samples.push(time);
        }
        let times = &samples.taken;
        assert!(times.len() <= SAMPLES_MAX && times.len() > SAMPLES_MAX / 2, "{}", times.len());
        assert_eq!((times[0], times.last(), times.is_sorted()), (0, Some(&1999), true));
        assert!(samples.interval > INTERVAL);
    }

    #[test]
    fn a_bar_fills_and_is_full_at_the_end() {
        let half = bar(0.5, "some", false);
        assert_eq!(half.matches('#').count(), WIDTH / 2);
        assert!(half.contains(" 50 %, some"));
        assert!(bar(0.5, "some", true).contains("100 %"));
    }

    #[test]
    fn a_sampler_looks_once_more_at_the_end() {
        let show = None::<fn(&[u64], bool) -> String>;
        let sampler = Sampler::start(|_| 7_u64, show).expect("a thread");
        assert_eq!(sampler.end().last(), Some(&7));
        assert!(Sampler::<u64>::idle().end().is_empty());
    }
}
