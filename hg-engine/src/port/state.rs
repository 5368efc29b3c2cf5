//! What anybody may touch for a moment, under one lock: the protocol's state, the role while nobody has it, and who waits for it.

use std::time::Instant;

use hg_core::protocol::Protocol;

use super::Work;
use crate::{followers::Followers, platform::Platform};

pub(crate) struct State {
    pub(crate) protocol: Protocol,
    /// The role, while nobody has it; see `role.rs`.
    pub(crate) work: Option<Box<Work>>,
    /// Threads that wait for what the holder finds, or for the role.
    pub(crate) followers: Followers,
}

impl State {
    /// The role, if nobody has it and it is not kept for another thread than this one: for one that waits for a call of its own, or
    /// only makes progress.
    #[inline(always)]
    pub(crate) fn take_work(
        &mut self,
        platform: &dyn Platform,
        is_caller: bool,
    ) -> Option<Box<Work>> {
        if self.followers.any() {
            self.take_contended_work(platform, is_caller)
        } else {
            self.work.take()
        }
    }

    #[cold]
    fn take_contended_work(
        &mut self,
        platform: &dyn Platform,
        is_caller: bool,
    ) -> Option<Box<Work>> {
        let mut work = self.work.take()?;
        if !self.followers.take(&platform.current(), work.now, is_caller) {
            self.work = Some(work);
            return None;
        }
        work.is_busy = self.followers.is_busy();
        Some(work)
    }

    /// When whoever had the role has last read the clock.
    pub(crate) fn last_clock(&self) -> Option<Instant> {
        self.work.as_ref().map(|work| work.now)
    }

    /// Whether there is a transport still.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.protocol.is_open()
    }
}
