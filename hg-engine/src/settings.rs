//! What an engine is opened with.

use std::{sync::Arc, time::Duration};

use hg_core::protocol::Limits;

use crate::{schemes::Schemes, spawn::Spawn};

/// Who makes progress when nobody waits for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Progress {
    /// A thread of the engine's, one a context. It steps aside while a caller waits.
    #[default]
    Background,
    /// Whoever calls [`Engine::progress`](crate::Engine::progress) or `wait`: the user's own loop, or a foreign event loop
    /// ([`Engine::event_loop`](crate::Engine::event_loop)). Where nobody does, nothing moves: no request is served, and what was
    /// awaited, or is asked by `try_wait`, does not end, not even at its deadline.
    Own,
}

/// What a thread that makes progress does when there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// Polls on. The lowest latency, one processor core.
    Spin,
    /// Polls for this long, then sleeps. Where that has brought nothing several times because the peer waits for this core, it gives
    /// the core away after each look for a while; where others want it for long, it sleeps at once.
    Adaptive(Duration),
    /// Sleeps at once.
    Block,
}

impl Wait {
    /// How long [`Wait::default`] polls before it sleeps: twice a wake-up. `hg-perf waits` measures it beside the better of polling
    /// and sleeping.
    pub const ADAPTIVE_DEFAULT: Duration = Duration::from_micros(50);
}

impl Default for Wait {
    fn default() -> Self {
        Self::Adaptive(Self::ADAPTIVE_DEFAULT)
    }
}

/// Why an engine could not be opened.
pub type OpenError = hg_na::Error;

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) progress: Progress,
    pub(crate) wait: Wait,
    /// Of each context.
    pub(crate) limits: Limits,
    pub(crate) checksum: bool,
    pub(crate) eager_max: u64,
    pub(crate) large_max: u64,
    pub(crate) pool_threads_max: usize,
    pub(crate) runtime: Option<Arc<dyn Spawn>>,
    pub(crate) schemes: Schemes,
}

impl Settings {
    /// Limits by which nothing would ever be done.
    ///
    /// # Errors
    /// [`hg_na::Error::BadSetting`] with the limit's name.
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let limits = [
            ("calls_max", self.limits.calls_max),
            ("in_service_max", self.limits.in_service_max),
            ("pool_threads_max", self.pool_threads_max),
        ];
        match limits.iter().find(|(_, limit)| *limit == 0) {
            Some((name, _)) => {
                let why = "at least 1 is needed".to_owned();
                Err(hg_na::Error::BadSetting { name: (*name).to_owned(), why })
            }
            None => Ok(()),
        }
    }
}
