//! The receiving end of a stream: checks that the window holds, widens it, and says when the sender is to be told. No I/O.
//!
//! A window that is too short for the way there and back, or for the turns that two ends take on one processor, holds up a sender although its receiver has consumed
//! everything. Then the receiver doubles it, once per window that has arrived.

use crate::{
    error::Broken,
    wire::{Told, half},
};

/// The receiving end of one stream.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// As it was at first.
    window: u64,
    doubled: u8,
    /// What the sender may still know of, after [`Incoming::narrow`].
    doubled_once: u8,
    /// What had arrived when it was doubled.
    doubled_at: u64,
    arrived: u64,
    consumed: u64,
    told: u64,
    asked: bool,
}

impl Incoming {
    pub(crate) fn new(window: u32) -> Self {
        Self {
            window: u64::from(window),
            doubled: 0,
            doubled_once: 0,
            doubled_at: 0,
            arrived: 0,
            consumed: 0,
            told: 0,
            asked: false,
        }
    }

    /// Bytes that may be on their way, or wait to be consumed.
    #[inline]
    pub(crate) fn window(&self) -> u64 {
        self.window << self.doubled
    }

    /// A block has just arrived that had waited for the window: whether a longer one would have been of use. It is not, as long as what came
    /// before is here still, or less than a window has come since it was doubled.
    #[cold]
    pub(crate) fn is_too_narrow(&self, block: u64) -> bool {
        self.arrived - self.consumed == block && self.arrived - self.doubled_at >= self.window()
    }

    /// Doubles the window, which the sender is to hear of.
    #[cold]
    pub(crate) fn widen(&mut self) {
        self.doubled += 1;
        self.doubled_once = self.doubled_once.max(self.doubled);
        (self.doubled_at, self.asked) = (self.arrived, true);
    }

    /// The window is as it was at first. Bytes by which it was longer.
    pub(crate) fn narrow(&mut self) -> u64 {
        let more = self.window() - self.window;
        self.doubled = 0;
        more
    }

    /// A block of so many bytes of records has arrived.
    #[inline]
    pub(crate) fn arrive(&mut self, bytes: u64) -> Result<(), Broken> {
        // The sender cannot know more than it was told.
        if self.arrived - self.told + bytes > self.window << self.doubled_once {
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

    /// Whether the sender is to be told even if nothing else travels. Its window may be the short one again.
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        self.asked || self.consumed - self.told >= self.window / 2
    }

    /// How far it has come, which is told now.
    #[inline]
    pub(crate) fn tell(&mut self) -> Told {
        self.asked = false;
        self.told = self.consumed;
        self.telling()
    }

    /// What [`Incoming::tell`] would say.
    #[inline]
    pub(crate) fn telling(&self) -> Told {
        Told { consumed: half(self.consumed), doubled: self.doubled }
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
