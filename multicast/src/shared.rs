//! What a group's handle and the driver share, and what is told of how far it is.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Instant,
};

use crate::{error::Failure, object::Received};

/// What handle and driver share.
#[derive(Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
    pub(crate) changed: Condvar,
}

#[derive(Default)]
pub(crate) struct State {
    /// With what it counts among the bytes that are not received.
    pub(crate) ready: VecDeque<(Received, u64)>,
    pub(crate) ended: Option<Result<(), Failure>>,
    pub(crate) progress: Progress,
    pub(crate) trace: Vec<TraceEvent>,
    pub(crate) under_way: usize,
    pub(crate) wakers: Vec<Waker>,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something that receivers may wait for.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.changed.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// How far a member is, since the group began. Groups that follow it by [`reform`](crate::Group::reform) count on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Progress {
    /// Objects that are whole here; at the root: at every member.
    pub objects: u64,
    /// Blocks that are here, of all objects; at the root: that others have taken from it. A block that a member has already, from an earlier
    /// attempt or from before a `reform`, is offered to it all the same, and counts when it answers that it is there, though nothing travels.
    pub blocks: u64,
    /// The bytes of those.
    pub bytes: u64,
    /// Blocks that need not have come: they were here from an earlier attempt.
    pub resumed_blocks: u64,
    /// Blocks that others have taken from this member, those among them that they had already, as in [`blocks`](Self::blocks).
    pub passed_on: u64,
}

/// Something that happened to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEvent {
    /// When.
    pub at: Instant,
    /// What.
    pub what: What,
    /// The object.
    pub object: u64,
    /// The block of it.
    pub block: u64,
    /// The other member.
    pub peer: u32,
}

/// What happened to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum What {
    /// It was offered to the other member.
    Offered,
    /// The other member has it.
    Taken,
    /// The other member has offered it, and it begins to come.
    Begun,
    /// It is here.
    Arrived,
}
