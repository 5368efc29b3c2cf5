//! The receiving end of a stream: checks that the window holds, and says when the sender is to be told. No I/O.

use crate::{error::Broken, wire::half};

/// The receiving end of one stream.
#[derive(Debug)]
pub(crate) struct Incoming {
    window: u64,
    arrived: u64,
    consumed: u64,
    told: u64,
    asked: bool,
}

impl Incoming {
    pub(crate) fn new(window: u32) -> Self {
        Self { window: u64::from(window), arrived: 0, consumed: 0, told: 0, asked: false }
    }

    /// A block of so many bytes of records has arrived.
    #[inline]
    pub(crate) fn arrive(&mut self, bytes: u64) -> Result<(), Broken> {
        // The sender cannot know more than it was told.
        if self.arrived - self.told + bytes > self.window {
            return Err(Broken::Window);
        }
        self.arrived += bytes;
        Ok(())
    }

    /// A block was consumed; `asks`: its sender waits to hear of it.
    #[inline]
    pub(crate) fn consume(&mut self, bytes: u64, asks: bool) {
        debug_assert!(bytes <= self.arrived - self.consumed, "consumed once");
        self.consumed += bytes;
        self.asked |= asks;
    }

    /// Whether the sender is to be told even if nothing else travels.
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        self.asked || self.consumed - self.told >= self.window / 2
    }

    /// How far it has come, which is told now.
    #[inline]
    pub(crate) fn tell(&mut self) -> u32 {
        self.asked = false;
        self.told = self.consumed;
        half(self.consumed)
    }

    /// The same, when it could not be told after all.
    pub(crate) fn untell(&mut self) {
        self.asked = true;
    }

    /// Whether everything that has arrived was consumed.
    pub(crate) fn is_quiet(&self) -> bool {
        self.consumed == self.arrived
    }

    /// Half of the position that was consumed.
    pub(crate) fn consumed(&self) -> u32 {
        half(self.consumed)
    }
}
