//! A logical thread, and by what others unpark it.

use std::task::Waker;

use hg_engine::platform::{self, Locals};

use super::{ProcessId, ThreadId, with};
use crate::coroutine::Coroutine;

pub(super) struct Thread {
    pub(super) process: ProcessId,
    /// `None` while it runs, and once it has ended.
    pub(super) coroutine: Option<Coroutine>,
    pub(super) locals: Locals,
    /// By which others unpark it, once somebody has asked.
    name: Option<platform::Thread>,
    waker: Option<Waker>,
    /// Of [`park`].
    pub(super) token: bool,
    /// It waits, and is not among those that can run.
    pub(super) waits: bool,
    /// It has looked for something in vain, and looks again when anything else has happened.
    pub(super) looks: bool,
    /// Which wait it is.
    pub(super) wait: u64,
    pub(super) has_ended: bool,
    pub(super) has_panicked: bool,
    pub(super) joiners: Vec<ThreadId>,
}

impl Thread {
    pub(super) fn new(id: ThreadId, process: ProcessId, coroutine: Coroutine) -> Self {
        Self {
            process,
            coroutine: Some(coroutine),
            locals: Locals::numbered(u32::try_from(id).unwrap_or(u32::MAX)),
            name: None,
            waker: None,
            token: false,
            waits: false,
            looks: false,
            wait: 0,
            has_ended: false,
            has_panicked: false,
            joiners: Vec::new(),
        }
    }
}

/// By what others unpark the thread that runs, made when it asks first.
pub(crate) fn name(make: impl FnOnce(ThreadId) -> platform::Thread) -> platform::Thread {
    with(|world| match world.current {
        Some(id) => world.threads[id].name.get_or_insert_with(|| make(id)).clone(),
        None => make(usize::MAX),
    })
}

/// What unparks the thread that runs, made when it asks first.
pub(crate) fn waker(make: impl FnOnce(ThreadId) -> Waker) -> Waker {
    with(|world| {
        let id = world.current.expect("only a logical thread waits");
        world.threads[id].waker.get_or_insert_with(|| make(id)).clone()
    })
}
