//! What a caller chooses: whom to call, what becomes of a call without room, how calls travel, who is told.

use std::fmt;

pub(crate) use hg_channel::When;

use crate::Synchronizer;

/// A worker by name: a process of the job, and a thread there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Rank of the process.
    pub process: u32,
    /// Which of its workers, from 0.
    pub thread: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "thread {} of process {}", self.thread, self.process)
    }
}

/// What becomes of a call for which there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Room {
    /// It comes back: [`Error::Full`](crate::Error::Full).
    Return,
    /// Progress is made until there is room. Not in a function that was called.
    Wait,
    /// It waits here, in its order, as long as that takes no more than [`Fabric::queue_max`](crate::Fabric::queue_max).
    #[default]
    Queue,
}

/// How calls are packed into messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Packing {
    /// Into blocks, which leave when they are full, when the worker has nothing else to do, or by [`Worker::flush`](crate::Worker::flush).
    #[default]
    Trad,
    /// A message each; into blocks only while the transport takes none.
    Ovfl,
}

/// How one call is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct How<'a> {
    pub(crate) room: Room,
    pub(crate) notify: Option<(When, &'a Synchronizer)>,
    pub(crate) group: Option<u32>,
}

impl<'a> How<'a> {
    /// With this choice, and nobody to be told.
    #[must_use]
    pub fn room(room: Room) -> Self {
        Self { room, notify: None, group: None }
    }

    /// One of this group, as all calls are that its function makes without saying otherwise: [`Worker::quiesce_group`](crate::Worker::quiesce_group)
    /// waits for them, and not for others. Otherwise it is of the group of the function that calls, if that is of one.
    #[must_use]
    pub fn of_group(self, group: u32) -> Self {
        Self { group: Some(group), ..self }
    }

    /// Counts one event when the function has run, or cannot run any more.
    #[must_use]
    pub fn when_run(self, synchronizer: &'a Synchronizer) -> Self {
        Self { notify: Some((When::Consumed, synchronizer)), ..self }
    }

    /// Counts one event when the call has left this worker.
    #[must_use]
    pub fn when_sent(self, synchronizer: &'a Synchronizer) -> Self {
        Self { notify: Some((When::Sent, synchronizer)), ..self }
    }
}
