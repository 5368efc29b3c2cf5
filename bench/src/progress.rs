//! How far a measurement is: a line on standard error, where that is a terminal, that is gone when it is over.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// The line.
pub(crate) struct Progress {
    is_terminal: bool,
    begun: Instant,
    shown: Option<Instant>,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        Progress { is_terminal: io::stderr().is_terminal(), begun: Instant::now(), shown: None }
    }

    /// A round begins, of so many; the first one only warms up. Between two measurements, so that it is in none.
    pub(crate) fn round(&mut self, done: u32, of: u32) {
        let is_due = self.shown.is_none_or(|shown| shown.elapsed() >= INTERVAL);
        if self.is_terminal && is_due {
            self.show(&rounds(done, of, self.begun.elapsed()));
        }
    }

    /// What is being done now.
    pub(crate) fn now(&mut self, what: &str) {
        if self.is_terminal {
            self.show(what);
        }
    }

    /// A sentence that stays.
    pub(crate) fn note(&mut self, sentence: &str) {
        if self.is_terminal {
            write(&format!("{sentence}\n"));
        }
    }

    /// Takes the line away: something else is printed.
    pub(crate) fn clear(&mut self) {
        if self.shown.take().is_some() {
            write("\r\x1b[K");
        }
    }

    fn show(&mut self, line: &str) {
        self.shown = Some(Instant::now());
        // A line that is longer than the terminal's could not be taken away.
        let line: String = line.chars().take(WIDTH).collect();
        write(&format!("\r{line}\x1b[K"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn write(text: &str) {
    // Nobody is left to be told that this failed.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// `done` of the rounds are over, after so long.
fn rounds(done: u32, of: u32, taken: Duration) -> String {
    match done {
        0 => format!("round 1 of {of}"),
        _ => {
            let left = taken.mul_f64(f64::from(of.saturating_sub(done)) / f64::from(done));
            format!("round {} of {of}, {:.0} s left", (done + 1).min(of), left.as_secs_f64())
        }
    }
}

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(200);
/// Characters of the line.
const WIDTH: usize = 78;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_from_what_was_taken() {
        assert_eq!(rounds(0, 200, Duration::ZERO), "round 1 of 200");
        assert_eq!(rounds(50, 200, Duration::from_secs(30)), "round 51 of 200, 90 s left");
        assert_eq!(rounds(200, 200, Duration::from_secs(120)), "round 200 of 200, 0 s left");
    }
}
