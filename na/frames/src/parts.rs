//! How many bytes of messages have come in part.

use std::time::Instant;

/// Messages in part of all connections.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) bytes: u64,
    /// When memory is scarce: the next look at all of them.
    pub(crate) due: Option<Instant>,
    /// Rounds since then.
    pub(crate) rounds: u32,
    /// Looks so far. One is left out when memory was not scarce meanwhile.
    pub(crate) looks: u64,
}

/// Those of one connection.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// As far as they are counted.
    pub(crate) bytes: u64,
    /// The last look, and what had come by then ([`hg_na_link::Lanes::in_parts`]).
    pub(crate) seen: (u64, u64),
}

impl Parts {
    /// A connection has so many bytes in part now.
    #[inline]
    pub(crate) fn count(&mut self, part: &mut Part, bytes: usize) {
        let before = std::mem::replace(&mut part.bytes, bytes as u64);
        self.bytes = self.bytes + bytes as u64 - before;
    }
}
