//! What is counted of messages that have come in part: [`crate::parts`] does it.

use std::time::Instant;

/// Of one connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) bytes: u64,
    /// When it had come on last, and what the connection had received by then.
    pub(crate) since: Instant,
    pub(crate) received: u64,
}

/// Of all connections of a context.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) bytes: u64,
    /// The time of the next look is set.
    pub(crate) is_timed: bool,
}
