//! Bounds of channels.

use std::time::Duration;

use crate::{
    error::Error,
    wire::{HEADER, RECORD},
};

/// Bounds of each channel; the same at all ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes that a block is filled up to: 4 KiB. Where the transport takes less in one message, that.
    pub block: usize,
    /// Bytes of records that are on their way or wait to be consumed: 256 KiB. Half of it is the longest record.
    pub window: u32,
    /// What the window is doubled up to, at a receiver that has consumed everything while its sender waits for room: 1 MiB; never of a sender with which
    /// it shares memory ([`Port::over`](crate::Port::over)). Ends may have it otherwise. One end has 16 MiB for that, of all its channels; a connection that was idle and is closed gives back what it has had of them.
    pub widest: u32,
    /// A connection over which nothing has gone for so long is closed, when both sides agree: 10 s.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let (window, widest) = (256 << 10, 1 << 20);
        Self { block: 4096, window, widest, idle: Duration::from_secs(10) }
    }
}

impl Limits {
    /// Blocks of so many bytes: at least 64, at most half of the longest window, and at most what the transport takes in one message
    /// ([`Port::over`](crate::Port::over)).
    #[must_use]
    pub fn block(self, bytes: usize) -> Self {
        Self { block: bytes, ..self }
    }

    /// A window of so many bytes: at least two blocks with their heads, at most 1 GiB.
    #[must_use]
    pub fn window(self, bytes: u32) -> Self {
        Self { window: bytes, ..self }
    }

    /// Windows are doubled up to so many bytes, at most 1 GiB: none, where that is not twice [`Limits::window`], and none of a sender with which memory is
    /// shared.
    #[must_use]
    pub fn widest(self, bytes: u32) -> Self {
        Self { widest: bytes, ..self }
    }

    /// Idle connections are closed after this.
    #[must_use]
    pub fn idle(self, after: Duration) -> Self {
        Self { idle: after, ..self }
    }

    /// Whether each is what it may be. A port takes the nearest that may be.
    ///
    /// # Errors
    /// [`Error::Limit`] names the first that is not.
    pub fn check(&self) -> Result<(), Error> {
        let near = self.nearest();
        let is = |value: u64, near: u64, name| match value == near {
            true => Ok(()),
            false => Err(Error::Limit { name, value, near }),
        };
        is(self.block as u64, near.block as u64, "block")?;
        is(self.window.into(), near.window.into(), "window")?;
        is(self.widest.into(), near.widest.into(), "widest")
    }

    /// The nearest that may be.
    pub(crate) fn nearest(self) -> Self {
        let block = self.block.clamp(BLOCK_MIN, BLOCK_MAX);
        let least = u32::try_from(2 * (block + HEADER + RECORD)).unwrap_or(WINDOW_MAX);
        let window = self.window.clamp(least, WINDOW_MAX);
        Self { block, window, widest: self.widest.min(WINDOW_MAX), ..self }
    }
}

/// The longest window. Half of all positions are far more.
pub(crate) const WINDOW_MAX: u32 = 1 << 30;
/// Bytes by which the windows of an end are longer than at first, together. The short windows of tests are to come to it as well.
pub(crate) const WIDENED_MAX: u64 = if cfg!(test) { 16 << 10 } else { 16 << 20 };
/// The shortest block and the longest: two of them fit in a window.
const BLOCK_MIN: usize = 64;
const BLOCK_MAX: usize = (WINDOW_MAX / 2) as usize - HEADER - RECORD;
