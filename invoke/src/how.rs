//! What a caller chooses: whom to call, what becomes of a call without room, how calls travel, who is told.

use std::fmt;

pub(crate) use hg_channel::When;
use serde::{Deserialize, Serialize};

use crate::Synchronizer;

/// A worker by name: a process of the job, and a thread there. An argument or a result as any other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// Rank of the process.
    pub process: u32,
    /// Which of its workers, from 0; its service threads follow.
    pub thread: u32,
}

impl Place {
    /// Whichever service thread of a process has the least to do, or whichever worker where there are none, as far as the caller knows: of those
    /// that are there, the one that has consumed most of what the caller has sent it. Calls by this name are in no order.
    #[must_use]
    pub const fn any_of(process: u32) -> Self {
        Self { process, thread: ANY }
    }
}

/// No thread has this number.
pub(crate) const ANY: u32 = u32::MAX;

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.thread {
            ANY => write!(out, "any thread of process {}", self.process),
            thread => write!(out, "thread {thread} of process {}", self.process),
        }
    }
}

/// What becomes of a call for which there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Room {
    /// It comes back: [`Error::Full`](crate::Error::Full).
    Return,
    /// Progress is made until there is room. Not in a function that was called: there [`Error::Inside`](crate::Error::Inside) when there is none.
    Wait,
    /// It waits here, in its order, as long as that takes no more than [`Fabric::queue_max`](crate::Fabric::queue_max), and all that waits here no more than
    /// [`Fabric::queue_total`](crate::Fabric::queue_total). Otherwise it comes back.
    #[default]
    Queue,
}

/// How calls are packed into messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Packing {
    /// Into blocks, which leave when they are full, when the worker has nothing else to do or has been busy for four rounds of its progress, or by
    /// [`Worker::flush`](crate::Worker::flush).
    #[default]
    Trad,
    /// A message each; into blocks only while the transport or the window takes none.
    Ovfl,
    /// A message each, always. Those that wait take about 100 bytes each beside their own, so that an eighth as many bytes of them may, and of
    /// results, for one thread and for all.
    Plain,
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

    /// Counts one event when the function has run, or cannot run any more; one that panics has run. In the place of [`How::when_sent`], if that
    /// was asked for: one of them is told.
    #[must_use]
    pub fn when_run(self, synchronizer: &'a Synchronizer) -> Self {
        Self { notify: Some((When::Consumed, synchronizer)), ..self }
    }

    /// Counts one event when the call has left this worker. In the place of [`How::when_run`], if that was asked for.
    #[must_use]
    pub fn when_sent(self, synchronizer: &'a Synchronizer) -> Self {
        Self { notify: Some((When::Sent, synchronizer)), ..self }
    }
}
