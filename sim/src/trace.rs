//! What has happened in a story, where somebody wants to know.

use std::fmt::{self, Write};

/// The hash of a trace, and its lines.
#[derive(Debug, Clone)]
pub struct Trace {
    is_on: bool,
    hash: u64,
    lines: Option<Vec<String>>,
    line: String,
}

/// What is wanted of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tracing {
    /// Nothing.
    Off,
    /// A hash of all lines.
    Hash,
    /// The lines, too.
    Lines,
}

impl Trace {
    /// Nothing yet.
    #[must_use]
    pub fn new(wanted: Tracing) -> Self {
        let lines = (wanted == Tracing::Lines).then(Vec::new);
        let (is_on, hash) = (wanted != Tracing::Off, 0xcbf2_9ce4_8422_2325);
        Self { is_on, hash, lines, line: String::new() }
    }

    /// Adds a line.
    pub fn line(&mut self, now: u64, what: impl FnOnce(&mut dyn Write) -> fmt::Result) {
        if !self.is_on {
            return;
        }
        self.line.clear();
        let micros = now / 1000;
        let _never_fails = write!(self.line, "{micros:>9} us  ");
        let _never_fails = what(&mut self.line);
        for byte in self.line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        if let Some(lines) = &mut self.lines {
            lines.push(self.line.clone());
        }
    }

    /// The same story gives the same.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The lines, where they were kept.
    #[must_use]
    pub fn lines(&self) -> &[String] {
        self.lines.as_deref().unwrap_or_default()
    }
}
